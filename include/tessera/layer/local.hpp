// layer/local.hpp: the layers that need no neighbours: activation, dropout, flatten, dense, and `to`, which moves.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: DropoutLayer<float, cpu> l(dropout(0.8), grid, x.map());  l.forward(pass, x, y);
#pragma once

#include <optional>
#include <tessera/layer/layer.hpp>
#include <tessera/layer/operand.hpp>
#include <tessera/move/redistribute.hpp>

namespace tessera {

/// An activation that no convolution or dense layer before it took in.
template <class T, class Backend> class ActivationLayer final : public Layer<T, typename Backend::space> {
  using Field = Tensor<T, 5, typename Backend::space>;

public:
  ActivationLayer(const LayerSpec& spec, Box<5> box) : kind_(spec.activation), slope_(spec.slope), box_(box) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>&, Field& x, Field& y) override {
    Backend::activation_forward(kind_, slope_, std::as_const(x).view(), y.view());
  }
  void backward(Pass<T>&, Field&, const Field& y, Field& dy, Field* dx) override {
    if (!dx) return;
    Blocks<typename Backend::space>::copy(dy.view(), dx->view());
    Backend::activation_backward(kind_, slope_, y.view(), dx->view());
  }

private:
  kernel::Activation kind_;
  double slope_;
  Box<5> box_;
};

/// Dropout with a mask that is a function of seed, layer, step and global index: the same on every grid.
template <class T, class Backend> class DropoutLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  DropoutLayer(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& map)
      : keep_(spec.keep), box_(map.box(grid.rank())), extents_(map.extents()) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>& pass, Field& x, Field& y) override { apply(pass, std::as_const(x).view(), y.view()); }
  void backward(Pass<T>& pass, Field&, const Field&, Field& dy, Field* dx) override {
    if (dx) apply(pass, std::as_const(dy).view(), dx->view());
  }

private:
  void apply(const Pass<T>& pass, const View<const T, 5>& from, const View<T, 5>& to) const {
    if (pass.mode == Mode::inference || keep_ == 1) return Blocks<Space>::copy(from, to);
    Backend::dropout(from, to, box_.lo, extents_, keep_, pass.seed, std::uint64_t(pass.layer), pass.step);
  }
  double keep_;
  Box<5> box_;
  Extents<5> extents_;
};

/// (n,c,d,h,w) -> (n, c*d*h*w, 1,1,1), logical order.
template <class T, class Backend> class FlattenLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  explicit FlattenLayer(Box<5> in) : in_(in) {}
  Box<5> need() const override { return in_; }
  void forward(Pass<T>&, Field& x, Field& y) override {
    Blocks<Space>::copy(x.view(), unflattened(y.view()));
  }
  void backward(Pass<T>&, Field&, const Field&, Field& dy, Field* dx) override {
    if (dx) Blocks<Space>::copy(unflattened(dy.view()), dx->view());
  }

private:
  /// The flat vector seen with the extents it came from: strides of logical row-major order inside a sample.
  View<T, 5> unflattened(const View<T, 5>& flat) const {
    View<T, 5> v(flat.data, in_.extents());
    v.strides = flat.strides;
    long step = flat.strides[1];
    for (int k = 4; k >= 1; --k) {
      v.strides[k] = step;
      step *= v.extents[k];
    }
    return v;
  }
  Box<5> in_;
};

/// y = act(W x + b) on (n, c, 1, 1, 1).
template <class T, class Backend> class DenseLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  DenseLayer(const LayerSpec& spec, InputActivation fused, const AnyGrid& grid, const Map<5>& in)
      : fused_(fused), box_(in.box(grid.rank())), kernel_({.n = box_.extent(0),
                                                           .ci = in.extents()[1],
                                                           .co = spec.channels,
                                                           .act = fused.kind,
                                                           .slope = fused.slope}) {}
  Box<5> need() const override { return box_; }
  void activation_is_absorbed() override { absorbed_ = true; }
  void forward(Pass<T>& pass, Field& x, Field& y) override {
    kernel_.forward(in_operand_.read(x, box_).data, pass.weights.data(),
                    pass.biases.empty() ? nullptr : pass.biases.data(), out_operand_.write(y, y.box()).data);
    out_operand_.commit(y, y.box());
    pass.poke();
  }
  void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) override {
    if (fused_.kind != kernel::Activation::none && !absorbed_)
      Backend::activation_backward(fused_.kind, fused_.slope, y.view(), dy.view());
    const T* const g = out_operand_.read(dy, dy.box()).data;
    kernel_.backward_weights(in_operand_.read(x, box_).data, g, pass.weight_gradients.data(),
                             pass.bias_gradients.empty() ? nullptr : pass.bias_gradients.data(),
                             kernel::Gradient::overwrite);
    pass.gradients_ready();
    if (dx) {
      kernel_.backward_data(g, pass.weights.data(), in_operand_.write(*dx, box_).data);
      in_operand_.commit(*dx, box_);
    }
    pass.poke();
  }
  LayerTraffic traffic() const override { return {{}, {}, in_operand_.copies() + out_operand_.copies()}; }
  std::size_t scratch_bytes() const override { return in_operand_.bytes() + out_operand_.bytes(); }

private:
  InputActivation fused_;
  Box<5> box_;
  typename Backend::template Dense<T> kernel_;
  bool absorbed_ = false;
  DenseOperand<T, Space, Density::whole_batch> in_operand_, out_operand_; ///< of x and dx, of y and dy
};

/// Activations move to another layout; the gradient moves back. Gradients keep the layout of their tensors: replicas
/// hold equal gradients, so the way back is the plain redistribution the other way round.
template <class T, class Backend> class RedistributeLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  RedistributeLayer(const AnyGrid& grid, const Map<5>& in, const Map<5>& out)
      : box_(in.box(grid.rank())), there_(grid, in, out), back_(grid, out, in) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>&, Field& x, Field& y) override { there_.run(x, y); }
  void backward(Pass<T>&, Field&, const Field&, Field& dy, Field* dx) override {
    if (dx) back_.run(dy, *dx);
  }
  LayerTraffic traffic() const override { return {there_.traffic(), back_.traffic(), 0}; }

private:
  Box<5> box_;
  Redistribution<T, 5, Space> there_, back_;
};

} // namespace tessera
