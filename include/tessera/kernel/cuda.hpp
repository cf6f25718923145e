// kernel/cuda.hpp: convolutions and dense layers of a GPU behind the interface that kernel/cpu.hpp has for the CPU.
//
// float: cuDNN and cuBLASLt, in the calling thread's stream, and this library's own kernels for what these leave: bias
// and activation where no engine takes them in, bias gradients, and whole passes that no engine does. Other types: this
// library's own kernels. TESSERA_MATH=tf32 lets float products use the tensor cores; TESSERA_LOG_PLANS=1 tells what was
// chosen.
//
// May know: base, space, kernel.
// Example: CudaConvolution<float> conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <tessera/kernel/cublaslt.hpp>
#include <tessera/kernel/cudnn_convolution.hpp>
#include <tessera/kernel/device/convolution.hpp>
#include <tessera/space/cuda.hpp>

namespace tessera::kernel {

/// The calling thread's handles, made on the GPU it has selected when it first asks.
inline cudnn::CudnnDevice& this_cudnn() {
  thread_local cudnn::CudnnDevice device(policy_from_environment());
  return device;
}
inline CublasltDevice& this_cublaslt() {
  thread_local CublasltDevice device(policy_from_environment());
  return device;
}

template <class T> class CudaConvolution : public device::DirectConvolution<T, cuda_device> {
public:
  using device::DirectConvolution<T, cuda_device>::DirectConvolution;
};

template <> class CudaConvolution<float> {
public:
  explicit CudaConvolution(const Conv& p) : plain_(p), vendor_(p, Number::f32, this_cudnn()) {}
  const Conv& problem() const { return plain_.problem(); }

  /// y = act(bias + w * x). `bias` may be null.
  void forward(const View<const float, 5>& x, const View<const float, 5>& w, const float* bias,
               const View<float, 5>& y) {
    using Done = cudnn::CudnnConvolution<float>::Done;
    const Done done = vendor_.idle() ? Done::nothing : vendor_.forward(x, w, bias, y, stream());
    if (done == Done::nothing) plain_.forward(x, w, bias, y);
    if (done == Done::product) device::add_channels<cuda_device>(y, bias, problem().act, problem().slope);
  }
  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const float, 5>& dy, const View<const float, 5>& w, const View<float, 5>& dx) {
    if (vendor_.idle() || !vendor_.backward_data(dy, w, dx, stream())) plain_.backward_data(dy, w, dx);
  }
  /// dw, db = or += the gradients of <dy, conv(x)>. `db` may be null.
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    if (vendor_.idle() || !vendor_.backward_weights(x, dy, dw, mode, stream()))
      plain_.backward_weights(x, dy, dw, nullptr, mode);
    if (db) device::sum_channels<cuda_device>(dy, db, mode);
  }

private:
  static cudaStream_t stream() { return cuda_device::stream().handle(); }
  device::DirectConvolution<float, cuda_device> plain_;
  cudnn::CudnnConvolution<float> vendor_;
};

template <class T> class CudaDense : public device::DirectDense<T, cuda_device> {
public:
  using device::DirectDense<T, cuda_device>::DirectDense;
};

template <> class CudaDense<float> {
public:
  explicit CudaDense(const Dense& p) : plain_(p), vendor_(p, Number::f32, this_cublaslt()) {}
  const Dense& problem() const { return plain_.problem(); }

  /// y = act(bias + W x). `bias` may be null.
  void forward(const float* x, const float* w, const float* bias, float* y) {
    if (vendor_.idle()) return plain_.forward(x, w, bias, y);
    const Dense& p = problem();
    if (vendor_.forward(x, w, bias, y, stream()) == CublasltDense<float>::Done::linear)
      device::add_channels<cuda_device, float>({y, {{p.n, p.co, 1, 1, 1}}}, nullptr, p.act, p.slope);
  }
  /// dx = dy W
  void backward_data(const float* dy, const float* w, float* dx) {
    vendor_.idle() ? plain_.backward_data(dy, w, dx) : vendor_.backward_data(dy, w, dx, stream());
  }
  /// dW, db = or += dy^T x and the sum of dy. `db` may be null.
  void backward_weights(const float* x, const float* dy, float* dw, float* db, Gradient mode) {
    if (vendor_.idle()) return plain_.backward_weights(x, dy, dw, db, mode);
    vendor_.backward_weights(x, dy, dw, mode, stream());
    const Dense& p = problem();
    if (db) device::sum_channels<cuda_device>(View<const float, 5>(dy, {{p.n, p.co, 1, 1, 1}}), db, mode);
  }

private:
  static cudaStream_t stream() { return cuda_device::stream().handle(); }
  device::DirectDense<float, cuda_device> plain_;
  CublasltDense<float> vendor_;
};

} // namespace tessera::kernel
