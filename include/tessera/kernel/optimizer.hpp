// kernel/optimizer.hpp: weight updates over flat, equally long arrays, each in one pass over memory.
//
// May know: base.
// Example: adam<float>(p, g, m, v, {.rate = 1e-3}, step);   // step counts from 1
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <tessera/base/error.hpp>

namespace tessera::kernel {

struct SgdOptions {
  double rate = 0, momentum = 0;
  double gradient_scale = 1; ///< multiplies the gradients first
};
struct AdamOptions {
  double rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double gradient_scale = 1; ///< multiplies the gradients first
};

namespace detail {
/// sqrt(v) for v >= 0 to one unit in the last place (absolute error below 1e-19 for subnormal v). In plain arithmetic,
/// because std::sqrt must set errno, which keeps compilers from vectorising the loop around it: a magic number as first
/// guess of 1/sqrt(v), two Newton steps, and one correction of the root itself.
inline float square_root(float v) {
  const auto bits = std::bit_cast<std::int32_t>(v);
  float y = std::bit_cast<float>(0x5F3759DF - (bits >> 1));
  for (int step = 0; step < 2; ++step) y *= 1.5F - 0.5F * v * y * y;
  float root = v * y;
  root += 0.5F * y * (v - root * root);
  // Infinity stays what it is; selected by a mask, because a branch would keep the loop scalar.
  const std::int32_t finite = bits < 0x7F800000 ? -1 : 0;
  return std::bit_cast<float>((std::bit_cast<std::int32_t>(root) & finite) | (bits & ~finite));
}
inline double square_root(double v) { return std::sqrt(v); }
} // namespace detail

/// velocity = momentum * velocity + g;  p -= rate * velocity.
template <class T> void sgd(std::span<T> p, std::span<const T> g, std::span<T> velocity, const SgdOptions& o) {
  TESSERA_REQUIRE(g.size() == p.size() && velocity.size() == p.size(), "sgd: ", p.size(), " parameters, ", g.size(),
                  " gradients, ", velocity.size(), " velocities");
  const T rate = static_cast<T>(o.rate), momentum = static_cast<T>(o.momentum),
          scale = static_cast<T>(o.gradient_scale);
  T* __restrict pp = p.data();
  T* __restrict pv = velocity.data();
  const T* __restrict pg = g.data();
  for (std::size_t i = 0; i < p.size(); ++i) {
    pv[i] = momentum * pv[i] + scale * pg[i];
    pp[i] -= rate * pv[i];
  }
}

/// Adam (Kingma and Ba 2015, algorithm 1), t = 1 in the first step:
///   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2,  p -= rate * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon).
template <class T>
void adam(std::span<T> p, std::span<const T> g, std::span<T> m, std::span<T> v, const AdamOptions& o, std::uint64_t t) {
  TESSERA_REQUIRE(g.size() == p.size() && m.size() == p.size() && v.size() == p.size(), "adam: ", p.size(),
                  " parameters, ", g.size(), " gradients, ", m.size(), " and ", v.size(), " moments");
  TESSERA_REQUIRE(t >= 1, "adam: steps count from 1");
  const T b1 = static_cast<T>(o.beta1), b2 = static_cast<T>(o.beta2), epsilon = static_cast<T>(o.epsilon);
  const T a1 = static_cast<T>(1 - o.beta1), a2 = static_cast<T>(1 - o.beta2), scale = static_cast<T>(o.gradient_scale);
  const T rate = static_cast<T>(o.rate / (1 - std::pow(o.beta1, static_cast<double>(t))));
  const T correction = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t))));
  T* __restrict pp = p.data();
  T* __restrict pm = m.data();
  T* __restrict pv = v.data();
  const T* __restrict pg = g.data();
  for (std::size_t i = 0; i < p.size(); ++i) {
    const T gradient = scale * pg[i];
    pm[i] = b1 * pm[i] + a1 * gradient;
    pv[i] = b2 * pv[i] + a2 * gradient * gradient;
    pp[i] -= rate * pm[i] / (detail::square_root(pv[i]) * correction + epsilon);
  }
}

} // namespace tessera::kernel
