// expr/node.hpp: the syntax of expressions. A node stores its operands and nothing else: tensors by reference,
// temporaries by value. What fits together is decided here, when compiling; work begins at the assignment.
//
// May know: base, layout, space, comm, tensor.
// Example: auto e = dt * (u - v);   // refers to u and v, computes nothing;   w = e;   // computes
#pragma once

#include <tessera/tensor/dist_tensor.hpp>
#include <tuple>

namespace tessera {

namespace detail {

struct NodeTag {};

/// What a node is, as far as it is known when compiling. Rank 0: a number.
struct Shape {
  int rank = 0;
  Layout layout{};
  bool pending = false; ///< each rank of some axis holds an addend
};

/// How a pointwise function treats addends: may it be applied before they are added up?
enum class Rule {
  adds,    ///< linear in all arguments together
  scales,  ///< linear in each argument alone
  divides, ///< linear in the first argument
  mixes    ///< anything
};

enum class Misfit { none, layouts, ranks, vector, sum };

struct Joined {
  Shape shape;
  Misfit misfit = Misfit::none;
};

/// Vectors (rank 1, c) meet tensors that have channels.
constexpr bool has_channels(int rank) { return rank == 5 || rank == 4 || rank == 2; }

/// The shape of a pointwise function of nodes of these shapes.
template <class... S> constexpr Joined join(Rule rule, const S&... shapes) {
  const Shape all[] = {shapes...};
  Joined j;
  for (const Shape& s : all)
    if (s.rank > j.shape.rank) j.shape = s;
  unsigned pending = 0;
  for (const Shape& s : all) {
    pending += s.pending;
    if (s.rank == 0) continue;
    if (s.rank == j.shape.rank) {
      if (s.layout != j.shape.layout) j.misfit = Misfit::layouts;
    } else if (s.rank != 1 || !has_channels(j.shape.rank)) {
      j.misfit = Misfit::ranks;
    } else if (s.layout != replicated(j.shape.layout.axes)) {
      j.misfit = Misfit::vector;
    }
  }
  const bool linear = pending == 0 || (rule == Rule::adds && pending == sizeof...(S)) ||
                      (rule == Rule::scales && pending == 1) ||
                      (rule == Rule::divides && pending == 1 && all[0].pending);
  if (j.misfit == Misfit::none && !linear) j.misfit = Misfit::sum;
  j.shape.pending = pending > 0;
  return j;
}

/// One place for the words of every mistake of this kind.
template <Misfit M> constexpr bool fits() {
  static_assert(M != Misfit::layouts,
                "tessera: tensors of different layouts in one expression; assign one to a tensor of the other's layout "
                "first: z = y redistributes");
  static_assert(M != Misfit::ranks,
                "tessera: tensors of these ranks do not go together; ranks are equal, or one is 1 (a "
                "vector over channels) and the other 2, 4 or 5");
  static_assert(M != Misfit::vector, "tessera: a vector that meets a larger tensor is replicated on every grid axis; "
                                     "assign it to a tensor of such a layout, place(rep, ...), first");
  static_assert(
      M != Misfit::sum,
      "tessera: not linear in a pending sum, so it cannot be computed from addends; assign the sum to a tensor "
      "with rep or a split first: z = y adds up");
  return M == Misfit::none;
}

/// A tensor that lives elsewhere.
template <class T, int N, Layout L, class S> struct Ref : NodeTag {
  using value_type = T;
  using space = S;
  static constexpr Shape shape{N, L, L.has_sum()};
  const Tensor<T, N, S>* at;
  explicit Ref(const Tensor<T, N, S>& t) : at(&t) {}
  const Tensor<T, N, S>& tensor() const { return *at; }
};

/// A temporary, kept by the expression.
template <class T, int N, Layout L, class S> struct Owned : NodeTag {
  using value_type = T;
  using space = S;
  static constexpr Shape shape{N, L, L.has_sum()};
  DistTensor<T, N, L, S> held;
  explicit Owned(DistTensor<T, N, L, S>&& t) : held(std::move(t)) {}
  const Tensor<T, N, S>& tensor() const { return held; }
};

template <class T> struct Scalar : NodeTag {
  using value_type = T;
  static constexpr Shape shape{};
  T value;
  explicit Scalar(T v) : value(v) {}
};

/// F of the values of its operands, element by element.
template <class F, class... A> struct Apply : NodeTag {
  static constexpr Joined joined = join(F::rule, A::shape...);
  static_assert(fits<joined.misfit>());
  static constexpr Shape shape = joined.shape;
  using value_type = std::decay_t<std::invoke_result_t<const F&, typename A::value_type...>>;
  F function;
  std::tuple<A...> operands;
  explicit Apply(F f, A... a) : function(std::move(f)), operands(std::move(a)...) {}
};

/// The values of A `by` cells further along dim D.
template <Dim D, class A> struct Shift : NodeTag {
  static_assert(dim_index(D, A::shape.rank) >= 0,
                "tessera: shift along a dim that the tensor does not have; rank 5 is n,c,d,h,w, rank 4 c,d,h,w, rank 3 "
                "d,h,w, rank 2 n,c, rank 1 c");
  static_assert(!A::shape.pending, "tessera: shift of a pending sum; assign it to a tensor with rep or a split first: "
                                   "z = y adds up");
  static constexpr Shape shape = A::shape;
  using value_type = typename A::value_type;
  A operand;
  long by;
  Padding mode;
  Shift(A a, long by_, Padding m) : operand(std::move(a)), by(by_), mode(m) {}
};

template <class E> inline constexpr bool is_leaf = false;
template <class T, int N, Layout L, class S> inline constexpr bool is_leaf<Ref<T, N, L, S>> = true;
template <class T, int N, Layout L, class S> inline constexpr bool is_leaf<Owned<T, N, L, S>> = true;

/// Operations that are no function of single elements (a convolution): computed as a whole, then read like a tensor.
template <class E>
concept Block = requires {
  typename E::computed_as_a_whole;
};

} // namespace detail

template <class X>
concept ExpressionNode = std::is_base_of_v<detail::NodeTag, std::remove_cvref_t<X>>;
template <class X>
concept DistributedTensor = is_dist_tensor<std::remove_cvref_t<X>>;
/// A DistTensor or an expression of them.
template <class X>
concept Expression = ExpressionNode<X> || DistributedTensor<X>;
template <class X>
concept Number = std::is_arithmetic_v<std::remove_cvref_t<X>>;
/// Operands of which at least one is no plain number.
template <class... X>
concept Operands = ((Expression<X> || Number<X>)&&...) && (Expression<X> || ...);

namespace detail {

template <class T, int N, Layout L, class S> Ref<T, N, L, S> as_node(const DistTensor<T, N, L, S>& x) {
  return Ref<T, N, L, S>(x);
}
template <class T, int N, Layout L, class S> Ref<T, N, L, S> as_node(DistTensor<T, N, L, S>& x) {
  return Ref<T, N, L, S>(x);
}
template <class T, int N, Layout L, class S> Owned<T, N, L, S> as_node(DistTensor<T, N, L, S>&& x) {
  return Owned<T, N, L, S>(std::move(x));
}
template <ExpressionNode E> std::remove_cvref_t<E> as_node(E&& e) { return std::forward<E>(e); }
template <class T>
requires std::is_arithmetic_v<T> Scalar<T> as_node(T x) { return Scalar<T>(x); }

template <class X> using node_of = decltype(as_node(std::declval<X>()));

template <class F, class... X> Apply<F, node_of<X>...> apply(F f, X&&... x) {
  return Apply<F, node_of<X>...>(std::move(f), as_node(std::forward<X>(x))...);
}

/// Both arguments in the type that C++ computes with.
template <class A, class B, class F> constexpr auto in_common(A a, B b, F f) {
  using C = decltype(a + b);
  return f(static_cast<C>(a), static_cast<C>(b));
}
struct Plus {
  static constexpr Rule rule = Rule::adds;
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Minus {
  static constexpr Rule rule = Rule::adds;
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Times {
  static constexpr Rule rule = Rule::scales;
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Over {
  static constexpr Rule rule = Rule::divides;
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return x / y; });
  }
};
struct Negate {
  static constexpr Rule rule = Rule::adds;
  template <class A> constexpr auto operator()(A a) const { return -a; }
};

} // namespace detail

template <class A, class B>
requires Operands<A, B>
auto operator+(A&& a, B&& b) { return detail::apply(detail::Plus{}, std::forward<A>(a), std::forward<B>(b)); }
template <class A, class B>
requires Operands<A, B>
auto operator-(A&& a, B&& b) { return detail::apply(detail::Minus{}, std::forward<A>(a), std::forward<B>(b)); }
template <class A, class B>
requires Operands<A, B>
auto operator*(A&& a, B&& b) { return detail::apply(detail::Times{}, std::forward<A>(a), std::forward<B>(b)); }
template <class A, class B>
requires Operands<A, B>
auto operator/(A&& a, B&& b) { return detail::apply(detail::Over{}, std::forward<A>(a), std::forward<B>(b)); }
template <Expression A> auto operator-(A&& a) { return detail::apply(detail::Negate{}, std::forward<A>(a)); }

} // namespace tessera
