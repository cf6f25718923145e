// layer/pointwise.hpp: the layers that work on each cell by itself and keep what they need: functions whose derivative
// needs their input, softmax over the channels, and pointwise functions of the user's own.
//
// Nothing moves: channels are whole on a rank.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp, layer/user.hpp.
// Example: SoftmaxLayer<float, cpu> l(x.map().box(rank));  l.forward(pass, x, y);
#pragma once

#include <tessera/layer/user.hpp>

namespace tessera {

/// y = f(x), a function of the library that keeps its input: gelu, silu.
template <class T, class Backend> class PointwiseLayer final : public Layer<T, typename Backend::space> {
  using Field = Tensor<T, 5, typename Backend::space>;

public:
  PointwiseLayer(const LayerSpec& spec, const Box<5>& box) : function_(spec.function), box_(box) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>&, Field& x, Field& y) override {
    Backend::pointwise_forward(function_, std::as_const(x).view(), y.view());
  }
  void backward(Pass<T>&, Field& x, const Field&, Field& dy, Field* dx) override {
    if (dx) Backend::pointwise_backward(function_, std::as_const(x).view(), std::as_const(dy).view(), dx->view());
  }

private:
  kernel::Pointwise function_;
  Box<5> box_;
};

/// y = exp(x) / the sum of exp(x) over the channels of the cell.
template <class T, class Backend> class SoftmaxLayer final : public Layer<T, typename Backend::space> {
  using Field = Tensor<T, 5, typename Backend::space>;

public:
  explicit SoftmaxLayer(const Box<5>& box) : box_(box) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>&, Field& x, Field& y) override { Backend::softmax(std::as_const(x).view(), y.view()); }
  void backward(Pass<T>&, Field&, const Field& y, Field& dy, Field* dx) override {
    if (dx) Backend::softmax_backward(y.view(), std::as_const(dy).view(), dx->view());
  }

private:
  Box<5> box_;
};

/// y = f.value(x), a function of the user's. It reads and writes in place of the views that other layers of users get.
template <class T, class Backend, class F>
class UserLayer<T, Backend, Pointwise<F>> final : public Layer<T, typename Backend::space> {
  using Field = Tensor<T, 5, typename Backend::space>;

public:
  UserLayer(const Pointwise<F>& layer, const AnyGrid& grid, const Map<5>& in, const Map<5>&, const Extents<5>&)
      : f_(layer.f), box_(in.box(grid.rank())) {}
  Box<5> need() const override { return box_; }
  void forward(Pass<T>&, Field& x, Field& y) override {
    Backend::function_forward(f_, std::as_const(x).view(), y.view());
  }
  void backward(Pass<T>&, Field& x, const Field&, Field& dy, Field* dx) override {
    if (dx) Backend::function_backward(f_, std::as_const(x).view(), std::as_const(dy).view(), dx->view());
  }

private:
  F f_;
  Box<5> box_;
};

} // namespace tessera
