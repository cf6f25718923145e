// What happens when something goes wrong: the watchdog, ranks that die, errors that all ranks agree on.
#include "../support/ranks.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <tessera/comm/agree.hpp>

using namespace tessera;
using test::all_throw;
using test::on_ranks;

namespace {

template <class F> std::string text_of_comm_error(const F& f) {
  try {
    f();
  } catch (const comm_error& e) { return e.what(); }
  return "nothing was thrown";
}
/// Thread-ranks return together: one that returned would be noticed by the others before the watchdog.
class Exit {
public:
  void wait(const Communicator& c, int leaving) {
    if (c.transport() != "threads") return;
    std::atomic<int>& here = here_[static_cast<std::size_t>(c.size())];
    ++here;
    while (here < leaving) std::this_thread::yield();
  }

private:
  std::array<std::atomic<int>, 9> here_{}; // by size of the group
};
bool contains(const std::string& s, std::string_view part) { return s.find(part) != s.npos; }

} // namespace

TEST_CASE("watchdog: a message that never comes") {
  const comm::TimeLimit limit(0.3);
  Exit exit;
  on_ranks({2, 3}, [&exit](const Communicator& c) {
    std::array<double, 4> in{};
    const int from = (c.rank() + 1) % c.size();
    const std::string told = text_of_comm_error([&] { c.irecv(from, 6, std::span<double>(in)).wait(); });
    CHECK_MESSAGE(contains(told, text("irecv from rank ", from, ", tag 6, 32 bytes (this is rank ", c.rank(), " of ",
                                      c.size(), ", transport ", c.transport(), "): not complete after ")),
                  told);
    CHECK_MESSAGE(contains(told, "TESSERA_TIMEOUT allows 0.3"), told);
    exit.wait(c, c.size());
  });
}

TEST_CASE("watchdog: a collective that one rank skips") {
  const comm::TimeLimit limit(0.3);
  Exit exit;
  on_ranks({2, 3}, [&exit](const Communicator& c) {
    const Communicator group = c.split(0);
    if (c.rank() > 0) {
      const std::string told = text_of_comm_error([&] { group.barrier(); });
      CHECK_MESSAGE(contains(told, "barrier, 0 bytes (this is rank "), told);
      CHECK_MESSAGE(contains(told, "not complete after"), told);
      exit.wait(c, c.size() - 1);
    } else {
      // Comes too late. A thread-rank finds the others gone; MPI may still complete the barrier.
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      (void)text_of_comm_error([&] { group.barrier(); });
    }
  });
}

TEST_CASE("watchdog: the limit comes from TESSERA_TIMEOUT, and nonsense is refused") {
  CHECK(comm::parse_timeout(nullptr) == 0);
  CHECK(comm::parse_timeout("") == 0);
  CHECK(comm::parse_timeout("0") == 0);
  CHECK(comm::parse_timeout("2.5") == 2.5);
  for (const char* bad : {"soon", "10s", "-1", "nan", "inf"})
    CHECK_THROWS_AS((void)comm::parse_timeout(bad), usage_error);
  const double before = comm::timeout();
  {
    const comm::TimeLimit limit(7);
    CHECK(comm::timeout() == 7);
  }
  CHECK(comm::timeout() == before);
}

TEST_CASE("thread-ranks: a rank that dies releases those that wait, and its own exception comes out") {
  for (const int ranks : {2, 3, 4, 6, 8})
    for (const int dying : {0, ranks - 1}) {
      std::atomic<int> released = 0;
      const auto body = [&](const Communicator& c) {
        if (c.rank() == dying) throw io_error("disk on fire");
        int x = 0;
        const auto wait = [&] {
          switch (c.rank() % 4) {
          case 0: c.irecv(dying, 0, std::span(&x, 1)).wait(); break;
          case 1: c.barrier(); break;
          case 2: c.all_reduce(1.0); break;
          default: (void)c.split(0);
          }
        };
        const std::string told = text_of_comm_error(wait);
        released += contains(told, text("rank ", dying, " has failed: disk on fire"));
        throw comm::PeerLost(told);
      };
      CHECK_THROWS_WITH_AS(run_threads(ranks, body), "disk on fire", io_error);
      CHECK(released == ranks - 1);
    }
}

TEST_CASE("thread-ranks: of several exceptions the lowest rank's comes out") {
  for (int repeat = 0; repeat < 20; ++repeat)
    CHECK_THROWS_WITH_AS(run_threads(4, [](const Communicator& c) { throw io_error(text("I am ", c.rank())); }),
                         "I am 0", io_error);
}

TEST_CASE("thread-ranks: waiting for a rank that has returned is an error at once") {
  run_threads(3, [](const Communicator& c) {
    if (c.rank() == 2) return;
    int x = 0;
    const std::string message = text_of_comm_error([&] { c.irecv(2, 0, std::span(&x, 1)).wait(); });
    CHECK_MESSAGE(contains(message, "rank 2 of the group has returned"), message);
    const std::string collective = text_of_comm_error([&] { c.barrier(); });
    CHECK_MESSAGE(contains(collective, " of the group has returned"), collective);
  });
}

TEST_CASE("thread-ranks: what was sent before the sender returned still arrives") {
  for (int repeat = 0; repeat < 50; ++repeat)
    run_threads(2, [](const Communicator& c) {
      int x = 41;
      if (c.rank() == 0) return c.isend(1, 0, std::span(&x, 1)).wait();
      c.irecv(0, 0, std::span(&x, 1)).wait();
      CHECK(x == 41);
    });
}

TEST_CASE("an exception passes through pending operations without waiting for them") {
  on_ranks([](const Communicator& c) {
    const Communicator group = c.split(0);
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    std::vector<int> in(100, -1), out(100, c.rank());
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(
        [&] {
          Request r = c.irecv(from, 11, std::span(in)); // nobody sends it
          throw io_error("meanwhile");
        }(),
        io_error);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20)); // the watchdog's limit is 60
    c.barrier();
    // The receive was taken back: the next message goes to the next receive.
    std::vector<int> fresh(100, -1);
    Request r = c.irecv(from, 11, std::span(fresh)), s = c.isend(to, 11, std::span(out));
    r.wait(), s.wait();
    CHECK(fresh == std::vector<int>(100, from));
    CHECK(in == std::vector<int>(100, -1));
  });
}

TEST_CASE("agree: one rank's error is thrown by all, the lowest rank's if there are several") {
  on_ranks([](const Communicator& c) {
    agree(c, "");
    for (int first = 0; first < c.size(); ++first)
      for (int last : {first, c.size() - 1}) {
        const bool fails = c.rank() == first || c.rank() == last;
        const std::string told =
            all_throw<io_error>(c, [&] { agree(c, fails ? text("a.h5: no dataset x, seen by ", c.rank()) : ""); });
        CHECK(told == text("a.h5: no dataset x, seen by ", first, " (on rank ", first, " of ", c.size(), ")"));
      }
    agree(c, "");
  });
}

TEST_CASE("agree: runs a function, and throws the type it is told to") {
  on_ranks([](const Communicator& c) {
    int calls = 0;
    agree(c, [&] { ++calls; });
    CHECK(calls == 1);
    const int last = c.size() - 1;
    const std::string told = all_throw<backend_error>(c, [&] {
      agree<backend_error>(c, [&] {
        if (c.rank() == last) throw std::bad_alloc();
      });
    });
    CHECK(told == text("std::bad_alloc (on rank ", last, " of ", c.size(), ")"));
  });
}
