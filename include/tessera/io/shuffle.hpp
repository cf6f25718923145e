// io/shuffle.hpp: random choices about samples. They depend on seed, epoch and sample alone, never on the process grid.
//
// May know: kernel (the counter-based generator).
// Example: for (long id : shuffled(split.train, seed, epoch)) ...
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <tessera/kernel/random.hpp>
#include <utility>
#include <vector>

namespace tessera::io {

/// What a random number is for: choices of different kinds are independent of each other.
enum class Stream : std::uint64_t { split = 0x53504c4954, order = 0x4f52444552, symmetry = 0x53594d4d };

/// A number in 0 <= r < bound that depends on nothing but its arguments. The bias is below bound / 2^64.
inline std::uint64_t random_below(std::uint64_t bound, std::uint64_t seed, Stream stream, std::uint64_t epoch,
                                  std::uint64_t index) {
  const auto key = kernel::random_key(seed, static_cast<std::uint64_t>(stream), epoch);
  const auto w = kernel::random_words(key, index);
  return (std::uint64_t{w[0]} << 32 | w[1]) % bound;
}

/// The numbers 0 to n-1 in random order (Fisher and Yates, Durstenfeld's form).
inline std::vector<long> permutation(long n, std::uint64_t seed, Stream stream, std::uint64_t epoch) {
  std::vector<long> p(static_cast<std::size_t>(n));
  std::iota(p.begin(), p.end(), 0L);
  for (std::size_t i = p.size(); i > 1; --i) std::swap(p[i - 1], p[random_below(i, seed, stream, epoch, i)]);
  return p;
}

/// `ids` in the order of an epoch: every id once.
inline std::vector<long> shuffled(std::span<const long> ids, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<long> out;
  for (long i : permutation(static_cast<long>(ids.size()), seed, Stream::order, epoch))
    out.push_back(ids[static_cast<std::size_t>(i)]);
  return out;
}

} // namespace tessera::io
