// support/ranks.hpp: runs the body of a test on ranks.
//
// One binary serves both transports. Started by mpirun with several ranks, on_ranks calls the body once, on the MPI
// world. Started alone, it calls the body on thread-ranks for each number of ranks in turn, and for one rank on MPI as
// well.
//
// In a body: CHECK and REQUIRE work on every rank. SUBCASE does not; it belongs outside on_ranks. INFO and CAPTURE work
// for CHECK; where several thread-ranks may throw at once, give the facts in the message of a CHECK instead, because
// doctest collects the INFO of thrown exceptions without a lock.
//
// Example: on_ranks({1, 2, 4}, [](const Communicator& c) { CHECK(c.all_reduce(1) == c.size()); });
#pragma once

#include <algorithm>
#include <doctest/doctest.h>
#include <initializer_list>
#include <string>
#include <tessera/comm/environment.hpp>
#include <tessera/comm/threads.hpp>
#include <vector>

namespace tessera::test {

/// The Environment of the test program; main.cpp makes it.
const Environment& environment();

namespace detail {

/// Calls the body on one rank; returns what it threw, after a failure that says on which rank.
template <class F> std::exception_ptr call(const Communicator& c, const F& body) {
  INFO("rank ", c.rank(), " of ", c.size(), ", transport ", std::string(c.transport()));
  std::exception_ptr thrown;
  try {
    body(c);
  } catch (const comm::PeerLost&) { // the rank that was lost tells the cause
    thrown = std::current_exception();
  } catch (const std::exception& e) {
    thrown = std::current_exception();
    FAIL_CHECK("threw: ", std::string(e.what()));
  } catch (...) { // a REQUIRE, which has reported itself
    thrown = std::current_exception();
  }
  return thrown;
}

template <class F> void on_threads(int ranks, const F& body) {
  run_threads(ranks, [&](const Communicator& c) {
    if (const auto thrown = call(c, body)) std::rethrow_exception(thrown);
  });
}

/// All ranks leave together. If one throws while others stay in the body, the program ends: they would wait for ever,
/// or take the messages of the next test for those of this one.
template <class F> void on_world(const F& body) {
  const Communicator& world = environment().world();
  const auto thrown = call(world, body);
  const std::string mine = thrown ? "threw" : "";
  // Not comm::timeout(), which a test may have shortened.
  const double limit = comm::parse_timeout(std::getenv("TESSERA_TIMEOUT"));
  if (!environment().settlement().settle(mine, thrown ? Environment::patience : limit))
    world.abort(text("test: rank ", world.rank(),
                     thrown ? " threw while others did not" : " waited in vain for the others",
                     " at the end of a body"));
  if (thrown) std::rethrow_exception(thrown);
}

} // namespace detail

/// Calls `body(Communicator)` on every rank, for each number of ranks in `sizes` that this program can make.
template <class F> void on_ranks(std::initializer_list<int> sizes, const F& body) {
  const int world = environment().world().size();
  const bool listed = std::ranges::find(sizes, world) != sizes.end();
  if (listed) detail::on_world(body);
  if (world == 1)
    for (const int ranks : sizes) detail::on_threads(ranks, body);
}
template <class F> void on_ranks(const F& body) { on_ranks({1, 2, 3, 4, 6, 8}, body); }

/// Collective. Checks that `f()` throws an E on every rank, with the same text, and returns the text.
template <class E, class F> std::string all_throw(const Communicator& c, const F& f) {
  std::string told;
  try {
    f();
    FAIL_CHECK("nothing was thrown");
  } catch (const E& e) { told = e.what(); } catch (const std::exception& e) {
    FAIL_CHECK("another kind of exception was thrown: ", std::string(e.what()));
  }
  const auto all = c.all_gather(std::span<const char>(told));
  const std::string first(all[0].begin(), all[0].end());
  CHECK(told == first);
  return first;
}

} // namespace tessera::test
