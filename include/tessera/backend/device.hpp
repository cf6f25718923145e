// backend/device.hpp: device_backend<Space>, every operation of a backend as kernels on the calling thread's stream of
// a device space: its functors and, where a vendor's library is not put in their place, its plain convolutions.
//
// Tensors and parameters are memory of the space. Numbers per channel that layers combine over ranks (sums, means,
// factors of normalisation) are host memory, as for every backend.
//
// May know: base, space, kernel, backend/initialise.hpp.
// Example: struct emulated : device_backend<emulated_device> {};
#pragma once

#include <tessera/backend/initialise.hpp>
#include <tessera/kernel/device/convolution.hpp>
#include <tessera/kernel/device/normalisation.hpp>
#include <tessera/kernel/device/pooling.hpp>
#include <tessera/kernel/device/resample.hpp>

namespace tessera {

template <class Space> struct device_backend {
  using space = Space;

  template <class T> using Convolution = kernel::device::DirectConvolution<T, Space>;
  template <class T> using Dense = kernel::device::DirectDense<T, Space>;

  template <class T>
  static void pool_forward(const kernel::Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::pool_forward<Space>(p, x, y);
  }
  template <class T>
  static void pool_backward(const kernel::Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy,
                            const View<T, 5>& dx, kernel::Activation act, double slope) {
    kernel::device::pool_backward<Space>(p, x, dy, dx, act, slope);
  }
  template <class T>
  static void volume_maxima(const View<const T, 5>& x, const Index<3>& origin, const Index<3>& global, T* best,
                            std::int64_t* where) {
    kernel::device::volume_maxima<Space>(x, origin, global, best, where);
  }
  template <class T>
  static void volume_maxima_backward(const View<const T, 5>& dy, const std::int64_t* where, const Index<3>& origin,
                                     const Index<3>& global, const View<T, 5>& dx) {
    kernel::device::volume_maxima_backward<Space>(dy, where, origin, global, dx);
  }
  template <class T> static void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
    kernel::device::spread<Space>(values, factor, y);
  }
  template <class T> static void set_values(const double* values, const View<T, 5>& y) {
    kernel::device::set_values<Space>(values, y);
  }
  template <class T>
  static void upsample_forward(const kernel::Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::upsample_forward<Space>(p, x, y);
  }
  template <class T>
  static void upsample_backward(const kernel::Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::device::upsample_backward<Space>(p, dy, dx);
  }
  template <class T>
  static void activation_forward(kernel::Activation a, double slope, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::activation_forward<Space>(a, slope, x, y);
  }
  template <class T>
  static void activation_backward(kernel::Activation a, double slope, const View<const T, 5>& y, const View<T, 5>& dy) {
    kernel::device::activation_backward<Space>(a, slope, y, dy);
  }
  template <class T> static void fill_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    kernel::device::fill_channels<Space>(y, bias, a, slope);
  }
  template <class T> static void add_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    kernel::device::add_channels<Space>(y, bias, a, slope);
  }
  template <class T>
  static void pointwise_forward(kernel::Pointwise f, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::function_forward<Space>(kernel::device::NamedFunction{f}, x, y);
  }
  template <class T>
  static void pointwise_backward(kernel::Pointwise f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                 const View<T, 5>& dx) {
    kernel::device::function_backward<Space>(kernel::device::NamedFunction{f}, x, dy, dx);
  }
  /// On a GPU, functions of users need their instances in a .cu file, as losses do.
  template <class T, class F> static void function_forward(const F& f, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::function_forward<Space>(f, x, y);
  }
  template <class T, class F>
  static void function_backward(const F& f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                const View<T, 5>& dx) {
    kernel::device::function_backward<Space>(f, x, dy, dx);
  }
  template <class T> static void softmax(const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::device::softmax<Space>(x, y);
  }
  template <class T>
  static void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::device::softmax_backward<Space>(y, dy, dx);
  }
  template <class T> static void sum_channels(const View<const T, 5>& dy, T* db) {
    kernel::device::sum_channels<Space>(dy, db, kernel::Gradient::overwrite);
  }
  template <class T> static void channel_sums(const View<const T, 5>& x, double* sums) {
    kernel::device::channel_sums<Space>(x, sums);
  }
  template <class T> static void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
    kernel::device::channel_squares<Space>(x, mean, sums);
  }
  template <class T>
  static void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, kernel::Activation a,
                        double slope, const View<T, 5>& y) {
    kernel::device::normalise<Space>(x, mean, scale, beta, a, slope, y);
  }
  template <class T>
  static void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
    kernel::device::normalisation_sums<Space>(x, dy, mean, sums);
  }
  template <class T>
  static void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                                     const T* b, const T* e, const View<T, 5>& dx) {
    kernel::device::normalisation_backward<Space>(x, dy, mean, a, b, e, dx);
  }
  template <class T>
  static void dropout(const View<const T, 5>& x, const View<T, 5>& y, const Index<5>& origin, const Extents<5>& global,
                      double keep, std::uint64_t seed, std::uint64_t layer, std::uint64_t step) {
    kernel::device::dropout<Space>(x, y, origin, global, keep, seed, layer, step);
  }
  template <class T>
  static void sgd(std::span<T> p, std::span<const T> g, std::span<T> v, double rate, double momentum) {
    kernel::device::sgd<Space>(p, g, v, rate, momentum);
  }
  template <class T>
  static void adam(std::span<T> p, std::span<const T> g, std::span<T> m, std::span<T> v, double rate, double beta1,
                   double beta2, double epsilon, std::uint64_t t) {
    kernel::device::adam<Space>(p, g, m, v, rate, beta1, beta2, epsilon, t);
  }
  template <class T> static void fill(T* at, std::size_t count, T value) {
    Blocks<Space>::fill(View<T, 1>(at, {{long(count)}}), value);
  }
  /// Drawn on the host, so that every backend starts from the same bits.
  template <class T>
  static void initialise(T* at, const Extents<5>& weights, Init how, std::uint64_t seed, std::uint64_t layer) {
    Buffer<T, typename Space::pinned> drawn(std::size_t(product(weights)));
    initialise_weights(drawn.data(), weights, how, seed, layer);
    write_from_host<Space>(at, std::as_const(drawn).data(), drawn.size());
  }
};

} // namespace tessera
