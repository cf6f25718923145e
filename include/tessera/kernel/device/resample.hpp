// kernel/device/resample.hpp: upsampling, and the parts of global pooling, one element a thread.
//
// The gradient of an upsampling gathers: each cell looks for the outputs made of it, so sums have one order. Numbers
// per sample and channel are host memory, as for every backend.
//
// May know: base, space, kernel.
// Example: upsample_forward<Space, float>(p, x, y);
#pragma once

#include <tessera/kernel/device/normalisation.hpp>
#include <tessera/kernel/reference_resample.hpp>

namespace tessera::kernel::device {

/// The share of cell `i` of the block in the block's output `q`, in dim k.
TESSERA_HD constexpr double share_of(const Upsampling& p, int k, long q, long i) {
  const Blend b = blend_of(p, k, q + p.out_origin[k]);
  const long cell = i + p.in_origin[k];
  if (cell == b.first) return double(b.of - b.part) / double(b.of);
  return cell == b.second ? double(b.part) / double(b.of) : 0.0;
}

template <class T> struct UpsampleForward {
  Upsampling p;
  View<const T, 5> x;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(x.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    Blend b[3];
    for (int k = 0; k < 3; ++k) b[k] = blend_of(p, k, at[2 + k] + p.out_origin[k]);
    T sum{};
    for (int corner = 0; corner < 8; ++corner) {
      T weight{1};
      Index<5> from = at;
      for (int k = 0; k < 3; ++k) {
        const bool second = (corner >> (2 - k) & 1) != 0;
        weight *= static_cast<T>(second ? b[k].part : b[k].of - b[k].part) / static_cast<T>(b[k].of);
        from[2 + k] = (second ? b[k].second : b[k].first) - p.in_origin[k];
      }
      if (weight != T{}) sum += weight * x[from];
    }
    y[at] = sum;
  }
};
template <class T> struct UpsampleBackward {
  Upsampling p;
  View<const T, 5> dy;
  View<T, 5> dx;
  template <class V> void operands(const V& visit) { visit(dy.data), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    Interval near[3]; // the outputs that may be made of the cell: at most two cells' length away
    for (int k = 0; k < 3; ++k) {
      const long cell = at[2 + k] + p.in_origin[k], scale = p.scale[k];
      const long first = (cell - 2) * scale - p.out_origin[k], last = (cell + 3) * scale - p.out_origin[k];
      near[k] = {first > 0 ? first : 0, last < p.out[k] ? last : p.out[k]};
    }
    T sum{};
    Index<5> q = at;
    for (q[2] = near[0].first; q[2] < near[0].last; ++q[2]) {
      const double d = share_of(p, 0, q[2], at[2]);
      for (q[3] = near[1].first; d > 0 && q[3] < near[1].last; ++q[3]) {
        const double h = share_of(p, 1, q[3], at[3]);
        for (q[4] = near[2].first; h > 0 && q[4] < near[2].last; ++q[4]) {
          const double w = share_of(p, 2, q[4], at[4]);
          if (w > 0) sum += static_cast<T>(d * h * w) * dy[q];
        }
      }
    }
    dx[at] = sum;
  }
};
template <class Space, class T>
void upsample_forward(const Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
  check_problem(p);
  check_extents("x", x.extents, x_extents(p));
  check_extents("y", y.extents, y_extents(p));
  launch<Space>(y.size(), UpsampleForward<T>{p, x, y});
}
template <class Space, class T>
void upsample_backward(const Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
  check_problem(p);
  check_extents("dy", dy.extents, y_extents(p));
  check_extents("dx", dx.extents, x_extents(p));
  launch<Space>(dx.size(), UpsampleBackward<T>{p, dy, dx});
}

/// Element n * c: the maximum of one sample's channel, and the number of the first cell that holds it.
template <class T> struct VolumeMaxima {
  View<const T, 5> x;
  Triple origin, global;
  T* best;
  std::int64_t* where;
  T lowest;
  template <class V> void operands(const V& visit) { visit(x.data), visit(best), visit(where); }
  TESSERA_HD void operator()(long i) const {
    const long n = i / x.extents[1], c = i % x.extents[1];
    T most = lowest;
    std::int64_t at = no_cell;
    for (long d = 0; d < x.extents[2]; ++d)
      for (long h = 0; h < x.extents[3]; ++h)
        for (long w = 0; w < x.extents[4]; ++w) {
          const T v = x(n, c, d, h, w);
          if (!(v > most) && !(at == no_cell && v == most)) continue;
          most = v;
          at = ((d + origin[0]) * global[1] + h + origin[1]) * global[2] + w + origin[2];
        }
    best[i] = most, where[i] = at;
  }
};
template <class Space, class T>
void volume_maxima(const View<const T, 5>& x, const Triple& origin, const Triple& global, T* best,
                   std::int64_t* where) {
  thread_local Buffer<T, Space> values;
  thread_local Buffer<std::int64_t, Space> cells;
  const auto count = std::size_t(x.extents[0] * x.extents[1]);
  if (values.size() < count) values = Buffer<T, Space>(count), cells = Buffer<std::int64_t, Space>(count);
  launch<Space>(long(count),
                VolumeMaxima<T>{x, origin, global, values.data(), cells.data(), -std::numeric_limits<T>::infinity()});
  read_back<Space>(best, std::as_const(values).data(), count);
  read_back<Space>(where, std::as_const(cells).data(), count);
}

/// dy in the cells whose numbers are in `where`, 0 in all others.
template <class T> struct VolumeMaximaBackward {
  View<const T, 5> dy;
  const std::int64_t* where;
  Triple origin, global;
  View<T, 5> dx;
  template <class V> void operands(const V& visit) { visit(dy.data), visit(where), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    const std::int64_t number = ((at[2] + origin[0]) * global[1] + at[3] + origin[1]) * global[2] + at[4] + origin[2];
    dx[at] = number == where[at[0] * dx.extents[1] + at[1]] ? dy(at[0], at[1], 0, 0, 0) : T{};
  }
};
template <class Space, class T>
void volume_maxima_backward(const View<const T, 5>& dy, const std::int64_t* where, const Triple& origin,
                            const Triple& global, const View<T, 5>& dx) {
  const PerChannel<Space, std::int64_t> there({where}, dx.extents[0] * dx.extents[1]);
  launch<Space>(dx.size(), VolumeMaximaBackward<T>{dy, there[0], origin, global, dx});
}

/// y = factor * values (n, c, 1, 1, 1) in every cell.
template <class T> struct Spread {
  View<const T, 5> values;
  double factor;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(values.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    y[at] = static_cast<T>(factor * static_cast<double>(values(at[0], at[1], 0, 0, 0)));
  }
};
template <class Space, class T> void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
  launch<Space>(y.size(), Spread<T>{values, factor, y});
}
/// y (n, c, 1, 1, 1) = numbers in logical order.
template <class T> struct SetValues {
  const double* values;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(values), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    y[at] = static_cast<T>(values[at[0] * y.extents[1] + at[1]]);
  }
};
template <class Space, class T> void set_values(const double* values, const View<T, 5>& y) {
  const PerChannel<Space, double> there({values}, y.extents[0] * y.extents[1]);
  launch<Space>(y.size(), SetValues<T>{there[0], y});
}

} // namespace tessera::kernel::device
