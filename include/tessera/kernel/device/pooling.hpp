// kernel/device/pooling.hpp: average and maximum pooling, forward and backward, one output or one gradient per element.
//
// Windows, ties and divisors are global, as kernel/problem.hpp defines them: the maximum goes to the first cell in
// d,h,w order that holds it. Backward gathers, so nothing is added by two threads and sums have one order.
//
// May know: base, space, kernel.
// Example: pool_forward<Space, float>(p, x, y);
#pragma once

#include <tessera/kernel/device/pointwise.hpp>

namespace tessera::kernel::device {

/// The windows of one output.
struct Windows {
  PoolWindow w[3];
  TESSERA_HD constexpr bool empty() const { return w[0].taps.empty() || w[1].taps.empty() || w[2].taps.empty(); }
  /// The block's cell of a tap in dim i.
  TESSERA_HD constexpr long cell(const Pooling& p, int i, long tap) const { return w[i].start + tap * p.dilation[i]; }
};
TESSERA_HD constexpr Windows windows_of(const Pooling& p, const Index<5>& out) {
  return {{window_of(p, 0, out[2]), window_of(p, 1, out[3]), window_of(p, 2, out[4])}};
}
/// What the average of an output divides by.
TESSERA_HD constexpr long counted(const Pooling& p, const Index<5>& out) {
  return counted_cells(p, 0, out[2]) * counted_cells(p, 1, out[3]) * counted_cells(p, 2, out[4]);
}
/// Calls f(d, h, w) for every cell of the block that the windows hold, in order.
template <class F> TESSERA_HD constexpr void for_each_cell(const Pooling& p, const Windows& w, const F& f) {
  for (long a = w.w[0].taps.first; a < w.w[0].taps.last; ++a)
    for (long b = w.w[1].taps.first; b < w.w[1].taps.last; ++b)
      for (long c = w.w[2].taps.first; c < w.w[2].taps.last; ++c) f(w.cell(p, 0, a), w.cell(p, 1, b), w.cell(p, 2, c));
}
/// The first cell that holds the maximum, and the maximum. A pointer instead of three indices: registers are scarce.
template <class T> struct Maximum {
  T value;
  const T* cell;
};
template <class T>
TESSERA_HD constexpr Maximum<T> first_maximum(const Pooling& p, const Windows& w, const View<const T, 5>& x, long n,
                                              long c) {
  Maximum<T> best{T{}, nullptr};
  for_each_cell(p, w, [&](long cd, long ch, long cw) {
    const T* cell = &x(n, c, cd, ch, cw);
    if (!best.cell || *cell > best.value) best = {*cell, cell};
  });
  return best;
}

template <class T> struct PoolForward {
  Pooling p;
  View<const T, 5> x;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(x.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    const Windows w = windows_of(p, at);
    T out{};
    if (!w.empty() && p.kind == Pool::max)
      out = first_maximum(p, w, x, at[0], at[1]).value;
    else if (!w.empty()) {
      for_each_cell(p, w, [&](long cd, long ch, long cw) { out += x(at[0], at[1], cd, ch, cw); });
      out /= static_cast<T>(counted(p, at));
    }
    y[at] = out;
  }
};
template <class Space, class T> void pool_forward(const Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  check_problem(p);
  check_extents("x", x.extents, x_extents(p));
  check_extents("y", y.extents, y_extents(p));
  launch<Space>(y.size(), PoolForward<T>{p, x, y});
}

/// The outputs of the block in one dim whose windows may hold a cell of the block: first <= q < last.
TESSERA_HD constexpr Interval outputs_near(const Pooling& p, int i, long cell) {
  const long stride = p.stride[i], g = cell + p.in_origin[i] + p.padding[i] - p.out_origin[i] * stride;
  if (g < 0) return {};
  const long last = g / stride + 1, reach = g - (p.dilation[i] * (p.k[i] - 1));
  const long first = reach <= 0 ? 0 : (reach + stride - 1) / stride;
  return {first, last < p.out[i] ? last : p.out[i]};
}
/// True if a window holds the cell in dim i.
TESSERA_HD constexpr bool holds(const Pooling& p, int i, const PoolWindow& w, long cell) {
  const long off = cell - w.start;
  if (off < 0 || off % p.dilation[i] != 0) return false;
  const long tap = off / p.dilation[i];
  return tap >= w.taps.first && tap < w.taps.last;
}

/// dx = (the adjoint applied to dy) * act'(x). For average pooling, dx may be x: a cell is read before it is written.
template <class T> struct PoolBackward {
  Pooling p;
  View<const T, 5> x, dy;
  View<T, 5> dx;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) { visit(x.data), visit(dy.data), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    const long n = at[0], c = at[1];
    T sum{};
    Index<5> q = at;
    Interval near[3];
    for (int k = 0; k < 3; ++k) near[k] = outputs_near(p, k, at[2 + k]);
    for (q[2] = near[0].first; q[2] < near[0].last; ++q[2])
      for (q[3] = near[1].first; q[3] < near[1].last; ++q[3])
        for (q[4] = near[2].first; q[4] < near[2].last; ++q[4]) {
          const Windows w = windows_of(p, q);
          if (!holds(p, 0, w.w[0], at[2]) || !holds(p, 1, w.w[1], at[3]) || !holds(p, 2, w.w[2], at[4])) continue;
          if (p.kind == Pool::max) {
            if (first_maximum(p, w, x, n, c).cell == &x[at]) sum += dy[q];
          } else
            sum += dy[q] / static_cast<T>(counted(p, q));
        }
    dx[at] = act == Activation::none ? sum : sum * activation_slope(act, slope, x[at]);
  }
};
template <class Space, class T>
void pool_backward(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx,
                   Activation act, double slope) {
  check_problem(p);
  check_extents("x", x.extents, x_extents(p));
  check_extents("dy", dy.extents, y_extents(p));
  check_extents("dx", dx.extents, x_extents(p));
  launch<Space>(dx.size(), PoolBackward<T>{p, x, dy, dx, act, slope});
}

} // namespace tessera::kernel::device
