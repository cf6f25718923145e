// check/error.hpp: check_error, what a check throws, and the comparison of a rank's values with those of the whole.
//
// May know: everything.
// Example: catch (const check::check_error& e) { std::puts(e.what()); }
#pragma once

#include <bit>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string_view>
#include <tessera/base/view.hpp>
#include <tessera/comm/communicator.hpp>
#include <vector>

namespace tessera::check {

/// A layer broke its contract. what() says all of this in words; every rank throws the same.
struct check_error : error {
  std::string layer, grid; ///< its name; the grid, "" where none is involved
  std::string what_failed;
  Index<5> at{}; ///< the first index that differs: global, of the quantity that what_failed names
  double got = 0, want = 0;
  using error::error;
};

namespace detail {

/// Numbers that are none, told apart by where they were put before a layer ran.
enum class Poison : std::uint64_t { none, unwritten, beyond };
inline double poison(Poison p) { return std::bit_cast<double>(0x7ff8'0000'0000'0000ULL + std::uint64_t(p)); }
inline Poison poison_in(double v) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(v) & 0xffffULL;
  return !std::isnan(v) || bits > 2 ? Poison::none : static_cast<Poison>(bits);
}

/// Every digit that counts.
inline std::string digits(double v) {
  char line[32];
  std::snprintf(line, sizeof line, "%.12g", v);
  return line;
}

/// Where values first differ, in logical order.
struct Difference {
  long at = std::numeric_limits<long>::max();
  double got = 0, want = 0;
  bool any() const { return at != std::numeric_limits<long>::max(); }
};

inline long linear(const Index<5>& i, const Extents<5>& e) {
  long o = 0;
  for (int k = 0; k < 5; ++k) o = o * e[k] + i[k];
  return o;
}
inline Index<5> index_of(long at, const Extents<5>& e) {
  Index<5> i;
  for (int k = 4; k >= 0; --k) {
    i[k] = at % e[k];
    at /= e[k];
  }
  return i;
}

/// The first element of `part`, which stands at `origin` of the whole, that differs from `whole` (logical order) by
/// more than tolerance * max(1, |whole|).
inline Difference first_difference(const View<const double, 5>& part, const Index<5>& origin, const Extents<5>& e,
                                   const std::vector<double>& wanted, double tolerance) {
  Difference d;
  for_each_index(whole(part.extents), [&](const Index<5>& i) {
    if (d.any()) return;
    const long at = linear(i + origin, e);
    const double got = part[i], want = wanted[std::size_t(at)];
    if (!(std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want)))) d = {at, got, want};
  });
  return d;
}
/// The first of all ranks' differences. Collective.
inline Difference first_of_all(const Communicator& world, const Difference& mine) {
  Difference first;
  const std::vector<double> said{double(mine.at), mine.got, mine.want};
  for (const auto& d : world.all_gather(std::span<const double>(said)))
    if (d[0] < double(first.at)) first = {long(d[0]), d[1], d[2]};
  return first;
}

/// Throws. `where` begins the message, `words` say what to look at; an index or values that mean nothing are left out.
[[noreturn]] inline void fail(const std::string& layer, const std::string& grid, const std::string& where,
                              const std::string& what, const std::optional<Index<5>>& at, double got, double want,
                              const std::string& words) {
  const bool values = at && !std::isnan(got);
  check_error e(text("check::layer(", layer, ")", where, ": ", what, at ? " at " + at->str() : std::string(),
                     values ? text(": ", digits(got), " instead of ", digits(want)) : std::string(), "; ", words));
  e.layer = layer, e.grid = grid, e.what_failed = what, e.at = at.value_or(Index<5>{}), e.got = got, e.want = want;
  throw e;
}

/// A type as it is written, without the namespaces and classes around its parts.
template <class T> std::string type_name() {
  const std::string_view all = __PRETTY_FUNCTION__;
  const std::size_t from = all.find("T = ") + 4;
  std::string name(all.substr(from, all.find_first_of(";]", from) - from));
  for (const std::string_view nameless : {"{anonymous}::", "<unnamed>::", "(anonymous namespace)::"})
    for (std::size_t at = name.find(nameless); at != name.npos; at = name.find(nameless))
      name.erase(at, nameless.size());
  for (std::size_t at = name.find("::"); at != name.npos; at = name.find("::")) {
    std::size_t first = at;
    while (first > 0 && (std::isalnum(static_cast<unsigned char>(name[first - 1])) || name[first - 1] == '_')) --first;
    name.erase(first, at + 2 - first);
  }
  return name;
}

/// Numbers that differ from each other and from 0 by at least one part in their count, in random order: derivatives by
/// differences stay on one side of the kinks of activations and of maxima.
inline std::vector<double> scattered_numbers(std::uint64_t seed, std::size_t count) {
  std::vector<double> v(count);
  for (std::size_t i = 0; i < count; ++i) v[i] = 2 * (double(i) + 0.25) / double(count) - 1;
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15ULL + 1;
  for (std::size_t i = count; i > 1; --i) { // shuffled by a linear congruential generator (Knuth's MMIX constants)
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(v[i - 1], v[(state >> 33) % i]);
  }
  return v;
}

} // namespace detail
} // namespace tessera::check
