// net/sequence.hpp: seq(...), a network as a constexpr array of layers; sequences inside sequences are flattened.
//
// The library's layers are plain values in an array. Only the types of user-written layers appear in the type of a
// sequence, so its name stays short however deep the network is.
//
// May know: base, layout, kernel/problem.hpp, layer/spec.hpp.
// Example: constexpr auto block = seq(conv(16), relu(), Sharpen{}, conv(16), relu());
#pragma once

#include <array>
#include <tessera/layer/spec.hpp>
#include <tuple>

namespace tessera {

/// What one sample is: channels and spatial extents. The number of samples is a run-time value.
struct Input {
  int c = 1, d = 1, h = 1, w = 1;
};

template <int N, LocalLayer... Users> struct Sequence {
  std::array<LayerSpec, std::size_t(N)> layers{};
  std::tuple<Users...> users{}; ///< LayerSpec::user is an index into it
  static constexpr int size() { return N; }
};

namespace detail {
template <class> inline constexpr bool is_sequence = false;
template <int N, class... U> inline constexpr bool is_sequence<Sequence<N, U...>> = true;

constexpr Sequence<1> as_sequence(const LayerSpec& l) { return {{l}, {}}; }
template <int N, class... U> constexpr const Sequence<N, U...>& as_sequence(const Sequence<N, U...>& s) { return s; }
template <class F> constexpr Sequence<1, Pointwise<F>> as_sequence(const Pointwise<F>& l) {
  return {{LayerSpec{.kind = LayerKind::user, .stencil = l.stencil(), .function = kernel::Pointwise::custom, .user = 0}},
          {l}};
}
template <LocalLayer L> constexpr Sequence<1, L> as_sequence(const L& l) {
  return {{LayerSpec{.kind = LayerKind::user, .stencil = l.stencil(), .user = 0}}, {l}};
}

template <int A, class... U, int B, class... V>
constexpr Sequence<A + B, U..., V...> join(const Sequence<A, U...>& a, const Sequence<B, V...>& b) {
  Sequence<A + B, U..., V...> s{{}, std::tuple_cat(a.users, b.users)};
  for (int i = 0; i < A; ++i) s.layers[std::size_t(i)] = a.layers[std::size_t(i)];
  for (int i = 0; i < B; ++i) {
    LayerSpec& l = s.layers[std::size_t(A + i)] = b.layers[std::size_t(i)];
    if (l.kind == LayerKind::user) l.user += static_cast<int>(sizeof...(U));
  }
  return s;
}
} // namespace detail

/// What seq() takes: a layer of the library, a layer of your own, or a sequence.
template <class P>
concept NetworkPart = std::is_same_v<P, LayerSpec> || detail::is_sequence<P> || LocalLayer<P>;

constexpr Sequence<0> seq() { return {}; }
/// Layers, and sequences of layers, one after the other.
template <NetworkPart First, NetworkPart... Rest> constexpr auto seq(const First& first, const Rest&... rest) {
  return detail::join(detail::as_sequence(first), seq(rest...));
}

/// Says what seq() takes.
template <class... P>
requires(!(NetworkPart<P> && ...)) constexpr Sequence<0> seq(const P&...) {
  static_assert((NetworkPart<P> && ...),
                "tessera: seq(...) takes layers such as conv(8), layers of your own, which have "
                "a stencil(), and sequences of these");
  return {};
}

/// The part `times` times, one after the other.
template <int Times, NetworkPart P> constexpr auto repeat(const P& part) {
  if constexpr (Times == 0)
    return seq();
  else
    return seq(part, repeat<Times - 1>(part));
}

} // namespace tessera
