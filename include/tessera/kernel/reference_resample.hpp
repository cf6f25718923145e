// kernel/reference_resample.hpp: upsampling and the parts of global maxima as plain loops.
//
// May know: base, kernel/problem.hpp, check.hpp.
// Example: reference::upsampling<double>(p, x, y);   reference::volume_maxima<double>(x, origin, global, best, where);
#pragma once

#include <cstdint>
#include <limits>
#include <tessera/base/copy.hpp>
#include <tessera/kernel/check.hpp>

namespace tessera::kernel {

/// The number of a cell of the global volume, in d,h,w order.
constexpr std::int64_t cell_number(const Triple& cell, const Triple& global) {
  return (cell[0] * global[1] + cell[1]) * global[2] + cell[2];
}
/// Where no cell is: larger than the number of any.
inline constexpr std::int64_t no_cell = std::numeric_limits<std::int64_t>::max();

namespace reference {

namespace detail {
/// Calls f(x index, weight) for the cells of the block that the block's output `i` is made of.
template <class T, class F> void for_each_source(const Upsampling& p, const Index<5>& i, const F& f) {
  Blend b[3];
  for (int k = 0; k < 3; ++k) b[k] = blend_of(p, k, i[2 + k] + p.out_origin[k]);
  for_each_index(whole(Extents<3>{{2, 2, 2}}), [&](const Index<3>& corner) {
    T weight{1};
    Index<5> from = i;
    for (int k = 0; k < 3; ++k) {
      const long part = corner[k] ? b[k].part : b[k].of - b[k].part;
      weight *= static_cast<T>(part) / static_cast<T>(b[k].of);
      from[2 + k] = (corner[k] ? b[k].second : b[k].first) - p.in_origin[k];
    }
    if (weight != T{}) f(from, weight);
  });
}
} // namespace detail

/// y = the upsampling of x.
template <class T> void upsampling(const Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  for_each_index(whole(y.extents), [&](const Index<5>& i) {
    T sum{};
    detail::for_each_source<T>(p, i, [&](const Index<5>& from, T weight) { sum += weight * x[from]; });
    y[i] = sum;
  });
}
/// dx = its adjoint applied to dy. Writes the whole of dx.
template <class T> void upsampling_backward(const Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
  fill_block(dx, T{});
  for_each_index(whole(dy.extents), [&](const Index<5>& i) {
    detail::for_each_source<T>(p, i, [&](const Index<5>& from, T weight) { dx[from] += weight * dy[i]; });
  });
}

/// For each sample and channel of the block that begins at cell `origin` of a volume `global`: the maximum, and the
/// number of the first cell that holds it; of an empty block minus infinity, and no_cell. What is not a number is no
/// maximum. Both arrays hold n * c.
template <class T>
void volume_maxima(const View<const T, 5>& x, const Triple& origin, const Triple& global, T* best,
                   std::int64_t* where) {
  for (long k = 0; k < x.extents[0] * x.extents[1]; ++k)
    best[k] = -std::numeric_limits<T>::infinity(), where[k] = no_cell;
  for_each_index(whole(x.extents), [&](const Index<5>& i) { // in d,h,w order within each sample and channel
    const long k = i[0] * x.extents[1] + i[1];
    if (!(x[i] > best[k]) && !(where[k] == no_cell && x[i] == best[k])) return;
    best[k] = x[i];
    where[k] = cell_number(Triple{{i[2], i[3], i[4]}} + origin, global);
  });
}
/// dx = dy (n, c, 1, 1, 1) in the cells of the block whose numbers are in `where`, 0 in all others.
template <class T>
void volume_maxima_backward(const View<const T, 5>& dy, const std::int64_t* where, const Triple& origin,
                            const Triple& global, const View<T, 5>& dx) {
  fill_block(dx, T{});
  for (long n = 0; n < dx.extents[0]; ++n)
    for (long c = 0; c < dx.extents[1]; ++c) {
      const std::int64_t at = where[n * dx.extents[1] + c];
      if (at == no_cell) continue;
      const Triple cell = Triple{{at / (global[1] * global[2]), at / global[2] % global[1], at % global[2]}} - origin;
      if (Box<3>{{}, {{dx.extents[2], dx.extents[3], dx.extents[4]}}}.contains(cell))
        dx(n, c, cell[0], cell[1], cell[2]) = dy(n, c, 0, 0, 0);
    }
}

/// y = factor * values (n, c, 1, 1, 1) in every cell.
template <class T> void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
  for_each_index(whole(y.extents), [&](const Index<5>& i) {
    y[i] = static_cast<T>(factor * static_cast<double>(values(i[0], i[1], 0, 0, 0)));
  });
}
/// y (n, c, 1, 1, 1) = numbers on the host.
template <class T> void set_values(const double* values, const View<T, 5>& y) {
  for_each_index(whole(y.extents),
                 [&](const Index<5>& i) { y[i] = static_cast<T>(values[i[0] * y.extents[1] + i[1]]); });
}

} // namespace reference
} // namespace tessera::kernel
