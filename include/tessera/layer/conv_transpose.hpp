// layer/conv_transpose.hpp: ConvTransposeLayer, the adjoint of the matching convolution, exact on any grid.
//
// The matching convolution C reads y and makes x's shape. A rank gathers the inputs whose windows touch its outputs, so
// y = C^T x is C's data gradient on its block; what lands in other blocks is computed there. Backward: dx = C dy, each
// rank the part that its block of dy gives, and the adjoint halo adds the parts; the weight gradient is C's with the
// roles of x and dy exchanged. Where kernel = stride nothing moves.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: ConvTransposeLayer<float, cpu> l(up(16), {}, grid, x.map(), y.map());  l.forward(pass, x, y);
#pragma once

#include <optional>
#include <tessera/layer/layer.hpp>
#include <tessera/layer/operand.hpp>

namespace tessera {

template <class T, class Backend> class ConvTransposeLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;
  using Convolution = typename Backend::template Convolution<T>;

public:
  ConvTransposeLayer(const LayerSpec& spec, InputActivation fused, const AnyGrid& grid, const Map<5>& in,
                     const Map<5>& out)
      : fused_(fused), out_(out.box(grid.rank())), touched_(out_),
        halo_(grid, in, [&](int r) { return touching_input(out.box(r), spec.stencil, in.extents()); }) {
    const Stencil& s = spec.stencil;
    const Box<5> owned = in.box(grid.rank());
    in_ = halo_.need();
    weight_extents_ = {{in.extents()[1], out.extents()[1], s.d.k, s.h.k, s.w.k}};
    covers_input_ = in_.contains(owned);
    if (out_.empty() || in_.empty()) return;
    kernel::Conv p;
    p.n = out_.extent(0), p.ci = out_.extent(1), p.co = in_.extent(1);
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    for (int i = 0; i < 3; ++i) {
      const Interval lands = s[i].reads({in_.lo[2 + i], in_.hi[2 + i]}); // of y
      touched_.hi[2 + i] = std::min(out_.hi[2 + i], lands.hi);
      p.in[i] = touched_.extent(2 + i), p.out[i] = in_.extent(2 + i);
      p.below[i] = out_.lo[2 + i] - lands.lo;
      p.above[i] = lands.hi - touched_.hi[2 + i];
    }
    conv_.emplace(p);
  }

  Box<5> need() const override { return halo_.need(); }
  void exchange_again(Field& x) override { halo_.run(x); }
  void activation_is_absorbed() override { absorbed_ = true; }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    halo_.run(x);
    if (out_.empty()) return;
    const T* const bias = pass.biases.empty() ? nullptr : pass.biases.data();
    if (!conv_)
      Backend::fill_channels(y.view(), bias, fused_.kind, fused_.slope);
    else {
      for (const Box<5>& beyond : shell(out_, touched_)) Blocks<Space>::fill(y.view(beyond), T{});
      conv_->backward_data(in_operand_.read(x, in_), weights(pass.weights), out_operand_.write(y, touched_));
      out_operand_.commit(y, touched_);
      if (bias || fused_.kind != kernel::Activation::none)
        Backend::add_channels(y.view(), bias, fused_.kind, fused_.slope);
    }
    pass.poke();
  }

  void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) override {
    if (fused_.kind != kernel::Activation::none && !absorbed_)
      Backend::activation_backward(fused_.kind, fused_.slope, y.view(), dy.view());
    const View<const T, 5> g = out_operand_.read(std::as_const(dy), touched_);
    if (dx) {
      if (!covers_input_ || !conv_) Blocks<Space>::fill(dx->view(), T{});
      if (conv_) {
        conv_->forward(g, weights(pass.weights), nullptr, in_operand_.write(*dx, in_));
        in_operand_.commit(*dx, in_);
      }
      halo_.start_adjoint(*dx);
      pass.poke();
    }
    const View<T, 5> dw(pass.weight_gradients.data(), weight_extents_);
    if (conv_)
      conv_->backward_weights(g, in_operand_.read(std::as_const(x), in_), dw, nullptr, kernel::Gradient::overwrite);
    else
      Blocks<Space>::fill(dw, T{});
    if (!pass.bias_gradients.empty()) Backend::sum_channels(std::as_const(dy).view(), pass.bias_gradients.data());
    pass.gradients_ready();
    if (dx) halo_.finish();
  }

  LayerTraffic traffic() const override {
    return {halo_.traffic(), halo_.adjoint_traffic(), in_operand_.copies() + out_operand_.copies()};
  }
  std::size_t scratch_bytes() const override { return in_operand_.bytes() + out_operand_.bytes(); }

private:
  View<const T, 5> weights(std::span<const T> w) const { return {w.data(), weight_extents_}; }

  InputActivation fused_;
  Box<5> out_, touched_, in_{}; ///< this rank's block of y, what of it windows reach, and the part of x that does
  Halo<T, 5, Space> halo_;
  Extents<5> weight_extents_{};     ///< (channels of x, channels of y, kernel)
  std::optional<Convolution> conv_; ///< the matching convolution, from y's block to x's; none: nothing touches it
  bool covers_input_ = true, absorbed_ = false;
  DenseOperand<T, Space> in_operand_, out_operand_; ///< of x and dx, of y and dy: never both at a time
};

} // namespace tessera
