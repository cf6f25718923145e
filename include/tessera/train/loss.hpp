// train/loss.hpp: losses of a prediction against a target of the same layout: means over the global tensor.
//
// A loss owns its divisor: the gradient is the derivative of the mean over all elements of all samples, whatever the
// grid.
//
// May know: base, layout, space, comm, tensor.
// Example: LossSum s = loss_and_gradient(mean_squared_error{}, y, t, &dy);  double value = s.resolve();
#pragma once

#include <cmath>
#include <tessera/kernel/device/loss.hpp>
#include <tessera/tensor/tensor.hpp>

namespace tessera {

/// mean (y - t)^2
struct mean_squared_error {
  static constexpr bool on_device = true;
  TESSERA_HD static double value(double y, double t) { return (y - t) * (y - t); }
  TESSERA_HD static double derivative(double y, double t) { return 2 * (y - t); }
};
/// mean |y - t|; the derivative at 0 is 0.
struct mean_absolute_error {
  static constexpr bool on_device = true;
  TESSERA_HD static double value(double y, double t) { return y > t ? y - t : t - y; }
  TESSERA_HD static double derivative(double y, double t) { return y > t ? 1 : y < t ? -1 : 0; }
};

/// A sum that is on its way to all ranks, and its divisor.
class LossSum {
public:
  LossSum(Communicator ranks, double local, double count)
      : ranks_(std::move(ranks)), sum_(std::make_unique<double>(local)), count_(count) {
    if (ranks_.size() > 1) pending_ = ranks_.iall_reduce(std::span<double>(sum_.get(), 1));
  }
  /// The global mean; waits.
  double resolve() {
    pending_.wait();
    return *sum_ / count_;
  }

private:
  Communicator ranks_;
  std::unique_ptr<double> sum_; ///< stays put while the message is under way
  double count_;
  Request pending_;
};

/// The loss of y against t (equal maps), and, unless dy is null, its gradient with respect to y into dy. Starts one
/// all-reduce over the axes that split y; replicas count once.
template <class Loss, class T>
LossSum loss_and_gradient(const Loss& loss, const Tensor<T, 5, host>& y, const Tensor<T, 5, host>& t,
                          Tensor<T, 5, host>* dy) {
  TESSERA_REQUIRE(y.map() == t.map(), "loss: the prediction has layout ", y.layout().str(), " and extents ",
                  y.extents(), ", the target ", t.layout().str(), " and ", t.extents(),
                  "; make the target with make_target() or assign it to a tensor of that layout");
  const double count = double(product(y.extents()));
  double sum = 0;
  const View<const T, 5> vy = y.view(), vt = t.view();
  const View<T, 5> vd = dy ? dy->view() : View<T, 5>{};
  for_each_index(whole(vy.extents), [&](const Index<5>& i) {
    const double a = double(vy[i]), b = double(vt[i]);
    sum += loss.value(a, b);
    if (dy) vd[i] = static_cast<T>(loss.derivative(a, b) / count);
  });
  return LossSum(y.grid().over(y.layout().mask(Placement::Kind::split)), sum, count);
}

/// The same where the host cannot touch the tensors. A loss of single elements whose functions a device may call says
/// so by `static constexpr bool on_device = true`; any other loss is computed on the host, from copies.
template <class Loss, class T, class Space>
requires(!Space::host_accessible) LossSum loss_and_gradient(const Loss& loss, const Tensor<T, 5, Space>& y,
                                                            const Tensor<T, 5, Space>& t, Tensor<T, 5, Space>* dy) {
  if constexpr (requires { requires Loss::on_device; }) {
    TESSERA_REQUIRE(y.map() == t.map(), "loss: the prediction has layout ", y.layout().str(), " and extents ",
                    y.extents(), ", the target ", t.layout().str(), " and ", t.extents(),
                    "; make the target with make_target() or copy it to a tensor of that layout");
    const double count = double(product(y.extents()));
    const double sum = kernel::device::loss_sum<Space>(loss, y.view(), t.view());
    if (dy) kernel::device::loss_gradient<Space>(loss, y.view(), t.view(), count, dy->view());
    return LossSum(y.grid().over(y.layout().mask(Placement::Kind::split)), sum, count);
  } else {
    const Tensor<T, 5, host> host_y = host_copy(y), host_t = host_copy(t);
    if (!dy) return loss_and_gradient(loss, host_y, host_t, static_cast<Tensor<T, 5, host>*>(nullptr));
    Tensor<T, 5, host> host_dy(dy->grid(), dy->map());
    LossSum sum = loss_and_gradient(loss, host_y, host_t, &host_dy);
    copy(host_dy, *dy);
    return sum;
  }
}

} // namespace tessera
