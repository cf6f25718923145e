// kernel/device/sums.hpp: sums over the cells of a tensor, per channel, in a fixed order.
//
// No atomics and no shared memory: many threads sum strided slices of the cells in double, fewer sum their sums, and so
// on until one is left per channel. Neighbouring threads read neighbouring channels. The order depends on the extents
// alone, so replicas agree bitwise.
//
// May know: base, space, kernel.
// Example: column_sums<Space>(Elements<float>{x}, sums_on_host);   sum_channels<Space>(dy, db, Gradient::overwrite);
#pragma once

#include <tessera/kernel/device/pointwise.hpp>
#include <tessera/space/host_access.hpp>

namespace tessera::kernel::device {

/// Scratch memory of the calling thread: at least `bytes`, contents undefined. For one kernel call at a time on the
/// thread's own stream.
template <class Space> std::byte* scratch(std::size_t bytes) {
  thread_local Buffer<std::byte, Space> block;
  if (block.size() < bytes) {
    block = {}; // the old block goes before the new one comes
    block = Buffer<std::byte, Space>(bytes);
  }
  return block.data();
}

// Terms: what is summed. term(index, column) is what the cell at n,d,h,w (channel 0) adds to a column.

/// x itself; a column a channel.
template <class T> struct Elements {
  View<const T, 5> x;
  template <class V> void operands(const V& visit) { visit(x.data); }
  long columns() const { return x.extents[1]; }
  const Extents<5>& extents() const { return x.extents; }
  TESSERA_HD double operator()(const Index<5>& at, long c) const {
    return static_cast<double>(x(at[0], c, at[2], at[3], at[4]));
  }
};
/// (x - mean)^2; a column a channel.
template <class T> struct SquaredDeviations {
  View<const T, 5> x;
  const T* mean;
  template <class V> void operands(const V& visit) { visit(x.data), visit(mean); }
  long columns() const { return x.extents[1]; }
  const Extents<5>& extents() const { return x.extents; }
  TESSERA_HD double operator()(const Index<5>& at, long c) const {
    const double d = static_cast<double>(x(at[0], c, at[2], at[3], at[4])) - static_cast<double>(mean[c]);
    return d * d;
  }
};
/// dy in the first columns, dy * (x - mean) in as many more.
template <class T> struct GradientAndDeviation {
  View<const T, 5> x, dy;
  const T* mean;
  template <class V> void operands(const V& visit) { visit(x.data), visit(dy.data), visit(mean); }
  long columns() const { return 2 * x.extents[1]; }
  const Extents<5>& extents() const { return x.extents; }
  TESSERA_HD double operator()(const Index<5>& at, long column) const {
    const long channels = x.extents[1], c = column < channels ? column : column - channels;
    const double g = static_cast<double>(dy(at[0], c, at[2], at[3], at[4]));
    if (column < channels) return g;
    return g * (static_cast<double>(x(at[0], c, at[2], at[3], at[4])) - static_cast<double>(mean[c]));
  }
};

/// Element slice * columns + column: the sum of a term over the cells slice, slice + slices, ...
template <class Term> struct SliceSums {
  Term term;
  double* to;
  long columns, slices, cells;
  Extents<5> extents; ///< of one channel
  template <class V> void operands(const V& visit) { term.operands(visit), visit(to); }
  TESSERA_HD void operator()(long i) const {
    long column = i;
    const long slice = divide(column, columns);
    double sum = 0;
    for (long cell = slice; cell < cells; cell += slices) sum += term(index_of(cell, extents), column);
    to[i] = sum;
  }
};
/// The same over the rows of a table of sums; at last into `to`.
template <class To> struct RowSums {
  const double* from;
  To* to;
  long columns, slices, rows;
  Gradient mode;
  template <class V> void operands(const V& visit) { visit(from), visit(to); }
  TESSERA_HD void operator()(long i) const {
    long column = i;
    const long slice = divide(column, columns);
    double sum = mode == Gradient::accumulate ? static_cast<double>(to[i]) : 0;
    for (long row = slice; row < rows; row += slices) sum += from[row * columns + column];
    to[i] = static_cast<To>(sum);
  }
};

/// to[column] = or += the sum of a term over all cells; `to` is memory of the space.
template <class Space, class Term, class To> void column_sums(const Term& term, To* to, Gradient mode) {
  constexpr long threads = 1L << 16, a_slice = 64;
  const long columns = term.columns();
  Extents<5> cells = term.extents();
  cells[1] = 1;
  if (columns == 0) return;
  const long count = product(cells);
  const long first = std::clamp(threads / columns, 1L, std::max(1L, count / 4));
  const long second = (first + a_slice - 1) / a_slice;
  double* const sums =
      reinterpret_cast<double*>(scratch<Space>(std::size_t((first + second) * columns) * sizeof(double)));
  double* const fewer = sums + first * columns;
  launch<Space>(first * columns, SliceSums<Term>{term, sums, columns, first, count, cells});
  launch<Space>(second * columns, RowSums<double>{sums, fewer, columns, second, first, Gradient::overwrite});
  launch<Space>(columns, RowSums<To>{fewer, to, columns, 1, second, mode});
}
/// db = or += the sum of dy over samples and cells.
template <class Space, class T> void sum_channels(const View<const T, 5>& dy, T* db, Gradient mode) {
  column_sums<Space>(Elements<T>{dy}, db, mode);
}
/// The sums, in host memory; waits for them.
template <class Space, class Term> void column_sums_to_host(const Term& term, double* to_host) {
  thread_local Buffer<double, Space> result;
  const auto columns = std::size_t(term.columns());
  if (result.size() < columns) result = Buffer<double, Space>(columns);
  column_sums<Space>(term, result.data(), Gradient::overwrite);
  read_back<Space>(to_host, std::as_const(result).data(), columns);
}

} // namespace tessera::kernel::device
