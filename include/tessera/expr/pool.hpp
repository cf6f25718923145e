// expr/pool.hpp: maximum and average pooling of distributed tensors. Windows and divisors are global.
//
// x: (n, c, d, h, w), any layout without a pending sum; the result has its layout and inherits its block boundaries.
//
// May know: base, layout, space, kernel, comm, tensor, move, expr.
// Example: y = max_pool<window(2).strided(2)>(x);
#pragma once

#include <tessera/expr/window.hpp>
#include <tessera/kernel/pooling.hpp>

namespace tessera {

/// What an average divides by: all cells of the window, or those inside the global tensor.
enum class Divisor : int { window, inside };

namespace detail {

template <class T, class Space> class PoolPlan final : public Kept {
public:
  PoolPlan(const AnyGrid& grid, const Map<5>& in, const Stencil& s, const Map<5>& out, kernel::Pool kind,
           Divisor divisor)
      : run_(grid, in, s, out, Channels::own), kind_(kind), divisor_(divisor) {}
  bool serves(const Map<5>& in, const Stencil& s, const Map<5>& out, kernel::Pool kind, Divisor divisor) const {
    return run_.serves(in, s, out) && kind_ == kind && divisor_ == divisor;
  }
  void forward(const Tensor<T, 5, Space>& x, Tensor<T, 5, Space>& y) {
    run_.forward(x, true, [&](const Box<5>& out) {
      const Box<5> in = run_.needs(out);
      kernel::pool_forward<T>(problem(out, in), x.view(in), y.view(out));
    });
  }

private:
  kernel::Pooling problem(const Box<5>& out, const Box<5>& in) const {
    const Stencil& s = run_.stencil();
    kernel::Pooling p;
    p.kind = kind_;
    p.n = out.extent(0), p.c = out.extent(1);
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    for (int i = 0; i < 3; ++i) {
      p.in[i] = in.extent(2 + i), p.out[i] = out.extent(2 + i);
      // Padding that is stored counts as cells of the tensor, which then begins earlier and ends later.
      p.in_origin[i] = in.lo[2 + i] + s[i].stored_below(), p.out_origin[i] = out.lo[2 + i];
      p.global[i] = run_.in().extents()[2 + i] + s[i].stored_below() + s[i].stored_above();
      p.padding[i] = s[i].below - s[i].stored_below(), p.padding_above[i] = s[i].above - s[i].stored_above();
    }
    p.count_padding = divisor_ == Divisor::window;
    return p;
  }

  WindowRun<T, Space> run_;
  kernel::Pool kind_;
  Divisor divisor_;
};

template <Stencil S, kernel::Pool Kind, Divisor D, class X> struct PoolNode : NodeTag {
  using computed_as_a_whole = void;
  using value_type = typename X::value_type;
  using space = typename X::space;
  static constexpr const char* name = Kind == kernel::Pool::max ? "max_pool" : "average_pool";
  static constexpr Shape shape = X::shape;
  static_assert(
      is_leaf<X> && X::shape.rank == 5 && !X::shape.pending,
      "tessera: a pooling takes a DistTensor of rank 5 (n,c,d,h,w) without a pending sum; assign an expression "
      "or a sum to such a tensor first");
  X x;
  explicit PoolNode(X x_) : x(std::move(x_)) {}

  auto leaves() const { return std::tie(x); }
  const AnyGrid& grid() const { return x.tensor().grid(); }
  Map<5> map() const {
    const Extents<5>& e = x.tensor().extents();
    require_fits(S, {{e[2], e[3], e[4]}}, name);
    return output_map(x.tensor().map(), S, e[1]);
  }
  template <class K> void compute(Tensor<value_type, 5, space>& y, K& keep) const {
    using Plan = PoolPlan<value_type, space>;
    const Map<5>& in = x.tensor().map();
    keep.template plan<Plan>([&](const Plan& p) { return p.serves(in, S, y.map(), Kind, D); },
                             [&] { return Plan(grid(), in, S, y.map(), Kind, D); })
        .forward(x.tensor(), y);
  }
};

} // namespace detail

/// The largest element of each window; zeros of the padding never win.
template <Stencil S, Expression X> auto max_pool(X&& x) {
  return detail::PoolNode<S, kernel::Pool::max, Divisor::window, detail::node_of<X>>(
      detail::as_node(std::forward<X>(x)));
}
/// The average of each window.
template <Stencil S, Divisor D = Divisor::window, Expression X> auto average_pool(X&& x) {
  return detail::PoolNode<S, kernel::Pool::average, D, detail::node_of<X>>(detail::as_node(std::forward<X>(x)));
}

} // namespace tessera
