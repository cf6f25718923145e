// kernel/reference.hpp: every kernel as plain loops. The oracle of the tests, and the kernels of double precision.
//
// Clarity before speed. Views may have any strides. All sums run in T: instantiate with double for an oracle.
//
// May know: base, kernel/problem.hpp, kernel/check.hpp.
// Example: reference::convolution<double>(p, x, w, bias, y);   // bias may be null
#pragma once

#include <cmath>
#include <numbers>
#include <tessera/base/copy.hpp>
#include <tessera/kernel/check.hpp>
#include <vector>

namespace tessera::kernel {

/// act(v); `slope` belongs to leaky_relu, and is the alpha of elu.
template <class T> TESSERA_HD constexpr T activate(Activation a, double slope, T v) {
  switch (a) {
  case Activation::none: return v;
  case Activation::relu: return v > T{} ? v : T{};
  case Activation::leaky_relu: return v > T{} ? v : static_cast<T>(slope) * v;
  case Activation::elu: return v > T{} ? v : static_cast<T>(slope) * std::expm1(v);
  case Activation::sigmoid: return T{1} / (T{1} + std::exp(-v));
  case Activation::tanh: return std::tanh(v);
  }
  return v;
}
/// act'(v), recovered from the activation's output: relu, leaky_relu and elu keep the sign. 0 at v = 0 for relu.
template <class T> TESSERA_HD constexpr T activation_slope(Activation a, double slope, T output) {
  switch (a) {
  case Activation::none: return T{1};
  case Activation::relu: return output > T{} ? T{1} : T{};
  case Activation::leaky_relu: return output > T{} ? T{1} : static_cast<T>(slope);
  case Activation::elu: return output > T{} ? T{1} : output + static_cast<T>(slope);
  case Activation::sigmoid: return output * (T{1} - output);
  case Activation::tanh: return T{1} - output * output;
  }
  return T{1};
}

/// f(v) and f'(v) of a pointwise function that needs its input, as their definitions read.
template <class T> TESSERA_HD T pointwise_value(Pointwise f, T v) {
  const double x = static_cast<double>(v);
  switch (f) {
  case Pointwise::gelu: return static_cast<T>(x * 0.5 * std::erfc(-x / std::numbers::sqrt2));
  case Pointwise::gelu_tanh: {
    const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return static_cast<T>(0.5 * x * (1 + std::tanh(u)));
  }
  case Pointwise::silu: return static_cast<T>(x / (1 + std::exp(-x)));
  case Pointwise::none:
  case Pointwise::custom: break;
  }
  return v;
}
template <class T> TESSERA_HD T pointwise_derivative(Pointwise f, T v) {
  const double x = static_cast<double>(v);
  switch (f) {
  case Pointwise::gelu:
    return static_cast<T>(0.5 * std::erfc(-x / std::numbers::sqrt2) +
                          x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi));
  case Pointwise::gelu_tanh: {
    const double k = std::sqrt(2 / std::numbers::pi), t = std::tanh(k * (x + 0.044715 * x * x * x));
    return static_cast<T>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x));
  }
  case Pointwise::silu: {
    const double s = 1 / (1 + std::exp(-x));
    return static_cast<T>(s * (1 + x * (1 - s)));
  }
  case Pointwise::none:
  case Pointwise::custom: break;
  }
  return T{1};
}

namespace reference {
using kernel::activate, kernel::activation_slope;

namespace detail {
/// Calls f(n, q, tap, cell) for every sample, output, and tap that falls into the block.
template <class F> void for_each_tap(const Conv& p, const F& f) {
  for (long n = 0; n < p.n; ++n)
    for_each_index(whole(p.out), [&](const Index<3>& q) {
      Box<3> inside;
      for (int i = 0; i < 3; ++i) {
        const Interval t = taps(p, i, q[i]);
        inside.lo[i] = t.first, inside.hi[i] = t.last;
      }
      for_each_index(inside, [&](const Index<3>& k) {
        Index<3> cell;
        for (int i = 0; i < 3; ++i) cell[i] = q[i] * p.stride[i] - p.below[i] + k[i] * p.dilation[i];
        f(n, q, k, cell);
      });
    });
}
inline Index<5> at(long n, long c, const Index<3>& i) { return {{n, c, i[0], i[1], i[2]}}; }
} // namespace detail

/// y = act(bias + w * x), see Conv. `bias` holds co elements or is null.
template <class T>
void convolution(const Conv& p, const View<const T, 5>& x, const View<const T, 5>& w, const T* bias,
                 const View<T, 5>& y) {
  for_each_index(whole(y.extents), [&](const Index<5>& i) { y[i] = bias ? bias[i[1]] : T{}; });
  detail::for_each_tap(p, [&](long n, const Index<3>& q, const Index<3>& k, const Index<3>& cell) {
    for (long o = 0; o < p.co; ++o) {
      const T* px = &x[detail::at(n, first_input(p, o), cell)];
      const T* pw = &w[detail::at(o, 0, k)];
      T sum{};
      for (long i = 0; i < p.ci / p.groups; ++i) sum += px[i * x.strides[1]] * pw[i * w.strides[1]];
      y[detail::at(n, o, q)] += sum;
    }
  });
  if (p.act != Activation::none)
    for_each_index(whole(y.extents), [&](const Index<5>& i) { y[i] = activate(p.act, p.slope, y[i]); });
}

/// dx = the adjoint of the convolution (without bias and activation) applied to dy. Writes the whole of dx.
template <class T>
void convolution_backward_data(const Conv& p, const View<const T, 5>& dy, const View<const T, 5>& w,
                               const View<T, 5>& dx) {
  fill_block(dx, T{});
  detail::for_each_tap(p, [&](long n, const Index<3>& q, const Index<3>& k, const Index<3>& cell) {
    for (long o = 0; o < p.co; ++o) {
      T* px = &dx[detail::at(n, first_input(p, o), cell)];
      const T* pw = &w[detail::at(o, 0, k)];
      const T g = dy[detail::at(n, o, q)];
      for (long i = 0; i < p.ci / p.groups; ++i) px[i * dx.strides[1]] += g * pw[i * w.strides[1]];
    }
  });
}

/// db[o] = (or +=) the sum of dy over all samples and cells. db holds as many elements as dy has channels.
template <class T> void sum_channels(const View<const T, 5>& dy, T* db, Gradient mode) {
  if (mode == Gradient::overwrite) std::fill_n(db, dy.extents[1], T{});
  for_each_index(whole(dy.extents), [&](const Index<5>& i) { db[i[1]] += dy[i]; });
}

/// dw and db (null: not wanted) = or += the gradients of <dy, conv(x)>.
template <class T>
void convolution_backward_weights(const Conv& p, const View<const T, 5>& x, const View<const T, 5>& dy,
                                  const View<T, 5>& dw, T* db, Gradient mode) {
  if (mode == Gradient::overwrite) fill_block(dw, T{});
  detail::for_each_tap(p, [&](long n, const Index<3>& q, const Index<3>& k, const Index<3>& cell) {
    for (long o = 0; o < p.co; ++o) {
      const T* px = &x[detail::at(n, first_input(p, o), cell)];
      T* pw = &dw[detail::at(o, 0, k)];
      const T g = dy[detail::at(n, o, q)];
      for (long i = 0; i < p.ci / p.groups; ++i) pw[i * dw.strides[1]] += g * px[i * x.strides[1]];
    }
  });
  if (db) reference::sum_channels<T>(dy, db, mode);
}

namespace detail {
struct PoolWindows {
  PoolWindow w[3];
  Box<3> taps() const {
    return {{{w[0].taps.first, w[1].taps.first, w[2].taps.first}}, {{w[0].taps.last, w[1].taps.last, w[2].taps.last}}};
  }
};
inline PoolWindows windows(const Pooling& p, const Index<3>& q) {
  return {{window_of(p, 0, q[0]), window_of(p, 1, q[1]), window_of(p, 2, q[2])}};
}
inline Index<3> cell_of(const Pooling& p, const PoolWindows& w, const Index<3>& tap) {
  Index<3> cell;
  for (int i = 0; i < 3; ++i) cell[i] = w.w[i].start + tap[i] * p.dilation[i];
  return cell;
}
template <class T> T divisor(const Pooling& p, const Index<3>& q) {
  return static_cast<T>(counted_cells(p, 0, q[0]) * counted_cells(p, 1, q[1]) * counted_cells(p, 2, q[2]));
}
/// The first cell in d,h,w order that holds the maximum of channel c.
template <class T>
Index<3> first_maximum(const Pooling& p, const View<const T, 5>& x, long n, long c, const PoolWindows& w) {
  Index<3> best = cell_of(p, w, w.taps().lo);
  for_each_index(w.taps(), [&](const Index<3>& tap) {
    const Index<3> cell = cell_of(p, w, tap);
    if (x[at(n, c, cell)] > x[at(n, c, best)]) best = cell;
  });
  return best;
}
} // namespace detail

/// y = the maximum or the average of each window. Padding never wins; a window without any cell gives 0.
template <class T> void pooling(const Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  for_each_index(whole(y.extents), [&](const Index<5>& i) {
    const detail::PoolWindows w = detail::windows(p, {{i[2], i[3], i[4]}});
    T& out = y[i] = T{};
    if (w.taps().empty()) return;
    if (p.kind == Pool::max) {
      out = x[detail::at(i[0], i[1], detail::first_maximum(p, x, i[0], i[1], w))];
      return;
    }
    for_each_index(w.taps(),
                   [&](const Index<3>& tap) { out += x[detail::at(i[0], i[1], detail::cell_of(p, w, tap))]; });
    out /= detail::divisor<T>(p, {{i[2], i[3], i[4]}});
  });
}

/// dx = (the adjoint of the pooling at x, applied to dy) * act'(x), where x, the pooling's input, is the output of the
/// activation `act`. Writes the whole of dx. The maximum goes to the first cell in d,h,w order that holds it.
template <class T>
void pooling_backward(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx,
                      Activation act, double slope) {
  std::vector<T> memory(std::size_t(dx.size())); // dx may lie in the memory of x
  const View<T, 5> sum(memory.data(), dx.extents);
  for_each_index(whole(dy.extents), [&](const Index<5>& i) {
    const detail::PoolWindows w = detail::windows(p, {{i[2], i[3], i[4]}});
    if (w.taps().empty()) return;
    if (p.kind == Pool::max) {
      sum[detail::at(i[0], i[1], detail::first_maximum(p, x, i[0], i[1], w))] += dy[i];
      return;
    }
    const T share = dy[i] / detail::divisor<T>(p, {{i[2], i[3], i[4]}});
    for_each_index(w.taps(),
                   [&](const Index<3>& tap) { sum[detail::at(i[0], i[1], detail::cell_of(p, w, tap))] += share; });
  });
  for_each_index(whole(dx.extents), [&](const Index<5>& i) {
    dx[i] = act == Activation::none ? sum[i] : sum[i] * activation_slope(act, slope, x[i]);
  });
}

// The passes of batch normalisation, as kernel/normalisation.hpp describes them.

template <class T> void channel_sums(const View<const T, 5>& x, double* sums) {
  std::fill_n(sums, x.extents[1], 0.0);
  for_each_index(whole(x.extents), [&](const Index<5>& i) { sums[i[1]] += static_cast<double>(x[i]); });
}
template <class T> void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
  std::fill_n(sums, x.extents[1], 0.0);
  for_each_index(whole(x.extents), [&](const Index<5>& i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(mean[i[1]]);
    sums[i[1]] += d * d;
  });
}
template <class T>
void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, Activation act, double slope,
               const View<T, 5>& y) {
  for_each_index(whole(x.extents), [&](const Index<5>& i) {
    const long c = i[1];
    y[i] = activate(act, slope, static_cast<T>(scale[c] * (x[i] - mean[c]) + beta[c]));
  });
}
template <class T>
void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
  const long channels = x.extents[1];
  std::fill_n(sums, 2 * channels, 0.0);
  for_each_index(whole(x.extents), [&](const Index<5>& i) {
    const double g = static_cast<double>(dy[i]);
    sums[i[1]] += g;
    sums[channels + i[1]] += g * (static_cast<double>(x[i]) - static_cast<double>(mean[i[1]]));
  });
}
template <class T>
void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                            const T* b, const T* e, const View<T, 5>& dx) {
  for_each_index(whole(x.extents), [&](const Index<5>& i) {
    const long c = i[1];
    dx[i] = a[c] * dy[i] + b[c] * (x[i] - mean[c]) + e[c];
  });
}

/// y = exp(x) / the sum of exp(x) over the channels, in each cell.
template <class T> void softmax(const View<const T, 5>& x, const View<T, 5>& y) {
  const long channels = x.extents[1];
  if (x.empty()) return;
  for_each_index(whole(Extents<4>{{x.extents[0], x.extents[2], x.extents[3], x.extents[4]}}), [&](const Index<4>& i) {
    const auto cell = [&](long c) { return Index<5>{{i[0], c, i[1], i[2], i[3]}}; };
    T most = x[cell(0)], sum{};
    for (long c = 1; c < channels; ++c) most = std::max(most, x[cell(c)]); // without it exp would overflow
    for (long c = 0; c < channels; ++c) sum += y[cell(c)] = std::exp(x[cell(c)] - most);
    for (long c = 0; c < channels; ++c) y[cell(c)] /= sum;
  });
}
/// dx = y (dy - the sum of y dy over the channels), in each cell.
template <class T> void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
  const long channels = y.extents[1];
  if (y.empty()) return;
  for_each_index(whole(Extents<4>{{y.extents[0], y.extents[2], y.extents[3], y.extents[4]}}), [&](const Index<4>& i) {
    const auto cell = [&](long c) { return Index<5>{{i[0], c, i[1], i[2], i[3]}}; };
    T sum{};
    for (long c = 0; c < channels; ++c) sum += y[cell(c)] * dy[cell(c)];
    for (long c = 0; c < channels; ++c) dx[cell(c)] = y[cell(c)] * (dy[cell(c)] - sum);
  });
}

/// y = act(b + W x); all row-major, W is (co, ci), `b` may be null.
template <class T> void dense(const Dense& p, const T* x, const T* w, const T* b, T* y) {
  for (long n = 0; n < p.n; ++n)
    for (long o = 0; o < p.co; ++o) {
      T sum = b ? b[o] : T{};
      for (long i = 0; i < p.ci; ++i) sum += w[o * p.ci + i] * x[n * p.ci + i];
      y[n * p.co + o] = activate(p.act, p.slope, sum);
    }
}
/// dx = dy W.
template <class T> void dense_backward_data(const Dense& p, const T* dy, const T* w, T* dx) {
  std::fill_n(dx, p.n * p.ci, T{});
  for (long n = 0; n < p.n; ++n)
    for (long o = 0; o < p.co; ++o)
      for (long i = 0; i < p.ci; ++i) dx[n * p.ci + i] += dy[n * p.co + o] * w[o * p.ci + i];
}
/// dW = or += dy^T x;  db (null: not wanted) = or += the sum of dy over samples.
template <class T> void dense_backward_weights(const Dense& p, const T* x, const T* dy, T* dw, T* db, Gradient mode) {
  if (mode == Gradient::overwrite) {
    std::fill_n(dw, p.co * p.ci, T{});
    if (db) std::fill_n(db, p.co, T{});
  }
  for (long n = 0; n < p.n; ++n)
    for (long o = 0; o < p.co; ++o) {
      for (long i = 0; i < p.ci; ++i) dw[o * p.ci + i] += dy[n * p.co + o] * x[n * p.ci + i];
      if (db) db[o] += dy[n * p.co + o];
    }
}

} // namespace reference
} // namespace tessera::kernel
