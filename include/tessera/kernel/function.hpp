// kernel/function.hpp: pointwise functions whose derivative needs their input: GELU, SiLU, and the user's own.
//
// May know: base, kernel/math.hpp, problem.hpp, span.hpp.
// Example: pointwise_forward<float>(Pointwise::gelu, x, y);   pointwise_backward<float>(Pointwise::gelu, x, dy, dx);
#pragma once

#include <tessera/kernel/math.hpp>
#include <tessera/kernel/span.hpp>

namespace tessera::kernel {

/// A function as code for numbers or vectors: `value(v)` and `derivative(v)`, both of its input.
/// v times the part of a normal distribution below v (Hendrycks and Gimpel 2016).
template <class T> struct Gelu {
  template <class V> V value(V v) const { return v * normal_distribution(v).area; }
  template <class V> V derivative(V v) const {
    const Normal<V> at = normal_distribution(v);
    return at.area + v * at.density;
  }
};
/// Its approximation v sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3), which is v (1 + tanh(u)) / 2.
template <class T> struct GeluTanh {
  static constexpr T twice = T(1.5957691216057308), cubic = T(0.044715);
  template <class V> V value(V v) const { return v * sigmoid(V(twice * (v + cubic * v * v * v))); }
  template <class V> V derivative(V v) const {
    const Logistic<V> s(V(twice * (v + cubic * v * v * v)));
    return s.value + v * s.value * s.rest * twice * (T{1} + 3 * cubic * v * v);
  }
};
/// v sigmoid(v), also known as swish.
template <class T> struct Silu {
  template <class V> V value(V v) const { return v * sigmoid(v); }
  template <class V> V derivative(V v) const {
    const Logistic<V> s(v);
    return s.value * (T{1} + v * s.rest);
  }
};

/// Calls f with the function object, so that loops inside f are compiled for it.
template <class T, class F> void with_pointwise(Pointwise function, const F& f) {
  switch (function) {
  case Pointwise::gelu: return f(Gelu<T>{});
  case Pointwise::gelu_tanh: return f(GeluTanh<T>{});
  case Pointwise::silu: return f(Silu<T>{});
  case Pointwise::none:
  case Pointwise::custom: break;
  }
  throw usage_error("a pointwise function without a name; users' functions go through function_forward");
}

/// y = f(x)
template <class T> void pointwise_forward(Pointwise function, const View<const T, 5>& x, const View<T, 5>& y) {
  with_pointwise<T>(function, [&](const auto& f) {
    for_each_span(
        [&f](long count, T* to, const T* from) {
          map_elements(
              to, count, [&f](auto v) { return f.value(v); }, from);
        },
        y, x);
  });
}
/// dx = dy f'(x)
template <class T>
void pointwise_backward(Pointwise function, const View<const T, 5>& x, const View<const T, 5>& dy,
                        const View<T, 5>& dx) {
  with_pointwise<T>(function, [&](const auto& f) {
    for_each_span(
        [&f](long count, T* to, const T* from, const T* g) {
          map_elements(
              to, count, [&f](auto v, auto gv) { return gv * f.derivative(v); }, from, g);
        },
        dx, x, dy);
  });
}

/// y = f.value(x), f of the user's; it is called with numbers. Loops over plain arithmetic, and over this folder's exp,
/// tanh and sigmoid, become vector code.
template <class T, class F> void function_forward(const F& f, const View<const T, 5>& x, const View<T, 5>& y) {
  for_each_span(
      [&f](long count, T* to, const T* from) {
        for (long i = 0; i < count; ++i) to[i] = static_cast<T>(f.value(from[i]));
      },
      y, x);
}
/// dx = dy f.derivative(x)
template <class T, class F>
void function_backward(const F& f, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx) {
  for_each_span(
      [&f](long count, T* to, const T* from, const T* g) {
        for (long i = 0; i < count; ++i) to[i] = static_cast<T>(g[i] * f.derivative(from[i]));
      },
      dx, x, dy);
}

} // namespace tessera::kernel
