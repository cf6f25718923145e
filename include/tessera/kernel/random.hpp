// kernel/random.hpp: random numbers that are a function of (seed, stream, step, index), never of who asks or in which
// order: the same mask, the same initial weights and the same shuffle on every process grid.
//
// Philox4x32-10 by Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// May know: the standard library, base.
// Example: const auto key = random_key(seed, layer, step);  float u = uniform(random_word(key, global_index));
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <tessera/base/error.hpp>
#include <tessera/base/view.hpp>

namespace tessera::kernel {

using PhiloxWords = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Philox4x32-10: four random words for a 128-bit counter (least word first) and a 64-bit key.
constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  constexpr int rounds = 10;
  for (int r = 0; r < rounds; ++r) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9; // the golden ratio
    key[1] += 0xBB67AE85; // sqrt(3) - 1
  }
  return counter;
}

namespace detail {
constexpr std::uint32_t low_word(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
constexpr std::uint32_t high_word(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }
} // namespace detail

/// The key of one independent sequence of random numbers. `stream` says what for (a layer, a parameter), `step` when.
constexpr PhiloxKey random_key(std::uint64_t seed, std::uint64_t stream, std::uint64_t step = 0) {
  using namespace detail;
  const PhiloxWords w =
      philox({low_word(stream), high_word(stream), low_word(step), high_word(step)}, {low_word(seed), high_word(seed)});
  return {w[0], w[1]};
}

/// Words 4*block to 4*block+3 of the sequence.
constexpr PhiloxWords random_words(const PhiloxKey& key, std::uint64_t block) {
  return philox({detail::low_word(block), detail::high_word(block), 0, 0}, key);
}
/// Word `index` of the sequence.
constexpr std::uint32_t random_word(const PhiloxKey& key, std::uint64_t index) {
  return random_words(key, index / 4)[index % 4];
}

/// 0 <= u < 1, a multiple of 2^-24: exact in float.
constexpr float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

/// Number `index` of a standard normal sequence (Box and Muller 1958); it uses words 2*index and 2*index+1 of `key`.
inline double normal(const PhiloxKey& key, std::uint64_t index) {
  const PhiloxWords w = random_words(key, index / 2);
  const std::size_t at = 2 * (index % 2);
  const double radius_from = (static_cast<double>(w[at]) + 1.0) * 0x1p-32; // in (0, 1]: the logarithm is finite
  const double angle = 2 * std::numbers::pi * 0x1p-32 * static_cast<double>(w[at + 1]);
  return std::sqrt(-2 * std::log(radius_from)) * std::cos(angle);
}

/// y = x / keep where the mask of the global element says so, else 0; mask and factor are the same in the backward pass
/// (give dy and dx). `origin` is the global index of the block's first element; elements are numbered in logical order
/// n,c,d,h,w of the `global` extents. y may be x.
template <class T>
void dropout(const View<const T, 5>& x, const View<T, 5>& y, const Index<5>& origin, const Extents<5>& global,
             double keep, std::uint64_t seed, std::uint64_t layer, std::uint64_t step) {
  TESSERA_REQUIRE(keep > 0 && keep <= 1, "dropout: keep probability ", keep, " is not in (0, 1]");
  TESSERA_REQUIRE(x.extents == y.extents, "dropout: input ", x.extents, " and output ", y.extents, " differ");
  for (int k = 0; k < 5; ++k)
    TESSERA_REQUIRE(origin[k] >= 0 && origin[k] + x.extents[k] <= global[k], "dropout: block ", x.extents, " at ",
                    origin, " leaves the global extents ", global);
  const PhiloxKey key = random_key(seed, layer, step);
  const T factor = static_cast<T>(1 / keep);
  const Extents<5>& e = x.extents;
  // c inside h keeps a row of memory in the cache while w, the dim whose neighbours share random words, runs innermost.
  for (long n = 0; n < e[0]; ++n)
    for (long d = 0; d < e[2]; ++d)
      for (long h = 0; h < e[3]; ++h)
        for (long c = 0; c < e[1]; ++c) {
          const long first = ((((n + origin[0]) * global[1] + c + origin[1]) * global[2] + d + origin[2]) * global[3] +
                              h + origin[3]) *
                                 global[4] +
                             origin[4];
          std::uint64_t block = ~std::uint64_t{0};
          PhiloxWords words{};
          for (long w = 0; w < e[4]; ++w) {
            const auto index = static_cast<std::uint64_t>(first + w);
            if (index / 4 != block) words = random_words(key, block = index / 4);
            const bool kept = static_cast<double>(uniform(words[index % 4])) < keep;
            y(n, c, d, h, w) = kept ? x(n, c, d, h, w) * factor : T{};
          }
        }
}

} // namespace tessera::kernel
