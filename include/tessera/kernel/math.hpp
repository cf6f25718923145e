// kernel/math.hpp: exp, tanh and their kin for numbers and for vectors of numbers, by one formula for both.
//
// In float they are polynomials without branches, so loops over them run as vectors, and an element gets the same value
// whether it falls into a vector or into the rest of a row. Errors are a few units in the last place; exp below the
// smallest normal number is 0. In double they are the standard library's, element by element.
//
// May know: the standard library, kernel/simd.hpp.
// Example: map_elements(y, count, [](auto v) { return sigmoid(v); }, x);
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tessera/kernel/simd.hpp>

namespace tessera::kernel {

namespace detail {

// The bits of floats as unsigned numbers, and back.
inline std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }
inline Simd<std::uint32_t> bits(const Simd<float>& v) { return std::bit_cast<Simd<std::uint32_t>>(v); }
inline float from_bits(std::uint32_t v) { return std::bit_cast<float>(v); }
inline Simd<float> from_bits(const Simd<std::uint32_t>& v) { return std::bit_cast<Simd<float>>(v); }

/// c[0] + c[1] v + c[2] v^2 + ...
template <class V, std::size_t N> V polynomial(const V& v, const float (&c)[N]) {
  V sum = V{} + c[N - 1];
  for (std::size_t i = N - 1; i-- > 0;) sum = sum * v + c[i];
  return sum;
}

/// v = n log 2 + r with |r| <= log(2) / 2 and exp(r) = 1 + rest. Needs |v| < 89.
template <class V> struct Reduced {
  decltype(bits(V{})) exponent; ///< n where the exponent of a float lies
  V rest;
  explicit Reduced(const V& v) {
    constexpr float to_integer = 12582912.F; // 3 * 2^22: adding it leaves n in the low bits
    const V shifted = v * 1.44269504F + to_integer, n = shifted - to_integer;
    const V r = (v - n * 0.693359375F) + n * 2.12194440e-4F; // log 2 in two parts, the first exact times n
    exponent = bits(shifted) << 23;
    rest = r + r * r * polynomial(r, {0.50000001F, 0.166665129F, 0.0416661873F, 0.00836959829F, 0.00139517185F});
  }
};

template <class V> V exp_float(const V& v) {
  constexpr float lowest = -87.33654F, highest = 88.72283F; // between them the result is a normal number
  const V above = v < lowest ? V{} + lowest : v;
  const Reduced<V> x(above > highest ? V{} + highest : above);
  const V power = from_bits(bits(V(1.F + x.rest)) + x.exponent);
  const V ends = v < lowest ? V{} : V{} + std::numeric_limits<float>::infinity();
  return v != v ? v : ((v < lowest) | (v > highest)) ? ends : power;
}
/// exp(v) - 1 for v <= 0; exact to the last digits for small v too.
template <class V> V exp_minus_1_float(const V& v) {
  const Reduced<V> x(v < -80.F ? V{} - 80.F : v);
  const V scale = from_bits(x.exponent + 0x3F800000U);
  return scale * x.rest + (scale - 1.F);
}
/// -1 for what is below 0, else 1.
template <class V> V sign(const V& v) { return v < V{} ? V{} - 1.F : V{} + 1.F; }

template <class V> V tanh_float(const V& v) {
  const V size = sign(v) * v, square = v * v;
  const V near =
      v + v * square * polynomial(square, {-0.333332629F, 0.133308998F, -0.053692968F, 0.0204833161F, -0.00552863365F});
  const V far = 1.F - 2.F / (exp_float(V(2.F * size)) + 1.F);
  return size < 0.625F ? near : sign(v) * far;
}
/// erfc(size) / exp(-size^2) / 2 for size >= 0.
template <class V> V half_scaled_erfc(const V& size) {
  const V t = 1.F / (1.F + 0.4F * size);
  return 0.5F * t *
         polynomial(t, {0.225675883F, 0.225674011F, 0.207641306F, 0.17152419F, 0.12000168F, 0.0810286358F,
                        -0.0414714212F, 0.130993392F, -0.230577648F, 0.138336256F, -0.0288262898F});
}

template <class F> Simd<double> each(const Simd<double>& v, const F& f) {
  Simd<double> to{};
  for (int i = 0; i < simd_lanes<double>; ++i) to[i] = f(v[i]);
  return to;
}

} // namespace detail

/// The normal distribution: the area below v, and its density at v.
template <class V> struct Normal { V area, density; };

inline float exp(float v) { return detail::exp_float(v); }
inline Simd<float> exp(const Simd<float>& v) { return detail::exp_float(v); }
inline double exp(double v) { return std::exp(v); }
inline Simd<double> exp(const Simd<double>& v) {
  return detail::each(v, [](double e) { return std::exp(e); });
}

/// exp(v) - 1 where v <= 0; of no use elsewhere.
inline float exp_minus_1(float v) { return detail::exp_minus_1_float(v); }
inline Simd<float> exp_minus_1(const Simd<float>& v) { return detail::exp_minus_1_float(v); }
inline double exp_minus_1(double v) { return std::expm1(v); }
inline Simd<double> exp_minus_1(const Simd<double>& v) {
  return detail::each(v, [](double e) { return std::expm1(e); });
}

inline float tanh(float v) { return detail::tanh_float(v); }
inline Simd<float> tanh(const Simd<float>& v) { return detail::tanh_float(v); }
inline double tanh(double v) { return std::tanh(v); }
inline Simd<double> tanh(const Simd<double>& v) {
  return detail::each(v, [](double e) { return std::tanh(e); });
}

/// 1 / (1 + exp(-v))
template <class V> V sigmoid(const V& v) { return 1 / (1 + exp(V(-v))); }
/// sigmoid(v), and 1 - sigmoid(v) with all its digits.
template <class V> struct Logistic {
  V value, rest;
  explicit Logistic(const V& v) {
    const V e = exp(V(v < V{} ? v : -v)), larger = 1 / (1 + e), smaller = e * larger;
    value = v < V{} ? smaller : larger, rest = v < V{} ? larger : smaller;
  }
};

namespace detail {
template <class V> Normal<V> normal_float(const V& v) {
  const V size = sign(v) * v, bell = exp_float(V(-0.5F * v * v));
  const V tail = bell * half_scaled_erfc(V(size * 0.707106781F));
  return {v < V{} ? tail : 1.F - tail, bell * 0.398942280F};
}
} // namespace detail

inline Normal<float> normal_distribution(float v) { return detail::normal_float(v); }
inline Normal<Simd<float>> normal_distribution(const Simd<float>& v) { return detail::normal_float(v); }
inline Normal<double> normal_distribution(double v) {
  return {0.5 * std::erfc(-v * 0.70710678118654752), 0.39894228040143268 * std::exp(-0.5 * v * v)};
}
inline Normal<Simd<double>> normal_distribution(const Simd<double>& v) {
  return {detail::each(v, [](double e) { return normal_distribution(e).area; }),
          detail::each(v, [](double e) { return normal_distribution(e).density; })};
}

} // namespace tessera::kernel
