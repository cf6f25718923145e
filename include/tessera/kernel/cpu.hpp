// kernel/cpu.hpp: the kernels of the CPU behind one interface for every element type.
//
// float: oneDNN, and this library's own gradients where oneDNN has no fast ones. Other types: the plain loops.
//
// May know: base, space, kernel.
// Example: Convolution<float> conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <optional>
#include <tessera/kernel/conv_depthwise.hpp>
#include <tessera/kernel/conv_direct.hpp>
#include <tessera/kernel/conv_unfold.hpp>
#include <tessera/kernel/conv_weights.hpp>
#include <tessera/kernel/onednn.hpp>
#include <tessera/kernel/optimizer.hpp>
#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/pooling.hpp>
#include <tessera/kernel/random.hpp>
#include <tessera/kernel/reference.hpp>

namespace tessera::kernel {

/// One convolution problem. Operands: x, y (and their gradients) dense channels-last sample by sample, weights dense
/// (co, ci, k) stored co,d,h,w,ci. `bias` and `db` may be null.
template <class T> class Convolution {
public:
  explicit Convolution(const Conv& p) : p_(p) { check_problem(p); }
  const Conv& problem() const { return p_; }

  /// y = act(bias + w * x)
  void forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
    reference::convolution<T>(p_, x, w, bias, y);
  }
  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx) {
    reference::convolution_backward_data<T>(p_, dy, w, dx);
  }
  /// dw, db = or += the gradients of <dy, conv(x)>
  void backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db,
                        Gradient mode) {
    reference::convolution_backward_weights<T>(p_, x, dy, dw, db, mode);
  }

private:
  Conv p_;
};

/// Chooses per problem and pass, by what was measured to be the faster one:
///  - as many groups as channels: this library's own, all passes;
///  - more weights than cells: matrix products on unfolded x, all passes;
///  - weight gradients where oneDNN has no direct kernel (processors without AVX-512): this library's own;
///  - data gradients of wide blocks whose input channels fill two vectors: this library's own;
///  - all else: oneDNN.
template <> class Convolution<float> : public OnednnConvolution {
public:
  explicit Convolution(const Conv& p) : OnednnConvolution(p) {
    if (p.groups > 1) {
      if (ConvDepthwise<float>::fits(p) && p.n * product(p.in) * product(p.out) != 0) depthwise_.emplace(p);
      return;
    }
    if (ConvUnfolded::pays(p)) {
      unfolded_.emplace(p);
      return;
    }
    if (simd_bytes < 32 || p.n * p.ci * p.co * product(p.in) * product(p.out) == 0) return;
    const std::string theirs = OnednnConvolution::implementation(Pass::backward_weights);
    if (theirs.find("jit") == std::string::npos || theirs.find("gemm") != std::string::npos) weights_.emplace(p);
    // Whole panels of channels, and enough cells to repay the packing of the weights.
    const bool wide = p.ci % (2 * simd_lanes<float>) == 0 && p.in[2] >= 16 && product(p.in) >= 4096;
    if (wide && has_adjoint_problem(p)) data_.emplace(adjoint_problem(p));
  }

  /// The implementation that runs the pass: "tessera", "unfolded", or the name that oneDNN reports.
  std::string implementation(Pass pass) {
    if (unfolded_) return "unfolded";
    if (depthwise_) return "tessera";
    if ((pass == Pass::backward_weights && weights_) || (pass == Pass::backward_data && data_)) return "tessera";
    return OnednnConvolution::implementation(pass);
  }
  /// y = act(bias + w * x). `bias` may be null.
  void forward(const View<const float, 5>& x, const View<const float, 5>& w, const float* bias,
               const View<float, 5>& y) {
    if (unfolded_) return unfolded_->forward(x, w, bias, y);
    if (depthwise_) return depthwise_->forward(x, w, bias, y);
    OnednnConvolution::forward(x, w, bias, y);
  }
  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const float, 5>& dy, const View<const float, 5>& w, const View<float, 5>& dx) {
    if (unfolded_) return unfolded_->backward_data(dy, w, dx);
    if (depthwise_) return depthwise_->backward_data(dy, w, dx);
    if (!data_) return OnednnConvolution::backward_data(dy, w, dx);
    check_extents("the weights", w.extents, w_extents(problem()));
    data_->run(dy, adjoint_weights(w), nullptr, dx);
  }
  /// dw, db = or += the gradients of <dy, conv(x)>
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    if (unfolded_) return unfolded_->backward_weights(x, dy, dw, db, mode);
    if (depthwise_) return depthwise_->backward_weights(x, dy, dw, db, mode);
    if (!weights_) return OnednnConvolution::backward_weights(x, dy, dw, db, mode);
    weights_->run(x, dy, dw, db, mode);
  }

private:
  std::optional<ConvDepthwise<float>> depthwise_;
  std::optional<ConvUnfolded> unfolded_;
  std::optional<ConvWeights<float>> weights_;
  std::optional<ConvDirect<float>> data_;
};

/// One dense layer; everything row-major and dense, weights (co, ci). `bias` and `db` may be null.
template <class T> class InnerProduct {
public:
  explicit InnerProduct(const Dense& p) : p_(p) {}
  const Dense& problem() const { return p_; }

  /// y = act(bias + W x)
  void forward(const T* x, const T* w, const T* bias, T* y) { reference::dense<T>(p_, x, w, bias, y); }
  /// dx = dy W
  void backward_data(const T* dy, const T* w, T* dx) { reference::dense_backward_data<T>(p_, dy, w, dx); }
  /// dW, db = or += dy^T x and the sum of dy
  void backward_weights(const T* x, const T* dy, T* dw, T* db, Gradient mode) {
    reference::dense_backward_weights<T>(p_, x, dy, dw, db, mode);
  }

private:
  Dense p_;
};

template <> class InnerProduct<float> : public OnednnDense {
public:
  using OnednnDense::OnednnDense;
};

} // namespace tessera::kernel
