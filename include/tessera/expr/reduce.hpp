// expr/reduce.hpp: global numbers from distributed tensors: sums, extremes, scalar products.
//
// Each costs one all-reduce over the ranks that hold different elements; replicas count once. The same data on the same
// grid gives the same bits. Sums run in double (floating point) or 64 bits (integers), in eight lanes.
//
// May know: base, layout, space, comm, tensor, move, expr.
// Example: const double error = norm2(u - exact) / norm2(exact);
#pragma once

#include <tessera/expr/evaluate.hpp>

namespace tessera {

namespace detail {

/// The type that sums of V run in.
template <class V> using Total = std::conditional_t<std::is_floating_point_v<V>, double, std::int64_t>;

/// Calls row(length, reader) for the rows of this rank's box, halos in place.
template <int N, class E, class F> void for_each_value_row(const char* what, const E& e, const F& row) {
  static_assert(blocks_in<E> == 0, "tessera: a reduction of a convolution or a pooling; assign it to a tensor first");
  Home<N> home;
  find_home(e, home);
  std::vector<Buffer<std::byte>> vectors;
  Evaluation<N, E> run(what, e, home.map, vectors);
  run.start();
  run.finish();
  run.rows(home.map.box(home.grid->rank()), true,
           [&](const Index<N>&, long count, const auto& reader) { row(count, reader); });
}
template <int N, class E> Home<N> home_of(const E& e) {
  Home<N> home;
  find_home(e, home);
  return home;
}

/// The ranks among which the elements, or addends of them, are spread.
template <int N> const Communicator& holders_of(const Home<N>& home) {
  return home.grid->over(~home.map.layout().mask(Placement::Kind::rep));
}

template <class E> auto sum_of_node(const char* what, const E& e) {
  constexpr int N = E::shape.rank;
  using S = Total<typename E::value_type>;
  constexpr int lanes = 8;
  S lane[lanes] = {};
  for_each_value_row<N>(what, e, [&](long count, const auto& reader) {
    const auto r = reader;
    S part[lanes] = {};
    long i = 0;
    for (; i + lanes <= count; i += lanes)
      for (int k = 0; k < lanes; ++k) part[k] += static_cast<S>(r(i + k));
    for (int k = 0; i < count; ++i, ++k) part[k] += static_cast<S>(r(i));
    for (int k = 0; k < lanes; ++k) lane[k] += part[k];
  });
  S sum{};
  for (const S& s : lane) sum += s;
  return holders_of(home_of<N>(e)).all_reduce(sum);
}

/// The extreme by `better`; a NaN anywhere gives NaN.
template <class E, class Better>
auto extreme_of_node(const char* what, const E& e, comm::Reduce how, const Better& better) {
  static_assert(!E::shape.pending, "tessera: the extreme of a pending sum; assign it to a tensor with rep or a split "
                                   "first: z = y adds up");
  constexpr int N = E::shape.rank;
  using V = typename E::value_type;
  using S = Total<V>;
  const Home<N> home = home_of<N>(e);
  TESSERA_REQUIRE(product(home.map.extents()) > 0, what, ": a tensor of extents ", home.map.extents(),
                  " has no elements and so no extreme");
  constexpr V lowest =
      std::is_floating_point_v<V> ? -std::numeric_limits<V>::infinity() : std::numeric_limits<V>::lowest();
  constexpr V highest =
      std::is_floating_point_v<V> ? std::numeric_limits<V>::infinity() : std::numeric_limits<V>::max();
  V best = how == comm::Reduce::max ? lowest : highest;
  bool nan = false;
  for_each_value_row<N>(what, e, [&](long count, const auto& reader) {
    const auto r = reader;
    V row_best = best;
    bool row_nan = false;
    for (long i = 0; i < count; ++i) {
      const V v = r(i);
      row_best = better(v, row_best) ? v : row_best;
      row_nan |= v != v;
    }
    best = row_best;
    nan |= row_nan;
  });
  // Both in one message. Transports do not say what the larger of a number and a NaN is.
  S both[2] = {static_cast<S>(best), how == comm::Reduce::max ? S(nan) : S(-S(nan))};
  holders_of(home).iall_reduce(std::span<S>(both), how).wait();
  if constexpr (std::is_floating_point_v<V>)
    if (both[1] != S{}) return std::numeric_limits<V>::quiet_NaN();
  return static_cast<V>(both[0]);
}

struct Square : Nonlinear {
  template <class A> constexpr auto operator()(A a) const {
    return in_common(a, a, [](auto x, auto y) { return x * y; });
  }
};

} // namespace detail

/// The sum of all elements. Collective, as everything here. A pending sum is added up.
template <Expression A> auto sum_of(A&& a) {
  return detail::sum_of_node("sum_of", detail::as_node(std::forward<A>(a)));
}
/// The mean of all elements; the divisor is the number of elements of the global tensor.
template <Expression A> double mean_of(A&& a) {
  const auto node = detail::as_node(std::forward<A>(a));
  constexpr int N = decltype(node)::shape.rank;
  const long count = product(detail::home_of<N>(node).map.extents());
  TESSERA_REQUIRE(count > 0, "mean_of: the tensor has no elements");
  return static_cast<double>(detail::sum_of_node("mean_of", node)) / static_cast<double>(count);
}
/// The largest element; NaN if there is one.
template <Expression A> auto max_of(A&& a) {
  return detail::extreme_of_node("max_of", detail::as_node(std::forward<A>(a)), comm::Reduce::max,
                                 [](auto x, auto y) { return x > y; });
}
/// The smallest element; NaN if there is one.
template <Expression A> auto min_of(A&& a) {
  return detail::extreme_of_node("min_of", detail::as_node(std::forward<A>(a)), comm::Reduce::min,
                                 [](auto x, auto y) { return x < y; });
}
/// The sum of a[i] * b[i].
template <Expression A, Expression B> auto dot(A&& a, B&& b) {
  const auto product_of = detail::apply(detail::Times{}, std::forward<A>(a), std::forward<B>(b));
  return detail::sum_of_node("dot", product_of);
}
/// The root of the sum of squares.
template <Expression A> double norm2(A&& a) {
  const auto squares = detail::apply(detail::Square{}, std::forward<A>(a));
  return std::sqrt(static_cast<double>(detail::sum_of_node("norm2", squares)));
}

} // namespace tessera
