// layer/pool.hpp: PoolLayer, average and max pooling, exact on any grid: windows and divisors are global.
//
// Forward overlaps the halo with the outputs that need none. Backward writes the gradient of the whole block, times the
// derivative of the activation that made x when asked to (one pass over memory instead of three), and adds the margins
// into the ranks that own them.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: PoolLayer<float, cpu> l(max_pool(2), grid, x.map(), y.map());  l.forward(pass, x, y);
#pragma once

#include <tessera/layer/layer.hpp>

namespace tessera {

template <class T, class Backend> class PoolLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  PoolLayer(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& in, const Map<5>& out)
      : spec_(spec), in_(in), out_(out.box(grid.rank())), halo_(grid, in, spec.stencil, out),
        parts_(overlap_parts(out_, in.box(grid.rank()), spec.stencil, in.extents())) {
    covers_input_ = halo_.need().contains(in.box(grid.rank()));
  }

  Box<5> need() const override { return halo_.need(); }
  void exchange_again(Field& x) override { halo_.run(x); }
  bool absorb(InputActivation a) override {
    absorbed_ = a;
    return true;
  }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    halo_.start(x);
    if (!parts_.rims.empty()) {
      run(parts_.interior, x, y);
      pass.poke();
    }
    halo_.finish();
    if (parts_.rims.empty()) run(parts_.interior, x, y);
    for (const Box<5>& rim : parts_.rims) run(rim, x, y);
  }

  void backward(Pass<T>& pass, Field& x, const Field&, Field& dy, Field* dx) override {
    if (!dx) return;
    const Box<5> need = halo_.need();
    // Not all of dx at first: average pooling may find it in the memory of x.
    if (need.empty())
      Blocks<Space>::fill(dx->view(), T{});
    else if (!covers_input_)
      for (const Box<5>& unread : shell(dx->store(), need)) Blocks<Space>::fill(dx->view(unread), T{});
    if (!need.empty())
      Backend::pool_backward(problem(out_, need), std::as_const(x).view(need), std::as_const(dy).view(), dx->view(need),
                             absorbed_.kind, absorbed_.slope);
    halo_.start_adjoint(*dx);
    pass.poke();
    halo_.finish();
  }

  LayerTraffic traffic() const override { return {halo_.traffic(), halo_.adjoint_traffic(), 0}; }

private:
  kernel::Pooling problem(const Box<5>& out, const Box<5>& in) const {
    kernel::Pooling p;
    p.kind = spec_.pool;
    p.n = out.extent(0), p.c = out.extent(1);
    for (int i = 0; i < 3; ++i) {
      p.in[i] = in.extent(2 + i), p.out[i] = out.extent(2 + i);
      // Padding that is stored counts as cells of the tensor, which then begins earlier and ends later.
      const Window& w = spec_.stencil[i];
      p.in_origin[i] = in.lo[2 + i] + w.stored_below(), p.out_origin[i] = out.lo[2 + i];
      p.global[i] = in_.extents()[2 + i] + w.stored_below() + w.stored_above();
      p.padding[i] = w.below - w.stored_below(), p.padding_above[i] = w.above - w.stored_above();
    }
    p.k = spec_.stencil.kernel(), p.stride = spec_.stencil.strides(), p.dilation = spec_.stencil.dilations();
    p.count_padding = spec_.padding_counts == PaddingCounts::yes;
    return p;
  }
  void run(const Box<5>& out, const Field& x, Field& y) {
    if (out.empty()) return;
    const Box<5> in = needed_input(out, spec_.stencil, in_.extents());
    Backend::pool_forward(problem(out, in), x.view(in), y.view(out));
  }

  LayerSpec spec_;
  Map<5> in_;
  Box<5> out_;
  Halo<T, 5, Space> halo_;
  OverlapParts parts_;
  InputActivation absorbed_{};
  bool covers_input_ = true;
};

} // namespace tessera
