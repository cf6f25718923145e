// bench/fma_peak.hpp: the hardware limit that everything is compared with: fused multiply-adds per second of one core.
#pragma once

#include <chrono>
#include <cstdint>

namespace bench {

/// Lanes of the widest vectors of the target.
#if defined(__AVX512F__)
inline constexpr int lanes = 16;
#elif defined(__AVX__)
inline constexpr int lanes = 8;
#else
inline constexpr int lanes = 4;
#endif
template <int L> struct VectorOf { using type [[gnu::vector_size(L * sizeof(float))]] = float; };

/// GFLOP/s (2 per lane and multiply-add) of chains that are independent and fill the pipelines, over about `seconds`.
template <int L = lanes> double fma_peak(double seconds = 0.2) {
  using Vector = typename VectorOf<L>::type;
  constexpr int chains = 12;
  Vector a[chains];
  for (int k = 0; k < chains; ++k) a[k] = Vector{} + 1.0F + static_cast<float>(k);
  const Vector b = Vector{} + 0.999F, c = Vector{} + 1e-3F;
  constexpr long round = 200000;
  double best = 0, spent = 0;
  while (spent < seconds) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < round; ++i)
      for (int k = 0; k < chains; ++k) a[k] = a[k] * b + c;
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    spent += s;
    const double rate = 2.0 * L * chains * double(round) / s / 1e9;
    best = rate > best ? rate : best;
  }
  for (int k = 0; k < chains; ++k) asm volatile("" : : "x"(a[k])); // the results count as used
  return best;
}

} // namespace bench
