// layer/user.hpp: layers written by users: a stencil, and two local functions on views. No communication in sight.
//
//   struct Sharpen {
//     constexpr Stencil stencil() const { return window(3).same(); }
//     constexpr int channels(int in) const { return in; }                       // optional: output channels
//     constexpr Extents<5> parameters(int in) const { return {{1,1,1,1,1}}; }   // optional: none without it
//     template <class T> void forward(const Local&, View<const T,5> x, View<const T,5> a, View<T,5> y) const;
//     template <class T> void backward(const Local&, View<const T,5> x, View<const T,5> a, View<const T,5> dy,
//                                      View<T,5> dx, View<T,5> da) const;
//   };
//
// x is the block with everything its outputs read, padding included, so y(n,c,q) reads x from q*stride on and there are
// no borders to think of. backward adds into dx and da, which start at zero.
//
// The functions run on the host. On a backend whose memory the host cannot touch, blocks are copied there and back.
//
// May know: base to move, layer/layer.hpp.
// Example: seq(conv(8), Sharpen{}, relu())
#pragma once

#include <tessera/layer/layer.hpp>

namespace tessera {

/// Where a block of a user's layer lies.
struct Local {
  Box<5> out;          ///< the outputs in y, global indices
  Extents<5> global{}; ///< global extents of the input
  std::uint64_t seed = 0, step = 0;
  Mode mode = Mode::training;
};

template <class T, class Backend, LocalLayer L> class UserLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  UserLayer(L layer, const AnyGrid& grid, const Map<5>& in, const Map<5>& out, const Extents<5>& parameters)
      : layer_(layer), in_(in), out_(out.box(grid.rank())), halo_(grid, in, layer.stencil(), out),
        parameters_(parameters) {
    window_ = local_window(out_, layer.stencil(), in.extents());
    padded_ = window_.input;
    if (out_.empty()) return;
    for (int i = 0; i < 3; ++i) {
      const Interval reads = layer.stencil()[i].reads({out_.lo[2 + i], out_.hi[2 + i]});
      padded_.lo[2 + i] = reads.lo, padded_.hi[2 + i] = reads.hi;
    }
    x_ = Buffer<T, Space>(std::size_t(padded_.volume()));
    dx_ = Buffer<T, Space>(std::size_t(padded_.volume()));
  }
  Box<5> need() const override { return halo_.need(); }
  void exchange_again(Field& x) override { halo_.run(x); }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    halo_.run(x);
    if (out_.empty()) return;
    const View<T, 5> px(x_.data(), padded_.extents());
    Blocks<Space>::copy(std::as_const(x).view(window_.input), inner(px));
    const auto a = on_host<Space>(pass.weights);
    const Mirror<Access::read> hx(px);
    const Mirror<Access::write> hy(y.view());
    layer_.template forward<T>(local(pass), View<const T, 5>(hx.view), View<const T, 5>(a.data(), parameters_),
                               hy.view);
    hy.store();
    pass.poke();
  }
  void backward(Pass<T>& pass, Field& x, const Field&, Field& dy, Field* dx) override {
    if (!pass.weight_gradients.empty()) Blocks<Space>::fill(View<T, 5>(pass.weight_gradients.data(), parameters_), T{});
    if (dx) Blocks<Space>::fill(dx->view(), T{});
    if (!out_.empty()) {
      const View<T, 5> px(x_.data(), padded_.extents()), pdx(dx_.data(), padded_.extents());
      Blocks<Space>::copy(std::as_const(x).view(window_.input), inner(px));
      Blocks<Space>::fill(pdx, T{});
      const auto a = on_host<Space>(pass.weights);
      const auto da = on_host<Space>(pass.weight_gradients);
      const Mirror<Access::read> hx(px), hdy(dy.view());
      const Mirror<Access::read_and_write> hdx(pdx);
      layer_.template backward<T>(local(pass), View<const T, 5>(hx.view), View<const T, 5>(a.data(), parameters_),
                                  View<const T, 5>(hdy.view), hdx.view, View<T, 5>(da.data(), parameters_));
      hdx.store(), da.store();
      if (dx) Blocks<Space>::copy(inner(pdx), dx->view(window_.input));
    }
    if (dx) halo_.start_adjoint(*dx);
    if (product(parameters_) > 0) pass.gradients_ready();
    if (dx) halo_.finish();
  }
  LayerTraffic traffic() const override { return {halo_.traffic(), halo_.adjoint_traffic(), 0}; }

private:
  /// A block as the user's functions see it: where it is, or a dense copy on the host that store() writes back.
  enum class Access : int { read, write, read_and_write };
  template <Access How> struct Mirror {
    explicit Mirror(const View<T, 5>& block) : view(block), there_(block) {
      if constexpr (!Space::host_accessible) {
        on_host_ = Buffer<T, typename Space::pinned>(std::size_t(block.size()));
        view = View<T, 5>(on_host_.data(), block.extents);
        if constexpr (How != Access::write) {
          if (!there_.dense()) pack();
          read_back<Space>(view.data, there_.dense() ? there_.data : packed_.data(), on_host_.size());
        }
      }
    }
    void store() const requires(How != Access::read) {
      if constexpr (!Space::host_accessible) {
        if (there_.dense()) return write_from_host<Space>(there_.data, view.data, on_host_.size());
        if (!packed_.data()) packed_ = Buffer<T, Space>(on_host_.size());
        write_from_host<Space>(packed_.data(), view.data, on_host_.size());
        Blocks<Space>::copy(View<const T, 5>(packed_.data(), there_.extents), there_);
      }
    }
    View<T, 5> view;

  private:
    void pack() {
      packed_ = Buffer<T, Space>(on_host_.size());
      Blocks<Space>::copy(there_, View<T, 5>(packed_.data(), there_.extents));
    }
    View<T, 5> there_;
    Buffer<T, typename Space::pinned> on_host_;
    mutable Buffer<T, Space> packed_;
  };

  Local local(const Pass<T>& pass) const { return {out_, in_.extents(), pass.seed, pass.step, pass.mode}; }
  /// The part of a padded block that lies inside the tensor.
  View<T, 5> inner(const View<T, 5>& padded) const {
    return padded.box(shifted(window_.input, Index<5>{} - padded_.lo));
  }

  L layer_;
  Map<5> in_;
  Box<5> out_, padded_{};
  LocalWindow window_;
  Halo<T, 5, Space> halo_;
  Extents<5> parameters_;
  Buffer<T, Space> x_, dx_;
};

} // namespace tessera
