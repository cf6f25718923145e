// kernel/resample.hpp: upsampling and the parts of global pooling at the speed of memory.
//
// Interpolation is separable: up to four rows are blended into one, then neighbours inside that row, so that every loop
// runs over contiguous channels. Views may have any strides in n,d,h,w; channels are contiguous.
//
// May know: base, kernel/problem.hpp, check.hpp, reference_resample.hpp, simd.hpp, workspace.hpp.
// Example: upsample_forward<float>(p, x, y);   upsample_backward<float>(p, dy, dx);
#pragma once

#include <tessera/kernel/reference_resample.hpp>
#include <tessera/kernel/simd.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

namespace detail {

/// A row that takes part in another, and by how much.
struct WeightedRow {
  long d = 0, h = 0;
  double weight = 0;
};
/// The rows of the block that the outputs (d, h) are made of.
struct WeightedRows {
  WeightedRow rows[4];
  int count = 0;
  WeightedRows(const Upsampling& p, long d, long h) {
    const Blend bd = blend_of(p, 0, d + p.out_origin[0]), bh = blend_of(p, 1, h + p.out_origin[1]);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) {
        const long pd = i ? bd.part : bd.of - bd.part, ph = j ? bh.part : bh.of - bh.part;
        if (pd * ph == 0) continue;
        rows[count++] = {(i ? bd.second : bd.first) - p.in_origin[0], (j ? bh.second : bh.first) - p.in_origin[1],
                         double(pd * ph) / double(bd.of * bh.of)};
      }
  }
};

/// to += factor * from
template <class T> void accumulate(const T* from, T factor, T* to, long count) {
  map_elements<T>(
      to, count, [factor](auto t, auto v) { return t + factor * v; }, to, from);
}
/// Calls f(memory of the row's stretch, its place in a dense row, elements) for contiguous stretches of row (n, d, h).
template <class T, class F> void for_each_part_of_row(const View<T, 5>& v, long n, long d, long h, const F& f) {
  const long c = v.extents[1], cells = v.extents[4];
  T* const row = v.data + n * v.strides[0] + d * v.strides[2] + h * v.strides[3];
  if (v.strides[4] == c || cells == 1) return f(row, 0L, cells * c);
  for (long w = 0; w < cells; ++w) f(row + w * v.strides[4], w * c, c);
}
template <class T> void check_upsampling(const Upsampling& p, const View<const T, 5>& x, const View<const T, 5>& y) {
  check_problem(p);
  check_extents("x", x.extents, x_extents(p));
  check_extents("y", y.extents, y_extents(p));
  TESSERA_REQUIRE((x.strides[1] == 1 && y.strides[1] == 1) || p.c == 1,
                  "upsampling: channels must be contiguous, strides of x ", x.strides, ", of y ", y.strides);
}
/// Blends along w, in cells of the block.
template <class T> struct Along {
  Blend* blends;
  T* row;
  Along(Carver& carver, const Upsampling& p)
      : blends(carver.take<Blend>(p.out[2])), row(carver.take<T>(p.in[2] * p.c)) {}
};
template <class T> Along<T> along_rows(const Upsampling& p) {
  Carver counter;
  Along<T>(counter, p);
  Carver carver(workspace(counter.used()));
  Along<T> a(carver, p);
  for (long w = 0; w < p.out[2]; ++w) {
    a.blends[w] = blend_of(p, 2, w + p.out_origin[2]);
    a.blends[w].first -= p.in_origin[2], a.blends[w].second -= p.in_origin[2];
  }
  return a;
}

} // namespace detail

/// y = the upsampling of x; see Upsampling.
template <class T> void upsample_forward(const Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  detail::check_upsampling(p, x, View<const T, 5>(y));
  if (y.empty()) return;
  const auto s = detail::along_rows<T>(p);
  for (long n = 0; n < p.n; ++n)
    for (long d = 0; d < p.out[0]; ++d)
      for (long h = 0; h < p.out[1]; ++h) {
        const detail::WeightedRows from(p, d, h);
        std::fill_n(s.row, p.in[2] * p.c, T{});
        for (int k = 0; k < from.count; ++k)
          detail::for_each_part_of_row(x, n, from.rows[k].d, from.rows[k].h, [&](const T* px, long at, long count) {
            detail::accumulate(px, static_cast<T>(from.rows[k].weight), s.row + at, count);
          });
        T* to = y.data + n * y.strides[0] + d * y.strides[2] + h * y.strides[3];
        for (long w = 0; w < p.out[2]; ++w, to += y.strides[4]) {
          const Blend& b = s.blends[w];
          const T t = static_cast<T>(b.part) / static_cast<T>(b.of), rest = T{1} - t;
          if (b.part == 0)
            std::copy_n(s.row + b.first * p.c, p.c, to);
          else
            map_elements<T>(
                to, p.c, [t, rest](auto u, auto v) { return rest * u + t * v; }, s.row + b.first * p.c,
                s.row + b.second * p.c);
        }
      }
}

/// dx = the adjoint applied to dy. Writes the whole of dx.
template <class T> void upsample_backward(const Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
  detail::check_upsampling(p, View<const T, 5>(dx), dy);
  fill_block(dx, T{});
  if (dy.empty()) return;
  const auto s = detail::along_rows<T>(p);
  for (long n = 0; n < p.n; ++n)
    for (long d = 0; d < p.out[0]; ++d)
      for (long h = 0; h < p.out[1]; ++h) {
        std::fill_n(s.row, p.in[2] * p.c, T{});
        const T* g = dy.data + n * dy.strides[0] + d * dy.strides[2] + h * dy.strides[3];
        for (long w = 0; w < p.out[2]; ++w, g += dy.strides[4]) {
          const Blend& b = s.blends[w];
          const T t = static_cast<T>(b.part) / static_cast<T>(b.of);
          detail::accumulate(g, T{1} - t, s.row + b.first * p.c, p.c);
          if (b.part != 0) detail::accumulate(g, t, s.row + b.second * p.c, p.c);
        }
        const detail::WeightedRows to(p, d, h);
        for (int k = 0; k < to.count; ++k)
          detail::for_each_part_of_row(dx, n, to.rows[k].d, to.rows[k].h, [&](T* px, long at, long count) {
            detail::accumulate(s.row + at, static_cast<T>(to.rows[k].weight), px, count);
          });
      }
}

/// As reference::volume_maxima: the maximum of each sample and channel, and the number of the first cell that holds it.
template <class T>
void volume_maxima(const View<const T, 5>& x, const Triple& origin, const Triple& global, T* best,
                   std::int64_t* where) {
  const long c = x.extents[1];
  if (x.strides[1] != 1 && c > 1) return reference::volume_maxima(x, origin, global, best, where);
  std::fill_n(best, x.extents[0] * c, -std::numeric_limits<T>::infinity());
  std::fill_n(where, x.extents[0] * c, no_cell);
  for_each_index(whole(Extents<4>{{x.extents[0], x.extents[2], x.extents[3], x.extents[4]}}), [&](const Index<4>& i) {
    const T* const from = &x(i[0], 0, i[1], i[2], i[3]);
    T* const b = best + i[0] * c;
    std::int64_t* const at = where + i[0] * c;
    const std::int64_t number = cell_number(Triple{{i[1], i[2], i[3]}} + origin, global);
    for (long k = 0; k < c; ++k) {
      const bool better = from[k] > b[k] || at[k] == no_cell;
      b[k] = better ? from[k] : b[k];
      at[k] = better ? number : at[k];
    }
  });
}

/// y = factor * values (n, c, 1, 1, 1) in every cell.
template <class T> void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
  if ((y.strides[1] != 1 || values.strides[1] != 1) && y.extents[1] > 1) return reference::spread(values, factor, y);
  const auto f = static_cast<T>(factor);
  for_each_index(whole(Extents<4>{{y.extents[0], y.extents[2], y.extents[3], y.extents[4]}}), [&](const Index<4>& i) {
    map_elements(
        &y(i[0], 0, i[1], i[2], i[3]), y.extents[1], [f](auto v) { return v * f; },
        values.data + i[0] * values.strides[0]);
  });
}

} // namespace tessera::kernel
