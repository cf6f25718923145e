// kernel/cpu.hpp: the kernels of the CPU behind one interface for every element type.
//
// float: oneDNN, and this library's own gradients where oneDNN has no fast ones. Other types: the plain loops.
//
// May know: base, space, kernel.
// Example: Convolution<float> conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <optional>
#include <tessera/kernel/conv_direct.hpp>
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

/// Takes this library's kernels where they are the faster ones: on processors with AVX2 oneDNN unfolds x for the weight
/// gradient, and its backward-data pass does not saturate the units on wide blocks; with AVX-512 oneDNN does both well.
template <> class Convolution<float> : public OnednnConvolution {
public:
  explicit Convolution(const Conv& p) : OnednnConvolution(p) {
    const std::string theirs = OnednnConvolution::implementation(Pass::backward_weights);
    const bool direct = theirs.find("jit") != std::string::npos && theirs.find("gemm") == std::string::npos;
    if (theirs == "none" || direct || simd_bytes < 32) return;
    weights_.emplace(p);
    // Whole panels of channels, and enough cells to repay the packing of the weights.
    const bool wide = p.ci % (2 * simd_lanes<float>) == 0 && p.in[2] >= 16 && product(p.in) >= 4096;
    if (wide && has_adjoint_problem(p)) data_.emplace(adjoint_problem(p));
  }

  /// The implementation that runs the pass: "tessera", or the name that oneDNN reports.
  std::string implementation(Pass pass) {
    if ((pass == Pass::backward_weights && weights_) || (pass == Pass::backward_data && data_)) return "tessera";
    return OnednnConvolution::implementation(pass);
  }
  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const float, 5>& dy, const View<const float, 5>& w, const View<float, 5>& dx) {
    if (!data_) return OnednnConvolution::backward_data(dy, w, dx);
    check_extents("the weights", w.extents, w_extents(problem()));
    data_->run(dy, adjoint_weights(w), nullptr, dx);
  }
  /// dw, db = or += the gradients of <dy, conv(x)>
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    if (!weights_) return OnednnConvolution::backward_weights(x, dy, dw, db, mode);
    weights_->run(x, dy, dw, db, mode);
  }

private:
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
