// train/optimizer.hpp: sgd and adam: what they are called, what they keep per parameter, one fused update.
//
// An optimizer is a small value; its moments live in the Trainer, which calls update() for each piece of the parameters
// whose gradient has arrived.
//
// May know: kernel and backend (through Backend).
// Example: adam{.rate = 5e-4, .beta2 = 0.99}
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

/// p -= rate * v with v = momentum * v + g, as in PyTorch.
struct sgd {
  double rate = 1e-2, momentum = 0;

  static constexpr std::string_view name = "sgd";
  static constexpr std::array<std::string_view, 1> moments{"velocity"};

  template <class Backend, class T>
  void update(std::span<T> p, std::span<const T> g, std::array<T*, 1> m, std::uint64_t, double factor) const {
    Backend::sgd(p, g, std::span<T>(m[0], p.size()), rate * factor, momentum);
  }
};

/// Kingma and Ba 2015, algorithm 1, with bias correction and epsilon outside the square root. `step` counts from 0.
struct adam {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;

  static constexpr std::string_view name = "adam";
  static constexpr std::array<std::string_view, 2> moments{"first_moment", "second_moment"};

  template <class Backend, class T>
  void update(std::span<T> p, std::span<const T> g, std::array<T*, 2> m, std::uint64_t step, double factor) const {
    Backend::adam(p, g, std::span<T>(m[0], p.size()), std::span<T>(m[1], p.size()), rate * factor, beta1, beta2,
                  epsilon, step + 1);
  }
};

} // namespace tessera
