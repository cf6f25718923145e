// Environment: the world, foreign launchers, who prints an error; and what is special to MPI.
#include "../support/ranks.hpp"

#include <array>
#include <map>

using namespace tessera;
using test::on_ranks;

namespace {

struct Variables {
  std::map<std::string, std::string> values;
  const char* operator()(const char* name) const {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : it->second.c_str();
  }
};
bool contains(const std::string& s, std::string_view part) { return s.find(part) != s.npos; }

} // namespace

TEST_CASE("a foreign launcher: N processes, each in a world of one rank, are warned") {
  for (const char* name : {"PMI_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"}) {
    const auto warning = comm::launcher_mismatch(1, Variables{{{name, "4"}}});
    REQUIRE(warning);
    CHECK_MESSAGE(contains(*warning, text("the launcher started 4 processes (", name, "=4)")), *warning);
    CHECK_MESSAGE(contains(*warning, "world of one rank"), *warning);
    CHECK_MESSAGE(contains(*warning, "Use the mpirun of that library"), *warning);
    CHECK_FALSE(comm::launcher_mismatch(4, Variables{{{name, "4"}}}));
    CHECK_FALSE(comm::launcher_mismatch(2, Variables{{{name, "4"}}}));
    for (const char* harmless : {"1", "0", "", "many", "4(x2)"})
      CHECK_FALSE(comm::launcher_mismatch(1, Variables{{{name, harmless}}}));
  }
  CHECK_FALSE(comm::launcher_mismatch(1, Variables{}));
}

TEST_CASE("only the launcher's first process prints the warning") {
  CHECK(comm::first_of_launcher(Variables{}));
  CHECK(comm::first_of_launcher(Variables{{{"PMI_RANK", "0"}}}));
  CHECK_FALSE(comm::first_of_launcher(Variables{{{"PMI_RANK", "3"}}}));
  CHECK_FALSE(comm::first_of_launcher(Variables{{{"OMPI_COMM_WORLD_RANK", "1"}}}));
}

TEST_CASE("each different error is printed once, by the lowest rank that has it") {
  using comm::report_of;
  CHECK(report_of(0, {"a"}) == ": a");
  CHECK_FALSE(report_of(0, {""}));
  CHECK(report_of(0, {"a", "a", "a"}) == " on all 3 ranks: a");
  CHECK_FALSE(report_of(1, {"a", "a", "a"}));
  CHECK(report_of(1, {"", "b", ""}) == " on rank 1 of 3: b");
  CHECK_FALSE(report_of(0, {"", "b", ""}));
  CHECK(report_of(0, {"a", "b", "a"}) == " on rank 0 and 1 more of 3: a");
  CHECK(report_of(1, {"a", "b", "a"}) == " on rank 1 of 3: b");
}

TEST_CASE("settlement: complete when all come, nothing when one stays away") {
  // On thread-ranks, where a rank can stay away without ending the program.
  run_threads(3, [](const Communicator& c) {
    const comm::Settlement settlement(c);
    const auto told = settlement.settle(c.rank() == 1 ? "bad" : "", 0);
    CHECK(told == std::vector<std::string>{"", "bad", ""});
    if (c.rank() == 2)
      c.barrier();
    else {
      CHECK_FALSE(settlement.settle("worse", 0.1));
      c.barrier();
    }
  });
}

TEST_CASE("the world of the program") {
  const Communicator& world = test::environment().world();
  CHECK(world.rank() >= 0);
  CHECK(world.rank() < world.size());
  CHECK(world.transport() == (TESSERA_WITH_MPI ? "mpi" : "self"));
}

#if TESSERA_WITH_MPI
namespace {

/// Lets messages be cut at `count` elements while it lives.
struct CutAt {
  explicit CutAt(std::size_t count) { comm::detail::mpi_max_count = count; }
  CutAt(const CutAt&) = delete;
  CutAt& operator=(const CutAt&) = delete;
  ~CutAt() { comm::detail::mpi_max_count = before; }
  std::size_t before = comm::detail::mpi_max_count;
};

} // namespace

TEST_CASE("mpi: payloads above the count limit, cut at 1000 elements instead of 2^30") {
  const CutAt cut(1000);
  test::detail::on_world([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    for (const std::size_t bytes :
         {std::size_t{999}, std::size_t{1000}, std::size_t{1001}, std::size_t{3000}, std::size_t{1234567}}) {
      std::vector<std::uint8_t> out(bytes), in(bytes), expected(bytes);
      for (std::size_t i = 0; i < bytes; ++i) {
        out[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(c.rank()));
        expected[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(from));
      }
      const auto before = c.counters();
      Request r = c.irecv(from, 1, std::span(in)), s = c.isend(to, 1, std::span(out));
      r.wait(), s.wait();
      CHECK(in == expected);
      CHECK(c.counters() - before == comm::Counters{.messages = 1, .bytes = bytes});
    }
    std::vector<double> data(2500);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i) * (c.rank() + 1);
    c.iall_reduce(std::span(data)).wait();
    const double factor = c.size() * (c.size() + 1) / 2;
    bool equal = true;
    for (std::size_t i = 0; i < data.size(); ++i) equal = equal && data[i] == static_cast<double>(i) * factor;
    CHECK(equal);
    std::vector<int> told(2500, c.rank());
    c.broadcast(std::span(told), c.size() - 1);
    CHECK(told == std::vector<int>(2500, c.size() - 1));

    std::vector<std::byte> large(1001);
    CHECK_THROWS_AS((void)c.all_gather(std::span<const std::byte>(large)), usage_error);
  });
}

TEST_CASE("mpi: a large message of another size than the receive is an error too") {
  const CutAt cut(1000);
  test::detail::on_world([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    for (const std::size_t sent : {std::size_t{4500}, std::size_t{5500}}) {
      // Open MPI 4.1 writes a message that is too large past the end of the receive before it reports the error, unless
      // the message is small; so there is room behind.
      std::vector<std::byte> out(sent), in(6000);
      Request s = c.isend(to, 4, std::span(out)), r = c.irecv(from, 4, std::span(in).first(5000));
      CHECK_THROWS_AS(r.wait(), comm_error);
      s.wait();
    }
  });
}

TEST_CASE("mpi: tags up to the library's own bound, no further") {
  test::detail::on_world([](const Communicator& c) {
    const auto& end = dynamic_cast<comm::MpiEndpoint&>(c.endpoint());
    REQUIRE(end.largest_tag() >= 32767);
    int out = c.rank(), in = -1;
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    Request r = c.irecv(from, end.largest_tag(), std::span(&in, 1)),
            s = c.isend(to, end.largest_tag(), std::span(&out, 1));
    r.wait(), s.wait();
    CHECK(in == from);
    if (end.largest_tag() < std::numeric_limits<int>::max())
      CHECK_THROWS_AS(c.isend(to, end.largest_tag() + 1, std::span(&out, 1)).wait(), usage_error);
  });
}

TEST_CASE("mpi: the communicator behind a group, for other libraries") {
  test::detail::on_world([](const Communicator& c) {
    const Communicator half = c.split(c.rank() % 2);
    int size = 0;
    REQUIRE(MPI_Comm_size(comm::mpi_handle(half), &size) == MPI_SUCCESS);
    CHECK(size == half.size());
  });
  CHECK_THROWS_AS((void)comm::mpi_handle(Communicator()), usage_error);
}

TEST_CASE("mpi: an error code of the library becomes a backend_error that names the call") {
  CHECK_THROWS_AS(comm::detail::check_mpi(MPI_ERR_COMM, "MPI_Isend", "a test"), backend_error);
  test::detail::on_world([](const Communicator& c) {
    std::string told;
    try {
      comm::detail::check_mpi(MPI_Send(nullptr, 1, MPI_BYTE, c.size(), 0, comm::mpi_handle(c)), "MPI_Send",
                              "to nobody");
    } catch (const backend_error& e) { told = e.what(); }
    CHECK_MESSAGE(contains(told, "MPI_Send failed with code "), told);
    CHECK_MESSAGE(contains(told, "to nobody"), told);
  });
}
#endif
