// kernel/cpu.hpp: the kernels of the CPU behind one interface for every element type.
//
// float: oneDNN, and this library's own weight gradient where oneDNN has no fast one. Other types: the plain loops.
//
// May know: base, space, kernel.
// Example: Convolution<float> conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <optional>
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

template <> class Convolution<float> : public OnednnConvolution {
public:
  explicit Convolution(const Conv& p) : OnednnConvolution(p) {
    // oneDNN has direct weight-gradient kernels for some targets only; elsewhere it unfolds x and multiplies matrices.
    const std::string theirs = OnednnConvolution::implementation(Pass::backward_weights);
    const bool direct = theirs.find("jit") != std::string::npos && theirs.find("gemm") == std::string::npos;
    if (!direct && simd_bytes >= 32) weights_.emplace(p);
  }
  std::string implementation(Pass pass) {
    return pass == Pass::backward_weights && weights_ ? "tessera" : OnednnConvolution::implementation(pass);
  }
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    if (weights_)
      weights_->run(x, dy, dw, db, mode);
    else
      OnednnConvolution::backward_weights(x, dy, dw, db, mode);
  }

private:
  std::optional<ConvWeights<float>> weights_;
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
