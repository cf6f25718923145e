// kernel/device/loss.hpp: losses of single elements: the sum of their values, and their gradient.
//
// A loss has static double value(y, t) and derivative(y, t), both TESSERA_HD.
//
// May know: base, space, kernel.
// Example: double sum = loss_sum<Space>(loss, y, t);   loss_gradient<Space>(loss, y, t, count, dy);
#pragma once

#include <tessera/kernel/device/sums.hpp>

namespace tessera::kernel::device {

/// The loss of each element; a column a channel.
template <class Loss, class T> struct LossValues {
  Loss loss;
  View<const T, 5> y, t;
  template <class V> void operands(const V& visit) { visit(y.data), visit(t.data); }
  long columns() const { return y.extents[1]; }
  const Extents<5>& extents() const { return y.extents; }
  TESSERA_HD double operator()(const Index<5>& at, long c) const {
    const Index<5> i{{at[0], c, at[2], at[3], at[4]}};
    return loss.value(static_cast<double>(y[i]), static_cast<double>(t[i]));
  }
};
/// Over this rank's elements; waits for it.
template <class Space, class Loss, class T>
double loss_sum(const Loss& loss, const View<const T, 5>& y, const View<const T, 5>& t) {
  std::vector<double> channels(std::size_t(y.extents[1]));
  column_sums_to_host<Space>(LossValues<Loss, T>{loss, y, t}, channels.data());
  double sum = 0;
  for (const double s : channels) sum += s;
  return sum;
}

/// dy = derivative / count
template <class Loss, class T> struct LossGradient {
  Loss loss;
  View<const T, 5> y, t;
  View<T, 5> dy;
  double count;
  template <class V> void operands(const V& visit) { visit(y.data), visit(t.data), visit(dy.data); }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dy.extents);
    dy[at] = static_cast<T>(loss.derivative(static_cast<double>(y[at]), static_cast<double>(t[at])) / count);
  }
};
template <class Space, class Loss, class T>
void loss_gradient(const Loss& loss, const View<const T, 5>& y, const View<const T, 5>& t, double count,
                   const View<T, 5>& dy) {
  check_extents("the gradient of the loss", dy.extents, y.extents);
  launch<Space>(dy.size(), LossGradient<Loss, T>{loss, y, t, dy, count});
}

} // namespace tessera::kernel::device
