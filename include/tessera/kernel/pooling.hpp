// kernel/pooling.hpp: average and maximum pooling, forward and backward, at the speed of memory.
//
// Windows are separable: rows are combined over depth, then over height, then neighbours inside the row, so that every
// loop runs over the contiguous cells and channels of a row. Views may have any strides in n,d,h,w; channels are
// contiguous.
//
// May know: base, kernel/problem.hpp, pointwise.hpp, workspace.hpp.
// Example: pool_forward<float>(p, x, y);   pool_backward<float>(p, x, dy, dx, Activation::leaky_relu, 0.01);
#pragma once

#include <algorithm>
#include <cstdint>
#include <tessera/kernel/check.hpp>
#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/simd.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

namespace detail {

struct Sum {
  template <class V> static V combine(V a, V b) { return a + b; }
};
struct Maximum {
  template <class V> static V combine(V a, V b) { return b > a ? b : a; }
};

/// to = the combination of source(0), ..., source(many - 1), at least one.
template <class Op, class T, class Source> void combine_all(long many, const Source& source, T* to, long count) {
  const auto both = [](auto a, auto b) { return Op::combine(a, b); };
  const auto three = [](auto a, auto b, auto c) { return Op::combine(Op::combine(a, b), c); };
  long k = std::min(many, 3L);
  if (k == 1)
    std::copy_n(source(0), count, to);
  else if (k == 2)
    map_elements(to, count, both, source(0), source(1));
  else
    map_elements(to, count, three, source(0), source(1), source(2));
  for (; k + 1 < many; k += 2) map_elements<T>(to, count, three, to, source(k), source(k + 1));
  for (; k < many; ++k) map_elements<T>(to, count, both, to, source(k));
}

/// Calls f(offset, at, count) for stretches of contiguous elements of a row: `offset` in the row's memory, `at` in the
/// row as w*c elements behind each other.
template <class T, class F> void for_each_stretch(const View<T, 5>& v, const F& f) {
  const long c = v.extents[1], cells = v.extents[4];
  if (v.strides[4] == c || cells == 1) return f(0, 0, cells * c);
  for (long w = 0; w < cells; ++w) f(w * v.strides[4], w * c, c);
}
template <class T> T* row_of(const View<T, 5>& v, long n, long d, long h) {
  return v.data + n * v.strides[0] + d * v.strides[2] + h * v.strides[3];
}

/// Rows combined over depth, kept by their height while windows still ask for them.
template <class T> struct RowRing {
  T* data = nullptr;
  long* held = nullptr;
  long slots = 0, length = 0;
  RowRing(Carver& carver, long slots_, long length_)
      : data(carver.take<T>(slots_ * length_)), held(carver.take<long>(slots_)), slots(slots_), length(length_) {}
  void forget() { std::fill_n(held, slots, -1L); }
  /// Row `h`; `fill(slot)` makes it if it is not there.
  template <class F> const T* get(long h, const F& fill) {
    const long s = h % slots;
    T* p = data + s * length;
    if (held[s] != h) fill(p);
    held[s] = h;
    return p;
  }
};

template <class T> struct PoolForwardScratch {
  T* sum;
  PoolWindow* windows;
  RowRing<T> ring;
  PoolForwardScratch(Carver& carver, const Pooling& p)
      : sum(carver.take<T>(p.in[2] * p.c)), windows(carver.take<PoolWindow>(p.out[2])),
        ring(carver, span(p.k[1], p.dilation[1]), p.in[2] * p.c) {}
};

/// Lays out a scratch structure in the workspace.
template <class S, class... Args> S take_scratch(const Args&... args) {
  Carver counter;
  S(counter, args...);
  Carver carver(workspace(counter.used()));
  return S(carver, args...);
}

template <class Op, class T> void pool_forward(const Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  auto s = take_scratch<PoolForwardScratch<T>>(p);
  const long length = p.in[2] * p.c;
  for (long w = 0; w < p.out[2]; ++w) s.windows[w] = window_of(p, 2, w);

  for (long n = 0; n < p.n; ++n)
    for (long od = 0; od < p.out[0]; ++od) {
      const PoolWindow wd = window_of(p, 0, od);
      s.ring.forget();
      for (long oh = 0; oh < p.out[1]; ++oh) {
        const PoolWindow wh = window_of(p, 1, oh);
        const long rows = wd.taps.size() * wh.taps.size();
        const long counted_rows = counted_cells(p, 0, od) * counted_cells(p, 1, oh);
        const auto over_depth = [&](long th) {
          const long h = wh.start + (wh.taps.first + th) * p.dilation[1];
          return s.ring.get(h, [&](T* slot) {
            for_each_stretch(x, [&](long offset, long at, long count) {
              combine_all<Op, T>(
                  wd.taps.size(),
                  [&](long td) { return row_of(x, n, wd.start + (wd.taps.first + td) * p.dilation[0], h) + offset; },
                  slot + at, count);
            });
          });
        };
        if (rows > 0) combine_all<Op, T>(wh.taps.size(), over_depth, s.sum, length);
        T* to = row_of(y, n, od, oh);
        for (long ow = 0; ow < p.out[2]; ++ow, to += y.strides[4]) {
          const PoolWindow& ww = s.windows[ow];
          const long cells = rows * ww.taps.size();
          if (cells == 0) {
            std::fill_n(to, p.c, T{});
            continue;
          }
          const T* from = s.sum + (ww.start + ww.taps.first * p.dilation[2]) * p.c;
          combine_all<Op, T>(
              ww.taps.size(), [&](long t) { return from + t * p.dilation[2] * p.c; }, to, p.c);
          if (p.kind == Pool::max) continue;
          const T factor = T{1} / static_cast<T>(counted_rows * counted_cells(p, 2, ow));
          for (long i = 0; i < p.c; ++i) to[i] *= factor;
        }
      }
    }
}

/// Calls f(q) for the outputs of the block, in order, whose windows hold cell `i` of the block.
template <class F> void for_each_window(const Pooling& p, int dim, long i, const F& f) {
  const long g = i + p.in_origin[dim];
  if (g < 0 || g >= p.global[dim]) return; // padding that a halo happens to hold
  // Output q sees the cell at tap t if q*stride = start - t*dilation.
  const long start = g + p.padding[dim] - p.out_origin[dim] * p.stride[dim];
  for (long t = p.k[dim] - 1; t >= 0; --t) {
    const long from = start - t * p.dilation[dim];
    if (from >= 0 && from % p.stride[dim] == 0 && from / p.stride[dim] < p.out[dim]) f(from / p.stride[dim]);
  }
}

/// What the outputs of one dim give to each of their cells, and which of them a cell hears.
template <class T> struct Shares {
  T* share;            // of output q
  long *first, *heard; // cell i hears the outputs heard[first[i]] to heard[first[i + 1] - 1]
  Shares(Carver& carver, const Pooling& p, int dim)
      : share(carver.take<T>(p.out[dim])), first(carver.take<long>(p.in[dim] + 1)),
        heard(carver.take<long>(p.in[dim] * p.k[dim])) {}
  void fill(const Pooling& p, int dim) {
    for (long q = 0; q < p.out[dim]; ++q) {
      const long cells = counted_cells(p, dim, q);
      share[q] = cells == 0 ? T{} : T{1} / static_cast<T>(cells);
    }
    long used = 0;
    for (long i = 0; i < p.in[dim]; ++i) {
      first[i] = used;
      for_each_window(p, dim, i, [&](long q) { heard[used++] = q; });
    }
    first[p.in[dim]] = used;
  }
  long count(long i) const { return first[i + 1] - first[i]; }
  long at(long i, long k) const { return heard[first[i] + k]; }
};

template <class T> struct AverageBackwardScratch {
  T *sum, *cell;
  Shares<T> d, h, w;
  RowRing<T> ring;
  AverageBackwardScratch(Carver& carver, const Pooling& p)
      : sum(carver.take<T>(p.out[2] * p.c)), cell(carver.take<T>(p.c)), d(carver, p, 0), h(carver, p, 1),
        w(carver, p, 2), ring(carver, span(p.k[1], p.dilation[1]), p.out[2] * p.c) {}
};

/// to = or += factor * from
template <class T> void add_scaled(bool first, const T* from, T factor, T* to, long count) {
  if (first)
    map_elements(
        to, count, [factor](auto v) { return factor * v; }, from);
  else
    map_elements<T>(
        to, count, [factor](auto t, auto v) { return t + factor * v; }, to, from);
}

template <class T, class Act>
void average_backward(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx,
                      const Act& act) {
  auto s = take_scratch<AverageBackwardScratch<T>>(p);
  s.d.fill(p, 0);
  s.h.fill(p, 1);
  s.w.fill(p, 2);
  const long length = p.out[2] * p.c;
  for (long n = 0; n < p.n; ++n)
    for (long id = 0; id < p.in[0]; ++id) {
      s.ring.forget();
      for (long ih = 0; ih < p.in[1]; ++ih) {
        const bool heard = s.d.count(id) > 0 && s.h.count(ih) > 0;
        for (long kh = 0; heard && kh < s.h.count(ih); ++kh) {
          const long oh = s.h.at(ih, kh);
          const T* over_depth = s.ring.get(oh, [&](T* slot) {
            for (long kd = 0; kd < s.d.count(id); ++kd) {
              const long od = s.d.at(id, kd);
              const T* row = row_of(dy, n, od, oh);
              for_each_stretch(dy, [&](long offset, long at, long count) {
                add_scaled(kd == 0, row + offset, s.d.share[od], slot + at, count);
              });
            }
          });
          add_scaled(kh == 0, over_depth, s.h.share[oh], s.sum, length);
        }
        if (heard)
          for (long w = 0; w < p.out[2]; ++w)
            map_elements<T>(
                s.sum + w * p.c, p.c, [f = s.w.share[w]](auto v) { return v * f; }, s.sum + w * p.c);
        const T* out = row_of(x, n, id, ih);
        T* to = row_of(dx, n, id, ih);
        for (long iw = 0; iw < p.in[2]; ++iw, out += x.strides[4], to += dx.strides[4]) {
          const long many = heard ? s.w.count(iw) : 0;
          const auto from = [&](long k) { return s.sum + s.w.at(iw, k) * p.c; };
          if (many == 0)
            std::fill_n(to, p.c, T{});
          else if (many == 1)
            map_elements(
                to, p.c, [&act](auto a, auto v) { return a * act.derivative(v); }, from(0), out);
          else if (many == 2)
            map_elements(
                to, p.c, [&act](auto a, auto b, auto v) { return (a + b) * act.derivative(v); }, from(0), from(1), out);
          else {
            combine_all<Sum, T>(many, from, s.cell, p.c);
            map_elements(
                to, p.c, [&act](auto a, auto v) { return a * act.derivative(v); }, s.cell, out);
          }
        }
      }
    }
}

template <class T> struct MaxBackwardScratch {
  T* best;
  std::int32_t* winner; // the tap that holds the maximum
  long* cells;          // the memory offset in dx of each tap
  MaxBackwardScratch(Carver& carver, const Pooling& p)
      : best(carver.take<T>(p.c)), winner(carver.take<std::int32_t>(p.c)), cells(carver.take<long>(product(p.k))) {}
};

/// The maximum and its tap are found again from x: cheaper than to store and load an index for every output.
template <class T, class Act>
void max_backward(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx,
                  const Act& act) {
  const auto s = take_scratch<MaxBackwardScratch<T>>(p);
  fill_block(dx, T{});
  for (long n = 0; n < p.n; ++n)
    for_each_index(whole(p.out), [&](const Index<3>& q) {
      const PoolWindow w[3] = {window_of(p, 0, q[0]), window_of(p, 1, q[1]), window_of(p, 2, q[2])};
      const Box<3> taps{{{w[0].taps.first, w[1].taps.first, w[2].taps.first}},
                        {{w[0].taps.last, w[1].taps.last, w[2].taps.last}}};
      std::int32_t many = 0;
      for_each_index(taps, [&](const Index<3>& t) {
        Index<5> cell{{n, 0, 0, 0, 0}};
        for (int i = 0; i < 3; ++i) cell[2 + i] = w[i].start + t[i] * p.dilation[i];
        const T* from = x.data + x.offset(cell);
        s.cells[many] = dx.offset(cell);
        if (many == 0) {
          std::copy_n(from, p.c, s.best);
          std::fill_n(s.winner, p.c, 0);
        } else
          for (long c = 0; c < p.c; ++c) {
            const bool better = from[c] > s.best[c];
            s.best[c] = better ? from[c] : s.best[c];
            s.winner[c] = better ? many : s.winner[c];
          }
        ++many;
      });
      const T* g = row_of(dy, n, q[0], q[1]) + q[2] * dy.strides[4];
      if (many > 0)
        for (long c = 0; c < p.c; ++c) dx.data[s.cells[s.winner[c]] + c] += g[c] * act.derivative(s.best[c]);
    });
}

template <class T> void check_pool_operands(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& y) {
  check_extents("x", x.extents, x_extents(p));
  check_extents("y", y.extents, y_extents(p));
  TESSERA_REQUIRE((x.strides[1] == 1 && y.strides[1] == 1) || p.c == 1,
                  "pooling: channels must be contiguous, strides of x ", x.strides, ", of y ", y.strides);
}

} // namespace detail

/// y = the maximum or the average of each window; see Pooling. Padding never wins; a window without any cell gives 0.
template <class T> void pool_forward(const Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  check_problem(p);
  detail::check_pool_operands(p, x, View<const T, 5>(y));
  if (y.empty()) return;
  if (p.kind == Pool::max)
    detail::pool_forward<detail::Maximum>(p, x, y);
  else
    detail::pool_forward<detail::Sum>(p, x, y);
}

/// dx = (the adjoint of the pooling at x, applied to dy) * act'(x), where x, the pooling's input, is the output of the
/// activation `act`: one pass over memory instead of three. Writes the whole of dx. The maximum goes to the first cell
/// in d,h,w order that holds it. For average pooling, dx may be x.
template <class T>
void pool_backward(const Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx,
                   Activation act, double slope) {
  check_problem(p);
  detail::check_pool_operands(p, x, dy);
  check_extents("dx", dx.extents, x_extents(p));
  TESSERA_REQUIRE(dx.strides[1] == 1 || p.c == 1, "pooling: the channels of dx must be contiguous, strides ",
                  dx.strides);
  if (dx.empty()) return;
  if (dy.empty()) return fill_block(dx, T{});
  with_activation<T>(act, slope, [&](const auto& f) {
    if (p.kind == Pool::max)
      detail::max_backward(p, x, dy, dx, f);
    else
      detail::average_backward(p, x, dy, dx, f);
  });
}

} // namespace tessera::kernel
