// backend/reference.hpp: the plain-loop backend: every operation as its definition reads. The oracle of the others.
//
// A backend is a type with a memory space and the kernels that layers call; layers know nothing else of it.
//
// May know: base, space, kernel.
// Example: Network<Model, double, reference> oracle(grid);
#pragma once

#include <span>
#include <tessera/backend/initialise.hpp>
#include <tessera/kernel/reference.hpp>
#include <tessera/kernel/reference_resample.hpp>
#include <tessera/space/blocks.hpp>

namespace tessera {

struct reference {
  using space = host;
  static constexpr const char* name = "reference";

  template <class T> class Convolution {
  public:
    explicit Convolution(const kernel::Conv& p) : p_(p) {}
    void forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
      kernel::reference::convolution(p_, x, w, bias, y);
    }
    void backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx) {
      kernel::reference::convolution_backward_data(p_, dy, w, dx);
    }
    void backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db,
                          kernel::Gradient mode) {
      kernel::reference::convolution_backward_weights(p_, x, dy, dw, db, mode);
    }

  private:
    kernel::Conv p_;
  };

  template <class T> class Dense {
  public:
    explicit Dense(const kernel::Dense& p) : p_(p) {}
    void forward(const T* x, const T* w, const T* bias, T* y) { kernel::reference::dense(p_, x, w, bias, y); }
    void backward_data(const T* dy, const T* w, T* dx) { kernel::reference::dense_backward_data(p_, dy, w, dx); }
    void backward_weights(const T* x, const T* dy, T* dw, T* db, kernel::Gradient mode) {
      kernel::reference::dense_backward_weights(p_, x, dy, dw, db, mode);
    }

  private:
    kernel::Dense p_;
  };

  template <class T>
  static void pool_forward(const kernel::Pooling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::reference::pooling(p, x, y);
  }
  /// dx = pool_backward(dy) * act'(x)
  template <class T>
  static void pool_backward(const kernel::Pooling& p, const View<const T, 5>& x, const View<const T, 5>& dy,
                            const View<T, 5>& dx, kernel::Activation act, double slope) {
    kernel::reference::pooling_backward(p, x, dy, dx, act, slope);
  }
  // The parts of global pooling and upsampling: see kernel/reference_resample.hpp. Numbers come to and from the host.
  template <class T>
  static void volume_maxima(const View<const T, 5>& x, const Index<3>& origin, const Index<3>& global, T* best,
                            std::int64_t* where) {
    kernel::reference::volume_maxima(x, origin, global, best, where);
  }
  template <class T>
  static void volume_maxima_backward(const View<const T, 5>& dy, const std::int64_t* where, const Index<3>& origin,
                                     const Index<3>& global, const View<T, 5>& dx) {
    kernel::reference::volume_maxima_backward(dy, where, origin, global, dx);
  }
  template <class T> static void spread(const View<const T, 5>& values, double factor, const View<T, 5>& y) {
    kernel::reference::spread(values, factor, y);
  }
  template <class T> static void set_values(const double* values, const View<T, 5>& y) {
    kernel::reference::set_values(values, y);
  }
  template <class T>
  static void upsample_forward(const kernel::Upsampling& p, const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::reference::upsampling(p, x, y);
  }
  template <class T>
  static void upsample_backward(const kernel::Upsampling& p, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::reference::upsampling_backward(p, dy, dx);
  }
  template <class T>
  static void activation_forward(kernel::Activation a, double slope, const View<const T, 5>& x, const View<T, 5>& y) {
    for_each_index(whole(y.extents), [&](const Index<5>& i) { y[i] = kernel::activate(a, slope, x[i]); });
  }
  /// dy *= act', from the output y
  template <class T>
  static void activation_backward(kernel::Activation a, double slope, const View<const T, 5>& y, const View<T, 5>& dy) {
    for_each_index(whole(y.extents), [&](const Index<5>& i) { dy[i] *= kernel::activation_slope(a, slope, y[i]); });
  }
  /// y = act(bias) in every cell
  template <class T> static void fill_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    for_each_index(whole(y.extents),
                   [&](const Index<5>& i) { y[i] = kernel::activate(a, slope, bias ? bias[i[1]] : T{}); });
  }
  /// y = act(y + bias) in every cell
  template <class T> static void add_channels(const View<T, 5>& y, const T* bias, kernel::Activation a, double slope) {
    for_each_index(whole(y.extents),
                   [&](const Index<5>& i) { y[i] = kernel::activate(a, slope, y[i] + (bias ? bias[i[1]] : T{})); });
  }
  /// db = sum of dy over samples and cells
  template <class T> static void sum_channels(const View<const T, 5>& dy, T* db) {
    kernel::reference::sum_channels(dy, db, kernel::Gradient::overwrite);
  }
  template <class T>
  static void pointwise_forward(kernel::Pointwise f, const View<const T, 5>& x, const View<T, 5>& y) {
    for_each_index(whole(y.extents), [&](const Index<5>& i) { y[i] = kernel::pointwise_value(f, x[i]); });
  }
  /// dx = dy f'(x)
  template <class T>
  static void pointwise_backward(kernel::Pointwise f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                 const View<T, 5>& dx) {
    for_each_index(whole(dx.extents),
                   [&](const Index<5>& i) { dx[i] = dy[i] * kernel::pointwise_derivative(f, x[i]); });
  }
  /// The same for a function of the user's, a type with value(v) and derivative(v).
  template <class T, class F> static void function_forward(const F& f, const View<const T, 5>& x, const View<T, 5>& y) {
    for_each_index(whole(y.extents), [&](const Index<5>& i) { y[i] = static_cast<T>(f.value(x[i])); });
  }
  template <class T, class F>
  static void function_backward(const F& f, const View<const T, 5>& x, const View<const T, 5>& dy,
                                const View<T, 5>& dx) {
    for_each_index(whole(dx.extents), [&](const Index<5>& i) { dx[i] = static_cast<T>(dy[i] * f.derivative(x[i])); });
  }
  /// Over the channels of each cell; backward from the output y.
  template <class T> static void softmax(const View<const T, 5>& x, const View<T, 5>& y) {
    kernel::reference::softmax(x, y);
  }
  template <class T>
  static void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
    kernel::reference::softmax_backward(y, dy, dx);
  }
  // The passes of batch normalisation: see kernel/normalisation.hpp.
  template <class T> static void channel_sums(const View<const T, 5>& x, double* sums) {
    kernel::reference::channel_sums(x, sums);
  }
  template <class T> static void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
    kernel::reference::channel_squares(x, mean, sums);
  }
  template <class T>
  static void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, kernel::Activation a,
                        double slope, const View<T, 5>& y) {
    kernel::reference::normalise(x, mean, scale, beta, a, slope, y);
  }
  template <class T>
  static void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
    kernel::reference::normalisation_sums(x, dy, mean, sums);
  }
  template <class T>
  static void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                                     const T* b, const T* e, const View<T, 5>& dx) {
    kernel::reference::normalisation_backward(x, dy, mean, a, b, e, dx);
  }
  template <class T>
  static void dropout(const View<const T, 5>& x, const View<T, 5>& y, const Index<5>& origin, const Extents<5>& global,
                      double keep, std::uint64_t seed, std::uint64_t layer, std::uint64_t step) {
    kernel::dropout(x, y, origin, global, keep, seed, layer, step);
  }
  template <class T>
  static void sgd(std::span<T> p, std::span<const T> g, std::span<T> v, double rate, double momentum) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      v[i] = static_cast<T>(momentum * v[i] + g[i]);
      p[i] = static_cast<T>(p[i] - rate * v[i]);
    }
  }
  template <class T>
  static void adam(std::span<T> p, std::span<const T> g, std::span<T> m, std::span<T> v, double rate, double beta1,
                   double beta2, double epsilon, std::uint64_t t) {
    const double c1 = 1 - std::pow(beta1, double(t)), c2 = 1 - std::pow(beta2, double(t));
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = static_cast<T>(beta1 * m[i] + (1 - beta1) * g[i]);
      v[i] = static_cast<T>(beta2 * v[i] + (1 - beta2) * g[i] * g[i]);
      p[i] = static_cast<T>(p[i] - rate * (m[i] / c1) / (std::sqrt(v[i] / c2) + epsilon));
    }
  }
  template <class T> static void fill(T* at, std::size_t count, T value) { std::fill_n(at, count, value); }
  template <class T>
  static void initialise(T* at, const Extents<5>& weights, Init how, std::uint64_t seed, std::uint64_t layer) {
    initialise_weights(at, weights, how, seed, layer);
  }
};

} // namespace tessera
