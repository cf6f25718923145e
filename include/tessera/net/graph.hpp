// net/graph.hpp: networks that are not chains: skip_concat, residual, branch, and graph(...) for any other.
//
// A network stays an array of layers; each says by a relative position whose output it reads, so parts can be put
// together and repeated like any other values. recompute(...) trades time for memory.
//
// May know: base, layout, kernel/problem.hpp, layer/spec.hpp, net/sequence.hpp.
// Example: seq(conv(8), residual(seq(relu(), conv(8))), skip_concat(seq(max_pool(2), conv(16), up(16))))
#pragma once

#include <tessera/net/sequence.hpp>

namespace tessera {

namespace detail {

/// The part as it stands after `skipped` more layers, still reading what the first of those reads.
template <class Part> constexpr Part read_from_before(Part part, int skipped) {
  for (int k = 0; k < Part::size(); ++k) {
    LayerSpec& l = part.layers[std::size_t(k)];
    if (k + l.from < 0) l.from -= skipped;
    if (l.joins() && k + l.other < 0) l.other -= skipped;
  }
  return part;
}
/// Both parts on one input, one after the other, and then their join: the outputs of the first, then of the second.
template <class A, class B> constexpr auto joined(const A& a, const B& b, LayerKind kind) {
  LayerSpec join{.kind = kind};
  join.from = -(B::size() + 1);
  join.other = B::size() > 0 ? -1 : -(A::size() + 1);
  return seq(a, read_from_before(b, A::size()), join);
}
template <class A> constexpr auto all_joined(LayerKind, const A& a) { return a; }
template <class A, class B, class... Rest>
constexpr auto all_joined(LayerKind kind, const A& a, const B& b, const Rest&... rest) {
  return all_joined(kind, joined(a, b, kind), rest...);
}

} // namespace detail

/// All parts applied to one input; their outputs, which have one d, h, w and layout, side by side along the channels in
/// the order given. An empty seq() passes the input on.
template <NetworkPart First, NetworkPart... Rest> constexpr auto branch(const First& first, const Rest&... rest) {
  return detail::all_joined(LayerKind::concat, seq(first), seq(rest)...);
}
/// The sum of the outputs, which have one shape and layout.
template <NetworkPart First, NetworkPart... Rest> constexpr auto branch_sum(const First& first, const Rest&... rest) {
  return detail::all_joined(LayerKind::add, seq(first), seq(rest)...);
}
/// [part(x), x]: the U-shaped skip of Ronneberger et al. 2015; the part keeps d, h and w.
template <NetworkPart P> constexpr auto skip_concat(const P& part) { return branch(part, seq()); }
/// part(x) + x (He et al. 2016), or part(x) + shortcut(x) where the shape changes.
template <NetworkPart P> constexpr auto residual(const P& part) { return branch_sum(part, seq()); }
template <NetworkPart P, NetworkPart S> constexpr auto residual(const P& part, const S& shortcut) {
  return branch_sum(part, shortcut);
}

/// The part, whose inner activations are not kept for the backward pass but computed again from its input (Chen et al.
/// 2016): the same losses, gradients, running statistics and dropout masks in less memory, for one more forward pass
/// and its messages. Inside another recompute() it has no effect of its own.
template <NetworkPart P> constexpr auto recompute(const P& part) {
  auto s = seq(part);
  for (LayerSpec& l : s.layers) l.recomputed = 0;
  if constexpr (s.size() > 0) s.layers[0].recomputed = s.size();
  return s;
}

/// The output of a layer in graph(...).
struct Node {
  int edge = 0;
};

/// What the function given to graph() adds layers with.
class GraphBuilder {
public:
  static constexpr int capacity = 512; ///< layers

  /// The input of the network.
  constexpr Node input() const { return {}; }
  /// The part applied to x.
  constexpr Node operator()(Node x, const LayerSpec& layer) {
    LayerSpec l = layer;
    l.from = x.edge - size_ - 1;
    return put(l);
  }
  template <int N> constexpr Node operator()(Node x, const Sequence<N>& part) {
    const auto moved = detail::read_from_before(part, size_ - x.edge);
    for (const LayerSpec& l : moved.layers) x = put(l);
    return x;
  }
  /// The channels of a, then those of b.
  constexpr Node concat(Node a, Node b) { return join(LayerKind::concat, a, b); }
  constexpr Node add(Node a, Node b) { return join(LayerKind::add, a, b); }

  constexpr int size() const { return size_; }
  constexpr const LayerSpec& operator[](int k) const { return layers_[std::size_t(k)]; }

private:
  constexpr Node put(const LayerSpec& l) {
    TESSERA_REQUIRE(size_ < capacity, "graph: more than ", capacity, " layers; put parts of it together with seq()");
    layers_[std::size_t(size_)] = l;
    return {++size_};
  }
  constexpr Node join(LayerKind kind, Node a, Node b) {
    LayerSpec l{.kind = kind};
    l.from = a.edge - size_ - 1, l.other = b.edge - size_ - 1;
    return put(l);
  }
  std::array<LayerSpec, capacity> layers_{};
  int size_ = 0;
};

/// Any directed graph without cycles: `f(g, x)` adds layers to the builder g, starting from the input x; the layer
/// added last is the output. f is a lambda without captures; its layers are the library's (user-written ones go into
/// seq()).
///   graph([](GraphBuilder& g, Node x) { Node a = g(x, conv(8)); return g.add(a, g(a, conv(8))); })
template <class F>
requires std::is_empty_v<F>
constexpr auto graph(F) {
  constexpr auto built = [] {
    GraphBuilder g;
    const Node last = F{}(g, g.input());
    TESSERA_REQUIRE(last.edge == g.size(), "graph: the layer added last is not the one returned; return the output, "
                                           "and add nothing after it");
    return g;
  };
  constexpr int size = built().size();
  Sequence<size> s;
  const GraphBuilder g = built();
  for (int k = 0; k < size; ++k) s.layers[std::size_t(k)] = g[k];
  return s;
}

} // namespace tessera
