// base/error.hpp: what Tessera throws, and the check that guards every API boundary.
//
// Four kinds, all derived from tessera::error:
//   usage_error    the caller asked for something impossible; found from facts every rank knows, before any message
//   io_error       a file, a dataset or a disk failed; agreed between ranks, so all of them throw
//   comm_error     a peer is gone, a message did not match, a wait took longer than the watchdog allows
//   backend_error  a vendor library returned an error code
//
// May know: the standard library.
// Example: TESSERA_REQUIRE(parts > 0, "Partition: ", parts, " parts; give at least one");
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct usage_error : error {
  using error::error;
};
struct io_error : error {
  using error::error;
};
struct comm_error : error {
  using error::error;
};
struct backend_error : error {
  using error::error;
};

namespace detail {
[[gnu::noinline]] inline void append(std::string& s, std::string_view v) { s += v; }
[[gnu::noinline]] inline void append(std::string& s, const std::string& v) { s += v; }
[[gnu::noinline]] inline void append(std::string& s, const char* v) { s += v; }
[[gnu::noinline]] inline void append(std::string& s, char v) { s += v; }
[[gnu::noinline]] inline void append(std::string& s, bool v) { s += v ? "true" : "false"; }
template <class T>
requires requires(const T& v) { std::to_string(v); }
void append(std::string& s, const T& v) { s += std::to_string(v); }
template <class T>
requires requires(const T& v) { v.str(); }
void append(std::string& s, const T& v) { s += v.str(); }

[[noreturn, gnu::noinline, gnu::cold]] inline void fail_usage(const std::string& text, std::string_view file,
                                                              int line) {
  if (auto cut = file.rfind("tessera/"); cut != file.npos) file.remove_prefix(cut);
  throw usage_error(text + " [" + std::string(file) + ":" + std::to_string(line) + "]");
}
} // namespace detail

/// Concatenates its arguments (strings, characters, numbers, anything with `.str()`) into one message.
/// Kept out of line: messages are built when something is wrong, and inlined they would be most of the code.
template <class... Args> [[gnu::noinline, gnu::cold]] std::string text(const Args&... args) {
  std::string s;
  (detail::append(s, args), ...);
  return s;
}

} // namespace tessera

/// Throws `usage_error` with the message built from the remaining arguments unless `condition` holds. Always on.
/// A macro because the message must not be built when the condition holds (and clang 14 lacks std::source_location).
#define TESSERA_REQUIRE(condition, ...)                                                                                \
  do {                                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                                     \
      ::tessera::detail::fail_usage(::tessera::text(__VA_ARGS__), __FILE__, __LINE__);                                 \
  } while (false)
