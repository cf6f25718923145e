// expr/conv.hpp: convolutions of distributed tensors, and their adjoints by name.
//
// x: (n, ci, d, h, w), any layout without a pending sum; f: (co, ci, kd, kh, kw), replicated; bias: (co), replicated;
// y: (n, co, ...) in the layout of x with block boundaries inherited from it (output_map). Each is a node: assigned to
// a tensor it is computed there, inside a pointwise expression it is computed first.
//
// May know: base, layout, space, kernel, comm, tensor, move, expr.
// Example: y = conv<window(3).same()>(x, f);   y = leaky_relu(conv<window(3).same()>(x, f, bias), 0.01f);
#pragma once

#include <optional>
#include <tessera/expr/window.hpp>
#include <tessera/kernel/cpu.hpp>

namespace tessera {

namespace detail {

/// Kernels for boxes of outputs, made when first needed and kept.
template <class T, class Space> class ConvPlan final : public Kept {
public:
  ConvPlan(const AnyGrid& grid, const Map<5>& in, const Stencil& s, const Map<5>& out)
      : run_(grid, in, s, out, Channels::all) {}
  bool serves(const Map<5>& in, const Stencil& s, const Map<5>& out) const { return run_.serves(in, s, out); }

  /// `bias` may be null.
  void forward(const Tensor<T, 5, Space>& x, const Tensor<T, 5, Space>& f, const T* bias, Tensor<T, 5, Space>& y) {
    const View<const T, 5> w = weights(f);
    // A rim along h or w would be a strided operand: there the whole box waits for its halo.
    run_.forward(x, run_.rims_are_slabs(), [&](const Box<5>& out) {
      const View<T, 5> target = y_.write(y.view(out));
      const T* b = bias ? bias + out.lo[1] : nullptr;
      if (Convolution* conv = kernel(out))
        conv->forward(x_.read(x.view(run_.needs(out))), w, b, target);
      else
        kernel::fill_channels(target, b, kernel::Activation::none, 0);
      y_.commit(y.view(out));
    });
  }
  void backward_data(const Tensor<T, 5, Space>& dy, const Tensor<T, 5, Space>& f, Tensor<T, 5, Space>& dx) {
    const View<const T, 5> w = weights(f);
    run_.backward(dx, [&] {
      Convolution* conv = kernel(run_.out_box());
      if (!conv) return;
      const View<T, 5> target = x_.write(dx.view(run_.need()));
      conv->backward_data(y_.read(dy.view()), w, target);
      x_.commit(dx.view(run_.need()));
    });
  }
  /// dw = this rank's addend. Exchanges the halo of x.
  void backward_weights(const Tensor<T, 5, Space>& x, const Tensor<T, 5, Space>& dy, Tensor<T, 5, Space>& dw) {
    Blocks<Space>::fill(dw.view(), T{});
    run_.forward(x, false, [&](const Box<5>& out) {
      Convolution* conv = kernel(out);
      if (!conv) return;
      const View<T, 5> mine = own_rows(dw.view()), target = w_.write(mine);
      conv->backward_weights(x_.read(x.view(run_.need())), y_.read(dy.view()), target, nullptr,
                             kernel::Gradient::overwrite);
      w_.commit(mine);
    });
  }

private:
  using Convolution = kernel::Convolution<T>;
  struct Slab {
    Box<5> out;
    std::optional<Convolution> conv; ///< empty if no window touches a cell of the tensor
  };

  Convolution* kernel(const Box<5>& out) {
    auto it = std::ranges::find_if(slabs_, [&](const auto& s) { return s->out == out; });
    if (it == slabs_.end()) {
      slabs_.push_back(std::make_unique<Slab>());
      it = slabs_.end() - 1;
      (*it)->out = out;
      if (!run_.needs(out).empty()) (*it)->conv.emplace(problem(out));
    }
    return (*it)->conv ? &*(*it)->conv : nullptr;
  }
  kernel::Conv problem(const Box<5>& out) const {
    const Box<5> in = run_.needs(out);
    const Stencil& s = run_.stencil();
    kernel::Conv p;
    p.n = out.extent(0), p.ci = in.extent(1), p.co = out.extent(1);
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    for (int i = 0; i < 3; ++i) {
      p.in[i] = in.extent(2 + i), p.out[i] = out.extent(2 + i);
      const Interval outside = run_.padding(out, i);
      p.below[i] = outside.lo, p.above[i] = outside.hi;
    }
    return p;
  }
  /// The part of (co, ci, ...) that makes this rank's channels.
  template <class U> View<U, 5> own_rows(const View<U, 5>& w) const {
    Box<5> b = whole(w.extents);
    b.lo[0] = run_.out_box().lo[1], b.hi[0] = std::max(b.lo[0], run_.out_box().hi[1]);
    return w.box(b);
  }
  View<const T, 5> weights(const Tensor<T, 5, Space>& f) { return w_.read(own_rows(f.view())); }

  WindowRun<T, Space> run_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  DenseBox<T, Space> x_, y_, w_;
};

/// The plan of a convolution from `in` to `out`, kept with a tensor.
template <class T, int N, class Space>
ConvPlan<T, Space>& conv_plan(Keep<T, N, Space>& keep, const AnyGrid& grid, const Map<5>& in, const Stencil& s,
                              const Map<5>& out) {
  using Plan = ConvPlan<T, Space>;
  return keep.template plan<Plan>([&](const Plan& p) { return p.serves(in, s, out); },
                                  [&] { return Plan(grid, in, s, out); });
}

template <class E> constexpr bool is_field() {
  if constexpr (is_leaf<E>) return E::shape.rank == 5 && !E::shape.pending;
  return false;
}
template <class E, int N> constexpr bool is_replicated() {
  if constexpr (is_leaf<E>) return E::shape.rank == N && E::shape.layout == replicated(E::shape.layout.axes);
  return false;
}
/// The operands of every convolution node.
template <class X, class F> constexpr bool check_conv() {
  static_assert(is_field<X>(), "tessera: a convolution takes a DistTensor of rank 5 (n,c,d,h,w) without a pending sum; "
                               "assign an expression or a sum to such a tensor first");
  static_assert(is_replicated<F, 5>(),
                "tessera: the weights of a convolution are a DistTensor (co,ci,d,h,w), replicated "
                "on every grid axis: place(rep, ...)");
  static_assert(std::is_same_v<typename X::value_type, typename F::value_type>,
                "tessera: a convolution takes tensors of one element type");
  return true;
}

template <class T, class Space>
void require_weights(const char* what, const Tensor<T, 5, Space>& f, long co, long ci, const Stencil& s) {
  const Extents<5> want{{co, ci, s.d.k, s.h.k, s.w.k}};
  TESSERA_REQUIRE(f.extents() == want, what, ": weights of extents ", f.extents(), " (co,ci,d,h,w), but ", want,
                  " go with these tensors and this window");
}

/// y = f * x + bias
template <Stencil S, class X, class F, class... Bias> struct ConvNode : NodeTag {
  using computed_as_a_whole = void;
  using value_type = typename X::value_type;
  using space = typename X::space;
  static constexpr const char* name = "conv";
  static constexpr Shape shape = X::shape;
  static_assert(check_conv<X, F>());
  static_assert((true && ... && is_replicated<Bias, 1>()), "tessera: the bias of a convolution is a DistTensor (co), "
                                                           "replicated on every grid axis: place(rep, ...)");
  std::tuple<X, F, Bias...> operands;
  explicit ConvNode(X x, F f, Bias... b) : operands(std::move(x), std::move(f), std::move(b)...) {}

  const std::tuple<X, F, Bias...>& leaves() const { return operands; }
  const auto& x() const { return std::get<0>(operands).tensor(); }
  const auto& f() const { return std::get<1>(operands).tensor(); }
  const AnyGrid& grid() const { return x().grid(); }
  Map<5> map() const {
    const Extents<5>& e = x().extents();
    require_fits(S, {{e[2], e[3], e[4]}}, name);
    require_weights(name, f(), f().extents()[0], e[1], S);
    return output_map(x().map(), S, f().extents()[0]);
  }
  template <class K> void compute(Tensor<value_type, 5, space>& y, K& keep) const {
    const value_type* bias = nullptr;
    if constexpr (sizeof...(Bias) > 0) {
      const auto& b = std::get<2>(operands).tensor();
      TESSERA_REQUIRE(b.extents()[0] == f().extents()[0], "conv: a bias of ", b.extents()[0], " elements for ",
                      f().extents()[0], " output channels; give one for each");
      bias = b.view().data;
    }
    conv_plan(keep, grid(), x().map(), S, y.map()).forward(x(), f(), bias, y);
  }
};

/// dx, shaped like x
template <Stencil S, class G, class F, class X> struct ConvDataNode : NodeTag {
  using computed_as_a_whole = void;
  using value_type = typename X::value_type;
  using space = typename X::space;
  static constexpr const char* name = "conv_backward_data";
  static constexpr Shape shape = X::shape;
  static_assert(check_conv<X, F>() && check_conv<G, F>());
  static_assert(G::shape.layout == X::shape.layout,
                "tessera: conv_backward_data: dy and x have one layout; assign dy to "
                "a tensor of x's layout first: z = y redistributes");
  G dy;
  F f;
  Map<5> like;
  ConvDataNode(G g, F f_, const Map<5>& x) : dy(std::move(g)), f(std::move(f_)), like(x) {}

  auto leaves() const { return std::tie(dy, f); }
  const AnyGrid& grid() const { return dy.tensor().grid(); }
  Map<5> map() const { return like; }
  template <class K> void compute(Tensor<value_type, 5, space>& dx, K& keep) const {
    const Extents<5>& e = like.extents();
    require_fits(S, {{e[2], e[3], e[4]}}, name);
    require_weights(name, f.tensor(), dy.tensor().extents()[1], e[1], S);
    require_equal_maps(name, output_map(like, S, dy.tensor().extents()[1]), dy.tensor().map());
    conv_plan(keep, grid(), like, S, dy.tensor().map()).backward_data(dy.tensor(), f.tensor(), dx);
  }
};

/// Adds up what the ranks computed from their blocks of a tensor of this layout.
template <class T, int N, class Space>
void add_up(const AnyGrid& grid, const Layout& layout, Tensor<T, N, Space>& sum) {
  unsigned mask = 0;
  for (int a = 0; a < layout.axes; ++a)
    if (layout[a].splits()) mask |= 1u << a;
  const View<T, N> v = sum.view();
  TESSERA_REQUIRE(v.dense(), "a sum over ranks into a tensor with a halo; give a tensor that was never shifted");
  grid.over(mask).iall_reduce(std::span<T>(v.data, std::size_t(v.size()))).wait();
}

/// dw, replicated
template <Stencil S, class X, class G> struct ConvWeightsNode : NodeTag {
  using computed_as_a_whole = void;
  using value_type = typename X::value_type;
  using space = typename X::space;
  static constexpr const char* name = "conv_backward_weights";
  static constexpr Shape shape{5, replicated(X::shape.layout.axes), false};
  static_assert(is_field<X>() && is_field<G>(),
                "tessera: conv_backward_weights takes DistTensors of rank 5 (n,c,d,h,w) "
                "without a pending sum; assign an expression to such a tensor first");
  static_assert(G::shape.layout == X::shape.layout,
                "tessera: conv_backward_weights: dy and x have one layout; assign dy "
                "to a tensor of x's layout first: z = y redistributes");
  X x;
  G dy;
  ConvWeightsNode(X x_, G g) : x(std::move(x_)), dy(std::move(g)) {}

  auto leaves() const { return std::tie(x, dy); }
  const AnyGrid& grid() const { return x.tensor().grid(); }
  Map<5> map() const {
    return {shape.layout, grid().shape(), {{dy.tensor().extents()[1], x.tensor().extents()[1], S.d.k, S.h.k, S.w.k}}};
  }
  template <class K> void compute(Tensor<value_type, 5, space>& dw, K& keep) const {
    const Map<5>& in = x.tensor().map();
    require_fits(S, {{in.extents()[2], in.extents()[3], in.extents()[4]}}, name);
    require_equal_maps(name, output_map(in, S, dy.tensor().extents()[1]), dy.tensor().map());
    conv_plan(keep, grid(), in, S, dy.tensor().map()).backward_weights(x.tensor(), dy.tensor(), dw);
    add_up(grid(), X::shape.layout, dw);
  }
};

/// db, replicated
template <class G> struct ConvBiasNode : NodeTag {
  using computed_as_a_whole = void;
  using value_type = typename G::value_type;
  using space = typename G::space;
  static constexpr const char* name = "conv_backward_bias";
  static constexpr Shape shape{1, replicated(G::shape.layout.axes), false};
  static_assert(is_field<G>(), "tessera: conv_backward_bias takes a DistTensor of rank 5 (n,c,d,h,w) without a pending "
                               "sum; assign an expression to such a tensor first");
  G dy;
  explicit ConvBiasNode(G g) : dy(std::move(g)) {}

  auto leaves() const { return std::tie(dy); }
  const AnyGrid& grid() const { return dy.tensor().grid(); }
  Map<1> map() const { return {shape.layout, grid().shape(), {{dy.tensor().extents()[1]}}}; }
  template <class K> void compute(Tensor<value_type, 1, space>& db, K&) const {
    Blocks<space>::fill(db.view(), value_type{});
    const Box<5>& own = dy.tensor().box();
    if (!own.empty()) kernel::sum_channels(dy.tensor().view(), db.view().data + own.lo[1], kernel::Gradient::overwrite);
    add_up(grid(), G::shape.layout, db);
  }
};

} // namespace detail

/// The convolution of x with the weights f, cross-correlation form: see kernel::Conv. Exchanges the halo of x.
template <Stencil S, Expression X, Expression F> auto conv(X&& x, F&& f) {
  return detail::ConvNode<S, detail::node_of<X>, detail::node_of<F>>(detail::as_node(std::forward<X>(x)),
                                                                     detail::as_node(std::forward<F>(f)));
}
/// The same plus bias[co].
template <Stencil S, Expression X, Expression F, Expression B> auto conv(X&& x, F&& f, B&& bias) {
  return detail::ConvNode<S, detail::node_of<X>, detail::node_of<F>, detail::node_of<B>>(
      detail::as_node(std::forward<X>(x)), detail::as_node(std::forward<F>(f)), detail::as_node(std::forward<B>(bias)));
}
/// The gradient with respect to x, from that with respect to y = conv<S>(x, f): the adjoint in x. Of `like` only the
/// extents and the blocks are used.
template <Stencil S, Expression G, Expression F, DistributedTensor X>
auto conv_backward_data(G&& dy, F&& f, const X& like) {
  return detail::ConvDataNode<S, detail::node_of<G>, detail::node_of<F>, detail::node_of<const X&>>(
      detail::as_node(std::forward<G>(dy)), detail::as_node(std::forward<F>(f)), like.map());
}
/// The gradient with respect to f, added up over all ranks. Exchanges the halo of x.
template <Stencil S, Expression X, Expression G> auto conv_backward_weights(X&& x, G&& dy) {
  return detail::ConvWeightsNode<S, detail::node_of<X>, detail::node_of<G>>(detail::as_node(std::forward<X>(x)),
                                                                            detail::as_node(std::forward<G>(dy)));
}
/// The gradient with respect to the bias: the sum of dy over samples and cells, on all ranks.
template <Expression G> auto conv_backward_bias(G&& dy) {
  return detail::ConvBiasNode<detail::node_of<G>>(detail::as_node(std::forward<G>(dy)));
}

} // namespace tessera
