// kernel/device/pointwise.hpp: activations, dropout and updates of weights as functors of one element.
//
// Launched on the calling thread's stream; see space/device_blocks.hpp for what a functor is. The same formulas as the
// kernels of the host, so results agree to rounding.
//
// May know: base, space, kernel.
// Example: activation_forward<Space, float>(Activation::relu, 0, x, y);
#pragma once

#include <cmath>
#include <span>
#include <tessera/kernel/random.hpp>
#include <tessera/kernel/reference.hpp>
#include <tessera/space/device_blocks.hpp>

namespace tessera::kernel::device {

using namespace tessera::device;

/// The index of element i of dense channels-last extents: channels run fastest.
TESSERA_HD constexpr Index<5> index_of(long i, const Extents<5>& e) {
  Index<5> at;
  for (const int k : {1, 4, 3, 2}) {
    const long outer = divide(i, e[k]);
    at[k] = i;
    i = outer;
  }
  at[0] = i;
  return at;
}

/// to = act(from)
template <class T> struct Activate {
  const T* from;
  T* to;
  tessera::detail::Runs runs;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) { visit(from), visit(to); }
  TESSERA_HD void operator()(long i) const {
    const Offsets o = offsets(runs, i);
    to[o.b] = activate(act, slope, from[o.a]);
  }
};
template <class Space, class T>
void activation_forward(Activation a, double slope, const View<const T, 5>& x, const View<T, 5>& y) {
  check_extents("the activation's output", y.extents, x.extents);
  launch<Space>(y.size(), Activate<T>{x.data, y.data, tessera::detail::runs_of(x, y), a, slope});
}

/// gradient *= act', from the activation's output
template <class T> struct TimesSlope {
  const T* output;
  T* gradient;
  tessera::detail::Runs runs;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) { visit(output), visit(gradient); }
  TESSERA_HD void operator()(long i) const {
    const Offsets o = offsets(runs, i);
    gradient[o.b] *= activation_slope(act, slope, output[o.a]);
  }
};
template <class Space, class T>
void activation_backward(Activation a, double slope, const View<const T, 5>& y, const View<T, 5>& dy) {
  check_extents("the activation's gradient", dy.extents, y.extents);
  if (a != Activation::none)
    launch<Space>(dy.size(), TimesSlope<T>{y.data, dy.data, tessera::detail::runs_of(y, dy), a, slope});
}

/// y = act(bias) in every cell; without bias of zeros
template <class T> struct FillChannels {
  View<T, 5> y;
  const T* bias;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) { visit(y.data), visit(bias); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    y[at] = activate(act, slope, bias ? bias[at[1]] : T{});
  }
};
template <class Space, class T> void fill_channels(const View<T, 5>& y, const T* bias, Activation a, double slope) {
  launch<Space>(y.size(), FillChannels<T>{y, bias, a, slope});
}

/// y = act(y + bias) in every cell; without bias y = act(y)
template <class T> struct AddChannels {
  View<T, 5> y;
  const T* bias;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) { visit(y.data), visit(bias); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    y[at] = activate(act, slope, y[at] + (bias ? bias[at[1]] : T{}));
  }
};
template <class Space, class T> void add_channels(const View<T, 5>& y, const T* bias, Activation a, double slope) {
  launch<Space>(y.size(), AddChannels<T>{y, bias, a, slope});
}

/// The library's functions that are no activations, in the form that the kernels call functions of users in.
struct NamedFunction {
  Pointwise which;
  template <class T> TESSERA_HD T value(T v) const { return pointwise_value(which, v); }
  template <class T> TESSERA_HD T derivative(T v) const { return pointwise_derivative(which, v); }
};
/// y = f(x)
template <class T, class F> struct Apply {
  View<const T, 5> x;
  View<T, 5> y;
  F f;
  template <class V> void operands(const V& visit) { visit(x.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    y[at] = static_cast<T>(f.value(x[at]));
  }
};
/// dx = dy f'(x)
template <class T, class F> struct ApplyBackward {
  View<const T, 5> x, dy;
  View<T, 5> dx;
  F f;
  template <class V> void operands(const V& visit) { visit(x.data), visit(dy.data), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    dx[at] = dy[at] * static_cast<T>(f.derivative(x[at]));
  }
};
template <class Space, class T, class F>
void function_forward(const F& f, const View<const T, 5>& x, const View<T, 5>& y) {
  check_extents("y", y.extents, x.extents);
  launch<Space>(y.size(), Apply<T, F>{x, y, f});
}
template <class Space, class T, class F>
void function_backward(const F& f, const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dx) {
  check_extents("dx", dx.extents, x.extents);
  launch<Space>(dx.size(), ApplyBackward<T, F>{x, dy, dx, f});
}

/// y = exp(x) / the sum of exp(x) over the channels, one cell at a time
template <class T> struct Softmax {
  View<const T, 5> x;
  View<T, 5> y;
  template <class V> void operands(const V& visit) { visit(x.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    Index<5> at = index_of(i * y.extents[1], y.extents);
    T most = x[at], sum = 0;
    for (at[1] = 1; at[1] < y.extents[1]; ++at[1]) most = x[at] > most ? x[at] : most;
    for (at[1] = 0; at[1] < y.extents[1]; ++at[1]) sum += y[at] = std::exp(x[at] - most);
    for (at[1] = 0; at[1] < y.extents[1]; ++at[1]) y[at] /= sum;
  }
};
/// dx = y (dy - sum of y dy)
template <class T> struct SoftmaxBackward {
  View<const T, 5> y, dy;
  View<T, 5> dx;
  template <class V> void operands(const V& visit) { visit(y.data), visit(dy.data), visit(dx.data); }
  TESSERA_HD void operator()(long i) const {
    Index<5> at = index_of(i * dx.extents[1], dx.extents);
    T sum = 0;
    for (at[1] = 0; at[1] < dx.extents[1]; ++at[1]) sum += y[at] * dy[at];
    for (at[1] = 0; at[1] < dx.extents[1]; ++at[1]) dx[at] = y[at] * (dy[at] - sum);
  }
};
template <class Space, class T> void softmax(const View<const T, 5>& x, const View<T, 5>& y) {
  check_extents("y", y.extents, x.extents);
  if (y.size() > 0) launch<Space>(y.size() / y.extents[1], Softmax<T>{x, y});
}
template <class Space, class T>
void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
  check_extents("dx", dx.extents, y.extents);
  if (dx.size() > 0) launch<Space>(dx.size() / dx.extents[1], SoftmaxBackward<T>{y, dy, dx});
}

/// y = x / keep where the mask of the global element says so, else 0
template <class T> struct Dropout {
  View<const T, 5> x;
  View<T, 5> y;
  Index<5> origin;
  Extents<5> global;
  double keep;
  PhiloxKey key;
  template <class V> void operands(const V& visit) { visit(x.data), visit(y.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    long number = 0;
    for (int k = 0; k < 5; ++k) number = number * global[k] + at[k] + origin[k];
    // Chosen by comparison, because a variable index would put the four words into memory.
    const PhiloxWords words = random_words(key, static_cast<std::uint64_t>(number) / 4);
    const long at_word = number % 4;
    const std::uint32_t word = at_word == 0 ? words[0] : at_word == 1 ? words[1] : at_word == 2 ? words[2] : words[3];
    const bool kept = static_cast<double>(uniform(word)) < keep;
    y[at] = kept ? x[at] * static_cast<T>(1 / keep) : T{};
  }
};
template <class Space, class T>
void dropout(const View<const T, 5>& x, const View<T, 5>& y, const Index<5>& origin, const Extents<5>& global,
             double keep, std::uint64_t seed, std::uint64_t layer, std::uint64_t step) {
  TESSERA_REQUIRE(keep > 0 && keep <= 1, "dropout: keep probability ", keep, " is not in (0, 1]");
  check_extents("the output of dropout", y.extents, x.extents);
  launch<Space>(y.size(), Dropout<T>{x, y, origin, global, keep, random_key(seed, layer, step)});
}

/// velocity = momentum * velocity + g;  p -= rate * velocity
template <class T> struct Sgd {
  T* p;
  const T* g;
  T* velocity;
  T rate, momentum;
  template <class V> void operands(const V& visit) { visit(p), visit(g), visit(velocity); }
  TESSERA_HD void operator()(long i) const {
    const T v = momentum * velocity[i] + g[i];
    velocity[i] = v;
    p[i] -= rate * v;
  }
};
template <class Space, class T>
void sgd(std::span<T> p, std::span<const T> g, std::span<T> v, double rate, double momentum) {
  launch<Space>(long(p.size()), Sgd<T>{p.data(), g.data(), v.data(), static_cast<T>(rate), static_cast<T>(momentum)});
}

/// Adam as in kernel/optimizer.hpp, with the corrections of the step in `rate` and `of_v`.
template <class T> struct Adam {
  T* p;
  const T* g;
  T *m, *v;
  T rate, b1, b2, a1, a2, of_v, epsilon;
  template <class V> void operands(const V& visit) { visit(p), visit(g), visit(m), visit(v); }
  TESSERA_HD void operator()(long i) const {
    const T gradient = g[i];
    const T first = b1 * m[i] + a1 * gradient, second = b2 * v[i] + a2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] -= rate * first / (std::sqrt(second) * of_v + epsilon);
  }
};
template <class Space, class T>
void adam(std::span<T> p, std::span<const T> g, std::span<T> m, std::span<T> v, double rate, double beta1, double beta2,
          double epsilon, std::uint64_t t) {
  TESSERA_REQUIRE(t >= 1, "adam: steps count from 1");
  const double c1 = 1 - std::pow(beta1, double(t)), c2 = 1 - std::pow(beta2, double(t));
  launch<Space>(long(p.size()),
                Adam<T>{p.data(), g.data(), m.data(), v.data(), static_cast<T>(rate / c1), static_cast<T>(beta1),
                        static_cast<T>(beta2), static_cast<T>(1 - beta1), static_cast<T>(1 - beta2),
                        static_cast<T>(1 / std::sqrt(c2)), static_cast<T>(epsilon)});
}

} // namespace tessera::kernel::device
