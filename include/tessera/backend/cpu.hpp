// backend/cpu.hpp: the CPU backend: host memory, oneDNN, and this library's own memory-bound kernels.
//
// It is the reference backend with everything that has a faster kernel replaced.
//
// May know: base, space, kernel, backend/reference.hpp.
// Example: Network<CosmoFlow<64>, float, cpu> net(grid);
#pragma once

#include <tessera/backend/reference.hpp>
#include <tessera/kernel/cpu.hpp>
#include <tessera/kernel/function.hpp>
#include <tessera/kernel/normalisation.hpp>
#include <tessera/kernel/optimizer.hpp>
#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/pooling.hpp>
#include <tessera/kernel/resample.hpp>
#include <tessera/kernel/softmax.hpp>

namespace tessera {

struct cpu : reference {
  static constexpr const char* name = "cpu";

  template <class T> using Convolution = kernel::Convolution<T>;
  template <class T> using Dense = kernel::InnerProduct<T>;

  template <class T>
  static void pool_forward(const kernel::Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::pool_forward(p, x, y);
  }
  template <class T>
  static void pool_backward(const kernel::Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy,
                            const View<T, 5>& dx, kernel::Activation act, double slope) {
    kernel::pool_backward(p, x, dy, dx, act, slope);
  }
  template <class T>
  static void volume_maxima(const View<const T, 5>& x, const Index<3>& origin, const Index<3>& global, T* best,
                            std::int64_t* where) {
    kernel::volume_maxima(x, origin, global, best, where);
  }
  template <class T> static void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
    kernel::spread(values, factor, y);
  }
  template <class T>
  static void upsample_forward(const kernel::Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::upsample_forward(p, x, y);
  }
  template <class T>
  static void upsample_backward(const kernel::Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::upsample_backward(p, dy, dx);
  }
  template <class T>
  static void activation_forward(kernel::Activation a, double slope, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::activation_forward(a, slope, x, y);
  }
  template <class T>
  static void activation_backward(kernel::Activation a, double slope, const View<const T, 5>& y, const View<T, 5>& dy) {
    kernel::activation_backward(a, slope, y, dy);
  }
  template <class T> static void fill_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    kernel::fill_channels(y, bias, a, slope);
  }
  template <class T> static void add_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    if (bias) kernel::add_channels(y, bias);
    if (a != kernel::Activation::none) kernel::activation_forward(a, slope, View<const T, 5>(y), y);
  }
  template <class T> static void sum_channels(const View<const T, 5>& dy, T* db) {
    kernel::sum_channels(dy, db, kernel::Gradient::overwrite);
  }
  template <class T>
  static void pointwise_forward(kernel::Pointwise f, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::pointwise_forward(f, x, y);
  }
  template <class T>
  static void pointwise_backward(kernel::Pointwise f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                 const View<T, 5>& dx) {
    kernel::pointwise_backward(f, x, dy, dx);
  }
  template <class T, class F> static void function_forward(const F& f, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::function_forward(f, x, y);
  }
  template <class T, class F>
  static void function_backward(const F& f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                const View<T, 5>& dx) {
    kernel::function_backward(f, x, dy, dx);
  }
  template <class T> static void softmax(const View<const T, 5>& x, const View<T, 5>& y) { kernel::softmax(x, y); }
  template <class T>
  static void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::softmax_backward(y, dy, dx);
  }
  template <class T> static void channel_sums(const View<const T, 5>& x, double* sums) {
    kernel::channel_sums(x, sums);
  }
  template <class T> static void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
    kernel::channel_squares(x, mean, sums);
  }
  template <class T>
  static void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, kernel::Activation a,
                        double slope, const View<T, 5>& y) {
    kernel::normalise(x, mean, scale, beta, a, slope, y);
  }
  template <class T>
  static void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
    kernel::normalisation_sums(x, dy, mean, sums);
  }
  template <class T>
  static void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                                     const T* b, const T* e, const View<T, 5>& dx) {
    kernel::normalisation_backward(x, dy, mean, a, b, e, dx);
  }
  template <class T>
  static void sgd(std::span<T> p, std::span<const T> g, std::span<T> v, double rate, double momentum) {
    kernel::sgd(p, g, v, {.rate = rate, .momentum = momentum});
  }
  template <class T>
  static void adam(std::span<T> p, std::span<const T> g, std::span<T> m, std::span<T> v, double rate, double beta1,
                   double beta2, double epsilon, std::uint64_t t) {
    kernel::adam(p, g, m, v, {.rate = rate, .beta1 = beta1, .beta2 = beta2, .epsilon = epsilon}, t);
  }
};

} // namespace tessera
