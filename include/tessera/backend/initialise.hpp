// backend/initialise.hpp: initial weights, a function of seed, layer and logical index: the same on every grid and
// backend.
//
// May know: base, kernel/random.hpp.
// Example: initialise_weights(w.data(), {{16, 4, 3, 3, 3}}, Init::he_normal, seed, layer);
#pragma once

#include <cmath>
#include <tessera/kernel/random.hpp>

namespace tessera {

/// How weights start. fan_in and fan_out count the kernel's cells.
enum class Init : int {
  glorot_uniform, ///< U(-a, a), a = sqrt(6 / (fan_in + fan_out)): Glorot and Bengio 2010
  he_normal,      ///< N(0, 2 / fan_in): He et al. 2015
  zeros
};

/// Fills weights (co, ci, kd, kh, kw), stored channels-last; element i in logical row-major order uses random number i.
template <class T>
void initialise_weights(T* at, const Extents<5>& e, Init how, std::uint64_t seed, std::uint64_t layer) {
  const View<T, 5> w(at, e);
  const double cells = double(e[2] * e[3] * e[4]), fan_in = double(e[1]) * cells, fan_out = double(e[0]) * cells;
  constexpr std::uint64_t weights_stream = std::uint64_t{1} << 32; // apart from the dropout masks of the same layer
  const kernel::PhiloxKey key = kernel::random_key(seed, weights_stream + layer);
  std::uint64_t i = 0;
  for_each_index(whole(e), [&](const Index<5>& at_index) {
    double v = 0;
    switch (how) {
    case Init::glorot_uniform:
      v = (2 * (double(kernel::random_word(key, i)) + 0.5) * 0x1p-32 - 1) * std::sqrt(6 / (fan_in + fan_out));
      break;
    case Init::he_normal: v = kernel::normal(key, i) * std::sqrt(2 / fan_in); break;
    case Init::zeros: break;
    }
    w[at_index] = static_cast<T>(v);
    ++i;
  });
}

} // namespace tessera
