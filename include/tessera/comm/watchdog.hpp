// comm/watchdog.hpp: what every transport shares: the description of an operation, its argument checks, and the limit
// on how long a wait may take.
//
// The limit comes from the environment variable TESSERA_TIMEOUT, in seconds. Unset or 0 means no limit. A wait that
// takes longer throws comm_error, which names the operation, the peer, the tag, the bytes, this rank and the size of
// its group.
//
// May know: base.
// Example: TimeLimit limit(2.0);  comm.irecv(peer, 7, data).wait();   // throws comm_error after two seconds
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <tessera/base/error.hpp>

namespace tessera::comm {

/// Seconds in `value`, the text of TESSERA_TIMEOUT. Null and "" mean 0: no limit. Throws usage_error on anything else
/// that is not a number >= 0.
inline double parse_timeout(const char* value) {
  if (!value || !*value) return 0;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  TESSERA_REQUIRE(end != value && *end == '\0' && seconds >= 0 && seconds <= std::numeric_limits<double>::max(),
                  "TESSERA_TIMEOUT=", value, " is not a number of seconds; give a number >= 0, where 0 means no limit");
  return seconds;
}

namespace detail {
inline std::atomic<double>& timeout_setting() {
  static std::atomic<double> seconds = parse_timeout(std::getenv("TESSERA_TIMEOUT"));
  return seconds;
}
} // namespace detail

/// How long a wait may take, in seconds; 0 means no limit.
inline double timeout() { return detail::timeout_setting().load(std::memory_order_relaxed); }
inline void set_timeout(double seconds) {
  TESSERA_REQUIRE(seconds >= 0, "set_timeout(", seconds, "): give seconds >= 0, where 0 means no limit");
  detail::timeout_setting().store(seconds, std::memory_order_relaxed);
}

/// Sets the limit for the whole process while it lives.
class [[nodiscard]] TimeLimit {
public:
  explicit TimeLimit(double seconds) : before_(timeout()) { set_timeout(seconds); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  ~TimeLimit() { detail::timeout_setting().store(before_, std::memory_order_relaxed); }

private:
  double before_;
};

namespace detail {

constexpr int no_peer = -1;
constexpr int no_tag = -1;

/// What an error message says about an operation. Costs nothing until it is printed.
struct Operation {
  std::string_view what, transport;
  int rank = 0, size = 1;
  int peer = no_peer, tag = no_tag;
  std::size_t bytes = 0;

  /// "irecv from rank 3, tag 7, 1024 bytes (this is rank 0 of 4, transport mpi)"
  std::string str() const {
    std::string s(what);
    if (peer != no_peer) s += text(what == "irecv" ? " from" : what == "isend" ? " to" : " with root", " rank ", peer);
    if (tag != no_tag) s += text(", tag ", tag);
    return s + text(", ", bytes, " bytes (this is rank ", rank, " of ", size, ", transport ", transport, ")");
  }
};

inline void check_peer(const Operation& op) {
  TESSERA_REQUIRE(op.peer >= 0 && op.peer < op.size, op, ": there is no such rank; ranks are 0 to ", op.size - 1);
}
inline void check_tag(const Operation& op, int largest) {
  TESSERA_REQUIRE(op.tag >= 0 && op.tag <= largest, op, ": the tag must lie in 0 to ", largest);
}
inline void check_color(int color) { TESSERA_REQUIRE(color >= 0, "split(", color, "): the colour must be at least 0"); }
/// A message has arrived with `got` bytes.
inline void check_received(const Operation& op, std::size_t got) {
  if (got != op.bytes)
    throw comm_error(text(op, ": the message that arrived has ", got, " bytes; both sides must agree on the size"));
}

/// Started when a wait begins; throws once it has lasted longer than the limit.
class Watchdog {
public:
  void check(const Operation& op) const {
    const double limit = timeout();
    if (limit <= 0) return;
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (waited > limit)
      throw comm_error(text(op, ": not complete after ", waited, " s; TESSERA_TIMEOUT allows ", limit,
                            " s. The other side never called the matching operation, or it is much slower"));
  }

private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Tells whether the stack is being unwound by an exception that was thrown after this object was made. A pending
/// operation asks, because a rank that has failed must not wait for peers which may be waiting for it.
class Unwinding {
public:
  explicit operator bool() const noexcept { return std::uncaught_exceptions() > before_; }

private:
  int before_ = std::uncaught_exceptions();
};

} // namespace detail
} // namespace tessera::comm
