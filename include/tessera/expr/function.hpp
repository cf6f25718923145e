// expr/function.hpp: functions of expressions: exp, max, leaky_relu, ..., map for a function of your own, and shift.
//
// Each is computed in the type that C++ gives it (an integer becomes double in exp). None communicates but shift.
//
// May know: base, layout, space, comm, tensor, expr/node.hpp.
// Example: y = leaky_relu(y + bias, 0.01f);   z = map([](float a, float b) { return a < b ? a : 2 * b; }, x, y);
#pragma once

#include <cmath>
#include <tessera/expr/node.hpp>

namespace tessera {

namespace detail {

struct Nonlinear {
  static constexpr Rule rule = Rule::mixes;
};
struct Exp : Nonlinear {
  template <class A> auto operator()(A a) const { return std::exp(a); }
};
struct Log : Nonlinear {
  template <class A> auto operator()(A a) const { return std::log(a); }
};
struct Log1p : Nonlinear {
  template <class A> auto operator()(A a) const { return std::log1p(a); }
};
struct Sqrt : Nonlinear {
  template <class A> auto operator()(A a) const { return std::sqrt(a); }
};
struct Tanh : Nonlinear {
  template <class A> auto operator()(A a) const { return std::tanh(a); }
};
struct Sigmoid : Nonlinear {
  template <class A> auto operator()(A a) const {
    using C = decltype(std::exp(a));
    return C{1} / (C{1} + std::exp(-static_cast<C>(a)));
  }
};
struct Abs : Nonlinear {
  template <class A> constexpr auto operator()(A a) const { return a < A{} ? static_cast<A>(-a) : a; }
};
struct Relu : Nonlinear {
  template <class A> constexpr auto operator()(A a) const { return a < A{} ? A{} : a; } // a NaN stays one
};
template <class S> struct LeakyRelu : Nonlinear {
  S slope;
  explicit LeakyRelu(S s) : slope(s) {}
  template <class A> constexpr auto operator()(A a) const {
    using C = std::conditional_t<std::is_floating_point_v<A>, A, decltype(a + slope)>;
    return a > A{} ? static_cast<C>(a) : static_cast<C>(slope) * static_cast<C>(a);
  }
};
struct Pow : Nonlinear {
  template <class A, class B> auto operator()(A a, B b) const { return std::pow(a, b); }
};
struct Max : Nonlinear {
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return x < y ? y : x; });
  }
};
struct Min : Nonlinear {
  template <class A, class B> constexpr auto operator()(A a, B b) const {
    return in_common(a, b, [](auto x, auto y) { return y < x ? y : x; });
  }
};
/// A function of the user's.
template <class F> struct Mapped : Nonlinear {
  F function;
  explicit Mapped(F f) : function(std::move(f)) {}
  template <class... A> auto operator()(A... a) const { return function(a...); }
};

} // namespace detail

template <Expression A> auto exp(A&& a) { return detail::apply(detail::Exp{}, std::forward<A>(a)); }
template <Expression A> auto log(A&& a) { return detail::apply(detail::Log{}, std::forward<A>(a)); }
/// log(1 + a), exact for small a.
template <Expression A> auto log1p(A&& a) { return detail::apply(detail::Log1p{}, std::forward<A>(a)); }
template <Expression A> auto sqrt(A&& a) { return detail::apply(detail::Sqrt{}, std::forward<A>(a)); }
template <Expression A> auto tanh(A&& a) { return detail::apply(detail::Tanh{}, std::forward<A>(a)); }
/// 1 / (1 + exp(-a))
template <Expression A> auto sigmoid(A&& a) { return detail::apply(detail::Sigmoid{}, std::forward<A>(a)); }
template <Expression A> auto abs(A&& a) { return detail::apply(detail::Abs{}, std::forward<A>(a)); }
/// a for a > 0, else 0.
template <Expression A> auto relu(A&& a) { return detail::apply(detail::Relu{}, std::forward<A>(a)); }
/// a for a > 0, else slope * a; in the type of a.
template <Expression A, Number S> auto leaky_relu(A&& a, S slope) {
  return detail::apply(detail::LeakyRelu<S>(slope), std::forward<A>(a));
}
template <class A, class B>
requires Operands<A, B>
auto pow(A&& a, B&& b) { return detail::apply(detail::Pow{}, std::forward<A>(a), std::forward<B>(b)); }
/// The larger of two, element by element. (The largest element of a tensor: max_of.)
template <class A, class B>
requires Operands<A, B>
auto max(A&& a, B&& b) { return detail::apply(detail::Max{}, std::forward<A>(a), std::forward<B>(b)); }
/// The smaller of two, element by element. (The smallest element of a tensor: min_of.)
template <class A, class B>
requires Operands<A, B>
auto min(A&& a, B&& b) { return detail::apply(detail::Min{}, std::forward<A>(a), std::forward<B>(b)); }

/// f(a...), element by element. f takes numbers, is called once for each element, in no particular order.
template <class F, class... A>
requires Operands<A...>
auto map(F f, A&&... a) { return detail::apply(detail::Mapped<F>(std::move(f)), std::forward<A>(a)...); }

/// shift<d>(u, by)(i) = u(i + by) along dim D: the value `by` cells further on. Outside the global tensor it is 0, or
/// what the padding says: Padding::periodic, reflect, replicate. This is what makes an assignment exchange halos.
template <Dim D, Expression A> auto shift(A&& a, long by, Padding mode = Padding::zeros) {
  return detail::Shift<D, detail::node_of<A>>(detail::as_node(std::forward<A>(a)), by, mode);
}

} // namespace tessera
