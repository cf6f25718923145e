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
/// Blends along w, in cells of the block, and the other way round: the outputs that hear a cell, and how much of it.
template <class T> struct Along {
  Blend* blends;
  T *row, *share;
  long* first; // cell i is heard by the outputs first[i] to first[i] + heard[i] - 1, by share[i * most] onwards
  long* heard;
  long most;
  Along(Carver& carver, const Upsampling& p)
      : blends(carver.take<Blend>(p.out[2])), row(carver.take<T>(p.in[2] * p.c)),
        share(carver.take<T>(p.in[2] * most_heard(p))), first(carver.take<long>(p.in[2])),
        heard(carver.take<long>(p.in[2])), most(most_heard(p)) {}
  /// Blends of all outputs of the block at most, and a cell is in those of two cells' length on each side.
  static long most_heard(const Upsampling& p) { return std::min(p.out[2], 4 * p.scale[2] + 4); }
};
template <class T> Along<T> along_rows(const Upsampling& p) {
  Carver counter;
  Along<T>(counter, p);
  Carver carver(workspace(counter.used()));
  Along<T> a(carver, p);
  std::fill_n(a.heard, p.in[2], 0L);
  for (long w = 0; w < p.out[2]; ++w) {
    Blend& b = a.blends[w] = blend_of(p, 2, w + p.out_origin[2]);
    b.first -= p.in_origin[2], b.second -= p.in_origin[2];
    const T t = static_cast<T>(b.part) / static_cast<T>(b.of);
    const auto hears = [&](long i, T share) {
      if (a.heard[i] == 0) a.first[i] = w;
      a.share[i * a.most + a.heard[i]++] = share;
    };
    hears(b.first, T{1} - t);
    if (b.part != 0) hears(b.second, t);
  }
  return a;
}
/// The blend of rows of the block: where it lies if it is one of them, else in `row`.
template <class T> const T* blended(const WeightedRows& from, const View<const T, 5>& x, long n, T* row) {
  const long c = x.extents[1], cells = x.extents[4];
  const auto at = [&](int k) {
    return x.data + n * x.strides[0] + from.rows[k].d * x.strides[2] + from.rows[k].h * x.strides[3];
  };
  const auto weight = [&](int k) { return static_cast<T>(from.rows[k].weight); };
  const bool dense = x.strides[4] == c || cells == 1;
  if (from.count == 1 && dense) return at(0);
  const long pieces = dense ? 1 : cells, count = dense ? cells * c : c, step = dense ? 0 : x.strides[4];
  for (long w = 0; w < pieces; ++w) {
    const long o = w * step;
    if (from.count == 1)
      std::copy_n(at(0) + o, count, row + w * c);
    else if (from.count == 2)
      map_elements<T>(
          row + w * c, count, [a = weight(0), b = weight(1)](auto u, auto v) { return a * u + b * v; }, at(0) + o,
          at(1) + o);
    else
      map_elements<T>(
          row + w * c, count,
          [a = weight(0), b = weight(1), e = weight(2), f = weight(3)](auto s, auto t, auto u, auto v) {
            return a * s + b * t + (e * u + f * v);
          },
          at(0) + o, at(1) + o, at(2) + o, at(3) + o);
  }
  return row;
}
/// row = what the cells of a row get from a row of output gradients `g` whose cells are `step` apart.
template <class T> void gather_row(const Upsampling& p, const Along<T>& s, const T* g, long step) {
  for (long i = 0; i < p.in[2]; ++i) {
    const T* const from = g + (s.heard[i] ? s.first[i] : 0) * step;
    const T* const share = s.share + i * s.most;
    T* const to = s.row + i * p.c;
    long c = 0;
    for (; c + simd_lanes<T> <= p.c; c += simd_lanes<T>) {
      Simd<T> sum{};
      for (long k = 0; k < s.heard[i]; ++k) sum += load(from + k * step + c) * share[k];
      store(to + c, sum);
    }
    for (; c < p.c; ++c) {
      T sum{};
      for (long k = 0; k < s.heard[i]; ++k) sum += from[k * step + c] * share[k];
      to[c] = sum;
    }
  }
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
        const T* const row = detail::blended(from, x, n, s.row);
        T* to = y.data + n * y.strides[0] + d * y.strides[2] + h * y.strides[3];
        for (long w = 0; w < p.out[2]; ++w, to += y.strides[4]) {
          const Blend& b = s.blends[w];
          const T t = static_cast<T>(b.part) / static_cast<T>(b.of), rest = T{1} - t;
          if (b.part == 0)
            std::copy_n(row + b.first * p.c, p.c, to);
          else
            map_elements<T>(
                to, p.c, [t, rest](auto u, auto v) { return rest * u + t * v; }, row + b.first * p.c,
                row + b.second * p.c);
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
        detail::gather_row(p, s, dy.data + n * dy.strides[0] + d * dy.strides[2] + h * dy.strides[3], dy.strides[4]);
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
  T* const most = reinterpret_cast<T*>(workspace(std::size_t(c) * sizeof(T)));
  for_each_index(whole(Extents<3>{{x.extents[0], x.extents[2], x.extents[3]}}), [&](const Index<3>& i) {
    const T* const row = x.data + i[0] * x.strides[0] + i[1] * x.strides[2] + i[2] * x.strides[3];
    std::fill_n(most, c, -std::numeric_limits<T>::infinity());
    for (long w = 0; w < x.extents[4]; ++w)
      map_elements<T>(
          most, c, [](auto a, auto b) { return b > a ? b : a; }, most, row + w * x.strides[4]);
    // Rarely better than what was found so far: only then its place is looked for.
    for (long k = 0; k < c; ++k) {
      T& b = best[i[0] * c + k];
      std::int64_t& at = where[i[0] * c + k];
      if (!(most[k] > b) && at != no_cell) continue;
      for (long w = 0; w < x.extents[4]; ++w)
        if (row[w * x.strides[4] + k] == most[k]) {
          b = most[k];
          at = cell_number(Triple{{i[1], i[2], w}} + origin, global);
          break;
        }
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
