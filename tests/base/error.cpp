// The texts of errors.
#include <doctest/doctest.h>
#include <tessera/base/error.hpp>
#include <tessera/base/extents.hpp>

using namespace tessera;

TEST_CASE("text() joins strings, characters, numbers and what has str()") {
  CHECK(text("a", std::string("b"), std::string_view("c"), 'd', 5, true, Extents<2>{{6, 7}}, 8ul) == "abcd5true6x78");
}

TEST_CASE("TESSERA_REQUIRE throws usage_error with its text and place, and builds the text only then") {
  int built = 0;
  const auto piece = [&] { return ++built; };
  TESSERA_REQUIRE(1 + 1 == 2, "never ", piece());
  CHECK(built == 0);
  std::string told;
  try {
    TESSERA_REQUIRE(1 + 1 == 3, "sum is ", 2, "; count again ", piece());
  } catch (const usage_error& e) { told = e.what(); }
  CHECK(built == 1);
  CHECK(told.starts_with("sum is 2; count again 1 ["));
  CHECK(told.find("error.cpp:") != told.npos);
}

TEST_CASE("every kind is a tessera::error") {
  CHECK_THROWS_AS(throw usage_error("x"), error);
  CHECK_THROWS_AS(throw io_error("x"), error);
  CHECK_THROWS_AS(throw comm_error("x"), error);
  CHECK_THROWS_AS(throw backend_error("x"), error);
}
