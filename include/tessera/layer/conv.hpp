// layer/conv.hpp: ConvLayer, a convolution with its halo exchange, its fused activation and its gradients.
//
// Forward: post the halo of x, convolve the outputs that need none, wait, convolve the rims. Backward: dx on the whole
// block with margins, post the adjoint halo, weight gradients meanwhile (from the x that still holds its halo), wait.
// Vendor kernels see dense samples only; where a split of h or w makes a block strided it is copied, and counted.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: ConvLayer<float, cpu> l(conv(16), {}, grid, x.map(), y.map());  l.forward(pass, x, y);
#pragma once

#include <optional>
#include <tessera/layer/layer.hpp>
#include <tessera/layer/operand.hpp>

namespace tessera {

template <class T, class Backend> class ConvLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;
  using Convolution = typename Backend::template Convolution<T>;

public:
  /// `fused` is the activation that follows, computed with the convolution.
  ConvLayer(const LayerSpec& spec, InputActivation fused, const AnyGrid& grid, const Map<5>& in, const Map<5>& out)
      : fused_(fused), stencil_(spec.stencil), groups_(spec.conv_groups), in_(in), halo_(grid, in, spec.stencil, out) {
    const Box<5> mine = out.box(grid.rank()), owned = in.box(grid.rank());
    weight_extents_ = {
        {out.extents()[1], in.extents()[1] / spec.conv_groups, stencil_.d.k, stencil_.h.k, stencil_.w.k}};
    whole_ = make_slab(mine);
    OverlapParts parts = overlap_parts(mine, owned, stencil_, in.extents());
    // Slabs along depth are dense; rims along h or w would not be, so there the whole block waits for its halo.
    for (const Box<5>& rim : parts.rims)
      if (rim.extent(3) != mine.extent(3) || rim.extent(4) != mine.extent(4)) {
        parts = {mine, {}};
        break; // the rims are gone
      }
    if (!parts.rims.empty()) {
      interior_ = make_slab(parts.interior);
      for (const Box<5>& rim : parts.rims) rims_.push_back(make_slab(rim));
    }
    covers_input_ = whole_.window.input.contains(owned);
  }

  Box<5> need() const override { return halo_.need(); }
  void exchange_again(Field& x) override { halo_.run(x); }

  void activation_is_absorbed() override { absorbed_ = true; }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    halo_.start(x);
    if (interior_) {
      run(pass, *interior_, x, y);
      pass.poke();
      halo_.finish();
      for (Slab& rim : rims_) run(pass, rim, x, y);
    } else {
      halo_.finish();
      run(pass, whole_, x, y);
    }
  }

  void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) override {
    if (fused_.kind != kernel::Activation::none && !absorbed_)
      Backend::activation_backward(fused_.kind, fused_.slope, y.view(), dy.view());
    const View<const T, 5> g = out_operand_.read(std::as_const(dy), whole_.out);
    if (dx) {
      if (!covers_input_) Blocks<Space>::fill(dx->view(), T{});
      if (!whole_.idle) {
        const View<T, 5> target = in_operand_.write(*dx, whole_.window.input);
        whole_.conv->backward_data(g, weights(pass.weights), target);
        in_operand_.commit(*dx, whole_.window.input);
      }
      halo_.start_adjoint(*dx);
      pass.poke();
    }
    const View<T, 5> dw(pass.weight_gradients.data(), weight_extents_);
    if (whole_.idle) {
      Blocks<Space>::fill(dw, T{});
      sum_over_outputs(g, pass.bias_gradients);
    } else {
      whole_.conv->backward_weights(in_operand_.read(std::as_const(x), whole_.window.input), g, dw,
                                    pass.bias_gradients.empty() ? nullptr : pass.bias_gradients.data(),
                                    kernel::Gradient::overwrite);
    }
    pass.gradients_ready();
    if (dx) halo_.finish();
  }

  LayerTraffic traffic() const override {
    return {halo_.traffic(), halo_.adjoint_traffic(), in_operand_.copies() + out_operand_.copies()};
  }
  std::size_t scratch_bytes() const override { return in_operand_.bytes() + out_operand_.bytes(); }

private:
  struct Slab {
    Box<5> out;
    LocalWindow window;
    bool idle = true; ///< no window touches a cell of the tensor: the output is the bias alone
    std::optional<Convolution> conv;
  };

  Slab make_slab(const Box<5>& out) const {
    Slab s{out, local_window(out, stencil_, in_.extents()), true, {}};
    s.idle = out.empty() || s.window.input.empty();
    if (s.idle) return s;
    kernel::Conv p;
    p.n = out.extent(0), p.ci = in_.extents()[1], p.co = out.extent(1);
    for (int i = 0; i < 3; ++i) p.in[i] = s.window.input.extent(2 + i), p.out[i] = out.extent(2 + i);
    p.k = stencil_.kernel(), p.stride = stencil_.strides(), p.dilation = stencil_.dilations();
    p.below = s.window.below, p.above = s.window.above;
    p.groups = groups_;
    p.act = fused_.kind, p.slope = fused_.slope;
    s.conv.emplace(p);
    return s;
  }
  View<const T, 5> weights(std::span<const T> w) const { return {w.data(), weight_extents_}; }

  void run(Pass<T>& pass, Slab& slab, const Field& x, Field& y) {
    if (slab.out.empty()) return;
    const T* bias = pass.biases.empty() ? nullptr : pass.biases.data();
    const View<T, 5> target = out_operand_.write(y, slab.out);
    if (slab.idle)
      Backend::fill_channels(target, bias, fused_.kind, fused_.slope);
    else
      slab.conv->forward(in_operand_.read(x, slab.window.input), weights(pass.weights), bias, target);
    out_operand_.commit(y, slab.out);
    pass.poke();
  }
  static void sum_over_outputs(const View<const T, 5>& g, std::span<T> db) {
    if (!db.empty()) Backend::sum_channels(g, db.data());
  }

  InputActivation fused_;
  Stencil stencil_;
  long groups_;
  Map<5> in_;
  Halo<T, 5, Space> halo_;
  Extents<5> weight_extents_{};
  Slab whole_;
  std::optional<Slab> interior_;
  std::vector<Slab> rims_;
  bool covers_input_ = true, absorbed_ = false;
  DenseOperand<T, Space> in_operand_, out_operand_; ///< of x and dx, of y and dy: never both at a time
};

} // namespace tessera
