// kernel/normalisation.hpp: the passes of batch normalisation over the cells of one rank; the sums between them are the
// caller's to add up over ranks.
//
//   y = act(gamma * xhat + beta),  xhat = (x - mean) / sqrt(variance + epsilon),  per channel (Ioffe and Szegedy 2015)
//
// Sums are taken in float along a row of cells and in double beyond it. Views may have any strides in n,d,h,w; channels
// are contiguous.
//
// May know: base, kernel/problem.hpp, pointwise.hpp, workspace.hpp.
// Example: channel_sums<float>(x, sums);  ...  normalise<float>(x, mean, scale, beta, Activation::relu, 0, y);
#pragma once

#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

namespace detail {
/// Calls f(cells) for every row of x: `cells` in w, each with its channels.
template <class T, class F> void for_each_row(const View<T, 5>& x, const F& f) {
  if (x.empty()) return;
  for_each_index(whole(Extents<3>{{x.extents[0], x.extents[2], x.extents[3]}}),
                 [&](const Index<3>& i) { f(&x(i[0], 0, i[1], i[2], 0), i); });
}
template <class T> void require_channels(const View<T, 5>& x) {
  TESSERA_REQUIRE(x.strides[1] == 1 || x.extents[1] == 1, "batch normalisation: channels must be contiguous, strides ",
                  x.strides);
}
/// `count` sums over the cells of x: add_cell(index of the cell, row) adds a cell's part to the sums of its row.
template <class T, class F> void sum_rows(const View<const T, 5>& x, long count, const F& add_cell, double* sums) {
  require_channels(x);
  std::fill_n(sums, count, 0.0);
  T* const row = Carver(workspace(std::size_t(count) * sizeof(T))).take<T>(count);
  for_each_row(x, [&](const T*, const Index<3>& i) {
    std::fill_n(row, count, T{});
    for (long w = 0; w < x.extents[4]; ++w) add_cell(Index<5>{{i[0], 0, i[1], i[2], w}}, row);
    for (long c = 0; c < count; ++c) sums[c] += static_cast<double>(row[c]);
  });
}
} // namespace detail

/// sums[c] = the sum of x over samples and cells.
template <class T> void channel_sums(const View<const T, 5>& x, double* sums) {
  const long channels = x.extents[1];
  detail::sum_rows<T>(
      x, channels,
      [&](const Index<5>& i, T* row) {
        const T* from = &x[i];
        for (long c = 0; c < channels; ++c) row[c] += from[c];
      },
      sums);
}

/// sums[c] = the sum of (x - mean[c])^2 over samples and cells.
template <class T> void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
  const long channels = x.extents[1];
  detail::sum_rows<T>(
      x, channels,
      [&](const Index<5>& i, T* row) {
        const T* from = &x[i];
        for (long c = 0; c < channels; ++c) row[c] += (from[c] - mean[c]) * (from[c] - mean[c]);
      },
      sums);
}

/// y = act(scale[c] * (x - mean[c]) + beta[c]): the mean goes first, so that a large one costs no digits.
template <class T>
void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, Activation a, double slope,
               const View<T, 5>& y) {
  check_extents("y", y.extents, x.extents);
  detail::require_channels(x), detail::require_channels(y);
  with_activation<T>(a, slope, [&](const auto& act) {
    detail::for_each_row(x, [&](const T* from, const Index<3>& i) {
      T* to = &y(i[0], 0, i[1], i[2], 0);
      for (long w = 0; w < x.extents[4]; ++w, from += x.strides[4], to += y.strides[4])
        map_elements(
            to, x.extents[1], [&act](auto v, auto m, auto s, auto b) { return act.value(s * (v - m) + b); }, from, mean,
            scale, beta);
    });
  });
}

/// sums[c] = sum of dy, sums[channels + c] = sum of dy * (x - mean[c]), over samples and cells.
template <class T>
void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
  check_extents("dy", dy.extents, x.extents);
  detail::require_channels(dy);
  const long channels = x.extents[1];
  detail::sum_rows<T>(
      x, 2 * channels,
      [&](const Index<5>& i, T* row) {
        const T *from = &x[i], *g = &dy[i];
        for (long c = 0; c < channels; ++c) row[c] += g[c];
        for (long c = 0; c < channels; ++c) row[channels + c] += g[c] * (from[c] - mean[c]);
      },
      sums);
}

/// dx = a[c] * dy + b[c] * (x - mean[c]) + e[c]
template <class T>
void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                            const T* b, const T* e, const View<T, 5>& dx) {
  check_extents("dx", dx.extents, x.extents);
  detail::require_channels(dx);
  detail::for_each_row(x, [&](const T* from, const Index<3>& i) {
    const T* g = &dy(i[0], 0, i[1], i[2], 0);
    T* to = &dx(i[0], 0, i[1], i[2], 0);
    for (long w = 0; w < x.extents[4]; ++w, from += x.strides[4], g += dy.strides[4], to += dx.strides[4])
      map_elements(
          to, x.extents[1],
          [](auto gv, auto v, auto m, auto ca, auto cb, auto ce) { return ca * gv + (cb * (v - m) + ce); }, g, from,
          mean, a, b, e);
  });
}

} // namespace tessera::kernel
