// kernel/check.hpp: what every kernel demands of its operands, and the geometry of windows.
//
// May know: base, kernel/problem.hpp.
// Example: check_operands(problem, x.extents, w.extents, y.extents);
#pragma once

#include <algorithm>
#include <tessera/base/view.hpp>
#include <tessera/kernel/problem.hpp>

namespace tessera::kernel {

/// The cells a window spans, dilation included.
constexpr long span(long k, long dilation) { return dilation * (k - 1) + 1; }

/// The half-open interval of taps (or of anything else) that count.
struct Interval {
  long first = 0, last = 0;
  constexpr bool empty() const { return last <= first; }
  constexpr long size() const { return empty() ? 0 : last - first; }
};

/// The taps k, 0 <= k < count, with lo <= start + k*dilation < hi.
constexpr Interval taps_inside(long start, long count, long dilation, long lo, long hi) {
  const long first = start >= lo ? 0 : std::min(count, (lo - start + dilation - 1) / dilation);
  const long last = hi <= start ? 0 : std::min(count, (hi - 1 - start) / dilation + 1);
  return {first, std::max(first, last)};
}

/// The taps of output `q` in dim `i` (0: depth) that fall into the block.
constexpr Interval taps(const Conv& p, int i, long q) {
  return taps_inside(q * p.stride[i] - p.below[i], p.k[i], p.dilation[i], 0, p.in[i]);
}

/// The first input channel that output channel `o` reads.
constexpr long first_input(const Conv& p, long o) { return o / (p.co / p.groups) * (p.ci / p.groups); }

inline Extents<5> x_extents(const Conv& p) { return {{p.n, p.ci, p.in[0], p.in[1], p.in[2]}}; }
inline Extents<5> y_extents(const Conv& p) { return {{p.n, p.co, p.out[0], p.out[1], p.out[2]}}; }
inline Extents<5> w_extents(const Conv& p) { return {{p.co, p.ci / p.groups, p.k[0], p.k[1], p.k[2]}}; }
inline Extents<5> x_extents(const Pooling& p) { return {{p.n, p.c, p.in[0], p.in[1], p.in[2]}}; }
inline Extents<5> y_extents(const Pooling& p) { return {{p.n, p.c, p.out[0], p.out[1], p.out[2]}}; }

/// Throws usage_error unless the numbers of the problem make sense.
inline void check_problem(const Conv& p) {
  TESSERA_REQUIRE(p.n >= 0 && p.ci >= 0 && p.co >= 0, p.str(), ": negative extents");
  TESSERA_REQUIRE(p.groups >= 1 && p.ci % p.groups == 0 && p.co % p.groups == 0, p.str(),
                  ": the channels do not divide into ", p.groups, " groups");
  for (int i = 0; i < 3; ++i) {
    TESSERA_REQUIRE(p.k[i] >= 1 && p.stride[i] >= 1 && p.dilation[i] >= 1, p.str(), ": kernel, stride and dilation of ",
                    "dim ", i, " must be at least 1");
    TESSERA_REQUIRE(p.below[i] >= 0 && p.above[i] >= 0 && p.in[i] >= 0 && p.out[i] >= 0, p.str(),
                    ": padding and extents of dim ", i, " must not be negative");
    const long room = p.in[i] + p.below[i] + p.above[i] - span(p.k[i], p.dilation[i]);
    TESSERA_REQUIRE(p.out[i] == 0 || (room >= 0 && p.out[i] <= room / p.stride[i] + 1), p.str(), ": dim ", i, " has ",
                    p.in[i] + p.below[i] + p.above[i], " cells with padding, too few for ", p.out[i], " windows of ",
                    span(p.k[i], p.dilation[i]), " at stride ", p.stride[i]);
  }
}

inline void check_extents(const char* what, const Extents<5>& given, const Extents<5>& wanted) {
  TESSERA_REQUIRE(given == wanted, what, " has extents ", given, " (n,c,d,h,w), the problem wants ", wanted);
}

/// Throws usage_error unless every window cell inside the global tensor is in the block.
inline void check_problem(const Pooling& p) {
  for (int i = 0; i < 3; ++i) {
    TESSERA_REQUIRE(p.k[i] >= 1 && p.stride[i] >= 1 && p.dilation[i] >= 1, "pooling: kernel ", p.k, ", stride ",
                    p.stride, " and dilation ", p.dilation, " must be at least 1");
    if (p.out[i] == 0) continue;
    long lo = p.out_origin[i] * p.stride[i] - p.padding[i];
    long hi = lo + (p.out[i] - 1) * p.stride[i] + span(p.k[i], p.dilation[i]);
    lo = std::max(lo, 0L), hi = std::min(hi, p.global[i]);
    TESSERA_REQUIRE(hi <= lo || (lo >= p.in_origin[i] && hi <= p.in_origin[i] + p.in[i]),
                    "pooling: the windows of dim ", i, " read the cells [", lo, ",", hi, "), the block holds [",
                    p.in_origin[i], ",", p.in_origin[i] + p.in[i], "); give it its halo");
  }
}

/// The taps of the block's output `q` in dim `i` that fall into the tensor, and the block's cell of tap 0.
struct PoolWindow {
  Interval taps;
  long start = 0;
};
constexpr PoolWindow window_of(const Pooling& p, int i, long q) {
  const long start = (q + p.out_origin[i]) * p.stride[i] - p.padding[i] - p.in_origin[i];
  const long lo = std::max(0L, -p.in_origin[i]), hi = std::min(p.in[i], p.global[i] - p.in_origin[i]);
  return {taps_inside(start, p.k[i], p.dilation[i], lo, hi), start};
}

/// The cells of the window of the block's output `q` in dim `i` that an average divides by.
constexpr long counted_cells(const Pooling& p, int i, long q) {
  if (!p.count_padding) return window_of(p, i, q).taps.size();
  const long start = (q + p.out_origin[i]) * p.stride[i] - p.padding[i];
  return taps_inside(start, p.k[i], p.dilation[i], -p.padding[i], p.global[i] + p.padding_above[i]).size();
}

inline Extents<5> x_extents(const Upsampling& p) { return {{p.n, p.c, p.in[0], p.in[1], p.in[2]}}; }
inline Extents<5> y_extents(const Upsampling& p) { return {{p.n, p.c, p.out[0], p.out[1], p.out[2]}}; }

/// Linear interpolation between two cells: (1 - part/of) x[first] + part/of x[second].
struct Blend {
  long first = 0, second = 0, part = 0, of = 1;
};
/// What the global output `q` of dim `i` is made of, in global cells; never decreasing with q.
constexpr Blend blend_of(const Upsampling& p, int i, long q) {
  const long scale = p.scale[i], cells = p.global[i];
  if (p.kind == Interpolation::nearest) return {q / scale, q / scale, 0, 1};
  const long last = cells * scale - 1;
  const long at = p.align_corners ? q * (cells - 1) : std::max(0L, 2 * q + 1 - scale);
  const long of = p.align_corners ? std::max(1L, last) : 2 * scale;
  if (at % of == 0 || at / of >= cells - 1) return {at / of, at / of, 0, 1};
  return {at / of, at / of + 1, at % of, of};
}
/// Throws usage_error unless the block holds every cell that its outputs are made of.
inline void check_problem(const Upsampling& p) {
  for (int i = 0; i < 3; ++i) {
    TESSERA_REQUIRE(p.scale[i] >= 1, "upsampling: scale ", p.scale, " must be at least 1");
    if (p.out[i] == 0) continue;
    const long lo = blend_of(p, i, p.out_origin[i]).first;
    const long hi = blend_of(p, i, p.out_origin[i] + p.out[i] - 1).second + 1;
    TESSERA_REQUIRE(lo >= p.in_origin[i] && hi <= p.in_origin[i] + p.in[i], "upsampling: the outputs of dim ", i,
                    " are made of the cells [", lo, ",", hi, "), the block holds [", p.in_origin[i], ",",
                    p.in_origin[i] + p.in[i], "); give it its halo");
  }
}

} // namespace tessera::kernel
