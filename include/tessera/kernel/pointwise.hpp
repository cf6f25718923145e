// kernel/pointwise.hpp: activations and per-channel sums on views of any strides; dense stretches run as one loop.
//
// May know: base, kernel/problem.hpp, math.hpp, reference.hpp, simd.hpp.
// Example: activation_backward<float>(Activation::leaky_relu, 0.01, y, dy);   // dy *= act', from the output y
#pragma once

#include <tessera/base/copy.hpp>
#include <tessera/kernel/math.hpp>
#include <tessera/kernel/reference.hpp>

namespace tessera::kernel {

/// An activation as a compile-time function of numbers or vectors: `value(v)`, and `derivative(out)` from its output.
template <class T> struct Linear {
  template <class V> V value(V v) const { return v; }
  template <class V> V derivative(V) const { return V{} + T{1}; }
};
template <class T> struct Relu {
  template <class V> V value(V v) const { return v > V{} ? v : V{}; }
  template <class V> V derivative(V out) const { return out > V{} ? V{} + T{1} : V{}; }
};
template <class T> struct LeakyRelu {
  T slope;
  template <class V> V value(V v) const { return v > V{} ? v : slope * v; }
  template <class V> V derivative(V out) const { return out > V{} ? V{} + T{1} : V{} + slope; }
};
template <class T> struct Elu {
  T alpha;
  template <class V> V value(V v) const { return v > V{} ? v : alpha * exp_minus_1(v); }
  template <class V> V derivative(V out) const { return out > V{} ? V{} + T{1} : out + alpha; }
};
template <class T> struct Sigmoid {
  template <class V> V value(V v) const { return sigmoid(v); }
  template <class V> V derivative(V out) const { return out * (T{1} - out); }
};
template <class T> struct Tanh {
  template <class V> V value(V v) const { return tanh(v); }
  template <class V> V derivative(V out) const { return T{1} - out * out; }
};
/// Calls f with the function object of the activation, so that loops inside f are compiled for it.
template <class T, class F> void with_activation(Activation a, double slope, const F& f) {
  switch (a) {
  case Activation::none: return f(Linear<T>{});
  case Activation::relu: return f(Relu<T>{});
  case Activation::leaky_relu: return f(LeakyRelu<T>{static_cast<T>(slope)});
  case Activation::elu: return f(Elu<T>{static_cast<T>(slope)});
  case Activation::sigmoid: return f(Sigmoid<T>{});
  case Activation::tanh: return f(Tanh<T>{});
  }
}

/// y = act(x); y may be x.
template <class T> void activation_forward(Activation a, double slope, const View<const T, 5>& x, const View<T, 5>& y) {
  check_extents("the activation's output", y.extents, x.extents);
  with_activation<T>(a, slope, [&](const auto& act) {
    for_each_run(x, y, [&act](const T* from, long sf, T* to, long st, long count) {
      if (sf == 1 && st == 1)
        map_elements(
            to, count, [&act](auto v) { return act.value(v); }, from);
      else
        for (long i = 0; i < count; ++i) to[i * st] = act.value(from[i * sf]);
    });
  });
}

/// dy *= act', recovered from the activation's output y.
template <class T>
void activation_backward(Activation a, double slope, const View<const T, 5>& y, const View<T, 5>& dy) {
  check_extents("the activation's gradient", dy.extents, y.extents);
  if (a == Activation::none) return;
  with_activation<T>(a, slope, [&](const auto& act) {
    for_each_run(y, dy, [&act](const T* out, long so, T* g, long sg, long count) {
      if (so == 1 && sg == 1)
        map_elements(
            g, count, [&act](auto gv, auto v) { return gv * act.derivative(v); }, g, out);
      else
        for (long i = 0; i < count; ++i) g[i * sg] *= act.derivative(out[i * so]);
    });
  });
}

/// v *= factor.
template <class T> void scale_block(const View<T, 5>& v, T factor) {
  for_each_run(v, v, [factor](const T*, long, T* p, long s, long count) {
    if (s == 1)
      for (long i = 0; i < count; ++i) p[i] *= factor;
    else
      for (long i = 0; i < count; ++i) p[i * s] *= factor;
  });
}

/// y += bias in every cell. `bias` holds one element a channel.
template <class T> void add_channels(const View<T, 5>& y, const T* bias) {
  for_each_index(whole(Extents<4>{{y.extents[0], y.extents[2], y.extents[3], y.extents[4]}}), [&](const Index<4>& i) {
    T* p = &y(i[0], 0, i[1], i[2], i[3]);
    for (long c = 0; c < y.extents[1]; ++c) p[c * y.strides[1]] += bias[c];
  });
}

/// y = act(bias) in every cell: the convolution of nothing. A null `bias` counts as zeros.
template <class T> void fill_channels(const View<T, 5>& y, const T* bias, Activation a, double slope) {
  for_each_index(whole(Extents<4>{{y.extents[0], y.extents[2], y.extents[3], y.extents[4]}}), [&](const Index<4>& i) {
    T* p = &y(i[0], 0, i[1], i[2], i[3]);
    for (long c = 0; c < y.extents[1]; ++c) p[c * y.strides[1]] = activate(a, slope, bias ? bias[c] : T{});
  });
}

/// db = or += the sum of dy over samples and cells, one element a channel. Sums in double: there may be many cells.
template <class T> void sum_channels(const View<const T, 5>& dy, T* db, Gradient mode) {
  thread_local std::vector<double> sums; // stays from call to call
  sums.assign(std::size_t(dy.extents[1]), 0.0);
  double* const to = sums.data();
  for_each_index(whole(Extents<4>{{dy.extents[0], dy.extents[2], dy.extents[3], dy.extents[4]}}),
                 [&](const Index<4>& i) {
                   const T* p = &dy(i[0], 0, i[1], i[2], i[3]);
                   for (long c = 0; c < dy.extents[1]; ++c) to[c] += static_cast<double>(p[c * dy.strides[1]]);
                 });
  for (long c = 0; c < dy.extents[1]; ++c)
    db[c] = static_cast<T>(mode == Gradient::accumulate ? static_cast<double>(db[c]) + to[c] : to[c]);
}

} // namespace tessera::kernel
