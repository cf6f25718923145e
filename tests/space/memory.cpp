// Buffer and Blocks in host memory: contents, copies, moves, alignment, counters.
#include <array>
#include <doctest/doctest.h>
#include <limits>
#include <tessera/space/blocks.hpp>

using namespace tessera;

TEST_CASE("a buffer is zero, aligned, and knows its size") {
  for (const std::size_t count : {1u, 3u, 17u, 1000u}) {
    const Buffer<float> b(count);
    CHECK(b.size() == count);
    CHECK(b.bytes() == 4 * count);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % host::alignment == 0);
    for (std::size_t i = 0; i < count; ++i) REQUIRE(b.data()[i] == 0);
  }
  const Buffer<double> none, zero(0);
  CHECK(none.data() == nullptr);
  CHECK(zero.data() == nullptr);
  CHECK(zero.size() == 0);
}

TEST_CASE("copies are deep, moves leave an empty buffer behind") {
  Buffer<int> a(4);
  for (int i = 0; i < 4; ++i) a.data()[i] = i + 1;
  Buffer<int> b = a;
  b.data()[0] = 100;
  CHECK(a.data()[0] == 1);
  CHECK(b.data()[3] == 4);

  const int* where = b.data();
  Buffer<int> c = std::move(b);
  CHECK(c.data() == where);
  CHECK(b.data() == nullptr); // NOLINT(bugprone-use-after-move): that is the question
  CHECK(b.size() == 0);
  const Buffer<int> of_moved = b;
  CHECK(of_moved.size() == 0);

  a = c;
  CHECK(a.data() != c.data());
  CHECK(a.data()[0] == 100);
  const Buffer<int>& alias = a;
  a = alias;
  CHECK(a.data()[3] == 4);
  b = std::move(a);
  CHECK(b.data()[0] == 100);
  CHECK(b.size() == 4);
  b = Buffer<int>();
  CHECK(b.data() == nullptr);
}

TEST_CASE("the counter follows every buffer; moves and empty buffers count nothing") {
  const AllocationCounter& counter = allocation_counter();
  const auto count = counter.allocations.load(), held = counter.bytes_held.load();
  {
    Buffer<double> a(100);
    CHECK(counter.allocations == count + 1);
    CHECK(counter.bytes_held == held + 800);
    CHECK(counter.bytes_peak >= held + 800);
    Buffer<double> moved = std::move(a);
    const Buffer<double> empty(0), copy_of_empty = empty;
    CHECK(counter.allocations == count + 1);
    const Buffer<double> copy = moved;
    CHECK(counter.allocations == count + 2);
    CHECK(counter.bytes_held == held + 1600);
    moved = Buffer<double>(10);
    CHECK(counter.bytes_held == held + 880);
  }
  CHECK(counter.allocations == count + 3);
  CHECK(counter.bytes_held == held);
}

// Sanitizers end the program at the first such allocation.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

TEST_CASE("more memory than there is: a usage_error that says how much was asked for and what to do" *
          doctest::skip(sanitized)) {
  const auto held = allocation_counter().bytes_held.load();
  constexpr std::size_t count = std::size_t{1} << 57;
  CHECK_THROWS_WITH_AS(
      Buffer<double>{count},
      doctest::Contains("out of memory: 1152921504606846976 bytes of host memory are not to be had; use "
                        "more ranks or a smaller sample or batch"),
      usage_error);
  CHECK(allocation_counter().bytes_held == held);
}

TEST_CASE("a number of bytes that does not fit into a size does not wrap around to a small block") {
  CHECK_THROWS_WITH_AS(Buffer<double>{std::numeric_limits<std::size_t>::max() / 8 + 2},
                       doctest::Contains("elements of 8 bytes are more than any address space"), usage_error);
}

TEST_CASE("host space: copies and zeros of no bytes accept null pointers") {
  host::copy(nullptr, nullptr, 0);
  host::copy_from_host(nullptr, nullptr, 0);
  host::copy_to_host(nullptr, nullptr, 0);
  host::zero(nullptr, 0);
  std::array<int, 3> a{1, 2, 3}, b{};
  host::copy(b.data(), a.data(), sizeof a);
  CHECK(a == b);
  host::zero(b.data(), sizeof b);
  CHECK(b == std::array<int, 3>{});
  host::copy_to_host(b.data(), a.data(), sizeof a);
  CHECK(a == b);
}

TEST_CASE("Blocks copies, adds and fills boxes") {
  std::array<float, 12> a{}, b{};
  const View<float, 2> x(a.data(), {{3, 4}}), y(b.data(), {{3, 4}});
  Blocks<host>::fill(x.box({{{1, 1}}, {{3, 3}}}), 2.0f);
  Blocks<host>::copy(x, y);
  Blocks<host>::add(x.box({{{0, 0}}, {{3, 2}}}), y.box({{{0, 1}}, {{3, 3}}}));
  CHECK(b == std::array<float, 12>{0, 0, 0, 0, 0, 2, 4, 0, 0, 2, 4, 0});
}
