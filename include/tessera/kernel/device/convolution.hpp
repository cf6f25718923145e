// kernel/device/convolution.hpp: convolutions and dense layers as their definitions read, one sum per element.
//
// What the emulated device computes with, and what a device falls back to where its library has no kernel for a
// problem. Sums run in the order of kernel/reference.hpp, so results are equal to it. Not fast.
//
// May know: base, space, kernel.
// Example: DirectConvolution<float, Space> conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <tessera/kernel/device/pointwise.hpp>
#include <tessera/kernel/device/sums.hpp>

namespace tessera::kernel::device {

template <class T> struct ConvForward {
  Conv p;
  View<const T, 5> x, w;
  const T* bias;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(x.data), visit(w.data), visit(bias), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    const long n = at[0], o = at[1];
    Interval t[3];
    for (int k = 0; k < 3; ++k) t[k] = taps(p, k, at[2 + k]);
    const auto cell = [&](int k, long tap) { return at[2 + k] * p.stride[k] - p.below[k] + tap * p.dilation[k]; };
    T out = bias ? bias[o] : T{};
    for (long a = t[0].first; a < t[0].last; ++a)
      for (long b = t[1].first; b < t[1].last; ++b)
        for (long c = t[2].first; c < t[2].last; ++c) {
          const T* px = &x(n, first_input(p, o), cell(0, a), cell(1, b), cell(2, c));
          const T* pw = &w(o, 0, a, b, c);
          T sum{};
          for (long j = 0; j < p.ci / p.groups; ++j, px += x.strides[1], pw += w.strides[1]) sum += *px * *pw;
          out += sum;
        }
    y[at] = activate(p.act, p.slope, out);
  }
};

/// The output whose tap k of dim i lies on a cell, or -1.
TESSERA_HD constexpr long output_at(const Conv& p, int i, long cell, long k) {
  const long from = cell + p.below[i] - k * p.dilation[i];
  if (from < 0 || from % p.stride[i] != 0) return -1;
  return from / p.stride[i] < p.out[i] ? from / p.stride[i] : -1;
}

template <class T> struct ConvBackwardData {
  Conv p;
  View<const T, 5> dy, w;
  View<T, 5> dx;
  template <class V> void operands(const V& visit) { visit(dy.data), visit(w.data), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    const long in_group = p.ci / p.groups, out_group = p.co / p.groups;
    const long first = at[1] / in_group * out_group; // the outputs that read the channel
    T sum{};
    for (long a = p.k[0]; a-- > 0;) { // taps downwards: outputs upwards
      const long d = output_at(p, 0, at[2], a);
      if (d < 0) continue;
      for (long b = p.k[1]; b-- > 0;) {
        const long h = output_at(p, 1, at[3], b);
        if (h < 0) continue;
        for (long c = p.k[2]; c-- > 0;) {
          const long v = output_at(p, 2, at[4], c);
          if (v < 0) continue;
          const T* g = &dy(at[0], first, d, h, v);
          const T* pw = &w(first, at[1] % in_group, a, b, c);
          for (long o = 0; o < out_group; ++o) sum += g[o * dy.strides[1]] * pw[o * w.strides[0]];
        }
      }
    }
    dx[at] = sum;
  }
};

template <class T> struct ConvBackwardWeights {
  Conv p;
  View<const T, 5> x, dy;
  View<T, 5> dw;
  Gradient mode;
  template <class V> void operands(const V& visit) { visit(x.data), visit(dy.data), visit(dw.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dw.extents);
    const long o = at[0], j = first_input(p, o) + at[1];
    T sum = mode == Gradient::accumulate ? dw[at] : T{};
    for (long n = 0; n < p.n; ++n)
      for (long d = 0; d < p.out[0]; ++d) {
        const long cd = d * p.stride[0] - p.below[0] + at[2] * p.dilation[0];
        if (cd < 0 || cd >= p.in[0]) continue;
        for (long h = 0; h < p.out[1]; ++h) {
          const long ch = h * p.stride[1] - p.below[1] + at[3] * p.dilation[1];
          if (ch < 0 || ch >= p.in[1]) continue;
          for (long v = 0; v < p.out[2]; ++v) {
            const long cw = v * p.stride[2] - p.below[2] + at[4] * p.dilation[2];
            if (cw >= 0 && cw < p.in[2]) sum += dy(n, o, d, h, v) * x(n, j, cd, ch, cw);
          }
        }
      }
    dw[at] = sum;
  }
};

/// The Convolution of a backend: see kernel/cpu.hpp.
template <class T, class Space> class DirectConvolution {
public:
  explicit DirectConvolution(const Conv& p) : p_(p) { check_problem(p); }
  const Conv& problem() const { return p_; }
  void forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
    launch<Space>(y.size(), ConvForward<T>{p_, x, w, bias, y});
  }
  void backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx) {
    launch<Space>(dx.size(), ConvBackwardData<T>{p_, dy, w, dx});
  }
  void backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db,
                        Gradient mode) {
    launch<Space>(dw.size(), ConvBackwardWeights<T>{p_, x, dy, dw, mode});
    if (db) sum_channels<Space>(dy, db, mode);
  }

private:
  Conv p_;
};

template <class T> struct DenseForward {
  Dense p;
  const T *x, *w, *b;
  T* y;
  template <class V> void operands(const V& visit) { visit(x), visit(w), visit(b), visit(y); }
  TESSERA_HD void operator()(long i) const {
    const long n = i / p.co, o = i % p.co;
    T sum = b ? b[o] : T{};
    for (long j = 0; j < p.ci; ++j) sum += w[o * p.ci + j] * x[n * p.ci + j];
    y[i] = activate(p.act, p.slope, sum);
  }
};
template <class T> struct DenseBackwardData {
  Dense p;
  const T *dy, *w;
  T* dx;
  template <class V> void operands(const V& visit) { visit(dy), visit(w), visit(dx); }
  TESSERA_HD void operator()(long i) const {
    const long n = i / p.ci, j = i % p.ci;
    T sum{};
    for (long o = 0; o < p.co; ++o) sum += dy[n * p.co + o] * w[o * p.ci + j];
    dx[i] = sum;
  }
};
template <class T> struct DenseBackwardWeights {
  Dense p;
  const T *x, *dy;
  T* dw;
  Gradient mode;
  template <class V> void operands(const V& visit) { visit(x), visit(dy), visit(dw); }
  TESSERA_HD void operator()(long i) const {
    const long o = i / p.ci, j = i % p.ci;
    T sum = mode == Gradient::accumulate ? dw[i] : T{};
    for (long n = 0; n < p.n; ++n) sum += dy[n * p.co + o] * x[n * p.ci + j];
    dw[i] = sum;
  }
};

/// The Dense of a backend: see kernel/cpu.hpp.
template <class T, class Space> class DirectDense {
public:
  explicit DirectDense(const Dense& p) : p_(p) {}
  const Dense& problem() const { return p_; }
  void forward(const T* x, const T* w, const T* bias, T* y) {
    launch<Space>(p_.n * p_.co, DenseForward<T>{p_, x, w, bias, y});
  }
  void backward_data(const T* dy, const T* w, T* dx) {
    launch<Space>(p_.n * p_.ci, DenseBackwardData<T>{p_, dy, w, dx});
  }
  void backward_weights(const T* x, const T* dy, T* dw, T* db, Gradient mode) {
    launch<Space>(p_.co * p_.ci, DenseBackwardWeights<T>{p_, x, dy, dw, mode});
    if (db) sum_channels<Space>(View<const T, 5>(dy, {{p_.n, p_.co, 1, 1, 1}}), db, mode);
  }

private:
  Dense p_;
};

} // namespace tessera::kernel::device
