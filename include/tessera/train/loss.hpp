// train/loss.hpp: losses of a prediction against a target: means over the global tensor, their sums with weights, and
// what runs any loss on any grid.
//
// A loss owns its divisor: the gradient is the derivative of the mean over all elements of all samples, whatever the
// grid; replicas count once. A loss is either pointwise (a value and a derivative of one prediction and one target, as
// mean_squared_error here) or a GlobalLoss: sums over the tensor and functions of them (train/label_loss.hpp).
//
// May know: base, layout, space, comm, tensor.
// Example: LossSum s = loss_and_gradient(mean_squared_error{}, y, t, &dy);  double value = s.resolve();
//          Trainer trainer(model, adam{}, 0.5 * cross_entropy{} + 0.5 * dice{});
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <tessera/kernel/device/loss.hpp>
#include <tessera/tensor/tensor.hpp>
#include <type_traits>
#include <vector>

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
/// The mean of (y - t)^2 / 2 up to a distance of `delta`, and of delta (|y - t| - delta / 2) beyond it.
struct huber {
  double delta = 1;
  double value(double y, double t) const {
    const double e = std::abs(y - t);
    return e <= delta ? e * e / 2 : delta * (e - delta / 2);
  }
  double derivative(double y, double t) const {
    const double e = y - t;
    return std::abs(e) <= delta ? e : e > 0 ? delta : -delta;
  }
};
/// The mean of -(q t log s(y) + (1 - t) log(1 - s(y))): y is the logit of a probability, s(y) = 1 / (1 + exp(-y)), and
/// t, from 0 to 1, the true one. Exact for logits of any size. q = `positive_weight` makes up for rare ones.
struct binary_cross_entropy {
  double positive_weight = 1;
  double value(double y, double t) const {
    return (1 - t) * y + scale(t) * (std::log1p(std::exp(-std::abs(y))) + std::max(-y, 0.0));
  }
  double derivative(double y, double t) const { return 1 - t - scale(t) * below(y); }

private:
  double scale(double t) const { return 1 + (positive_weight - 1) * t; }
  /// 1 - s(y)
  static double below(double y) {
    const double e = std::exp(-std::abs(y));
    return (y > 0 ? e : 1) / (1 + e);
  }
};

template <class L>
concept PointwiseLoss = requires(const L& l) {
  { l.value(1.0, 1.0) } -> std::convertible_to<double>;
  { l.derivative(1.0, 1.0) } -> std::convertible_to<double>;
};

/// A label that is no class of the prediction, and where (global indices).
struct LabelFault {
  Index<5> at{};
  long label = 0, classes = 0;
};

/// A loss that is a function of sums over the whole tensor. It has, for prediction y and target t (see PointwiseTerms):
///   void check(y, t) const         throws usage_error unless the shapes and layouts fit; looks at global facts only
///   fault(y, t) const              the first bad label on this rank (std::optional<LabelFault>)
///   long sums(y extents) const     how many sums
///   void measure(y, t, sums) const adds this rank's part to them
///   bool waits() const             whether the gradient needs the sums of all ranks
///   double value(sums, y extents) const
///   void gradient(y, t, sums, factor, dy view) const  adds factor * d value / d y to dy; `sums` of all ranks if
///   waits()
template <class L>
concept GlobalLoss = requires(const L& l, std::span<const double> sums, const Extents<5>& e) {
  { l.sums(e) } -> std::convertible_to<long>;
  { l.waits() } -> std::convertible_to<bool>;
  { l.value(sums, e) } -> std::convertible_to<double>;
};
template <class L>
concept AnyLoss = PointwiseLoss<L> || GlobalLoss<L>;

/// A pointwise loss as a GlobalLoss: one sum, a divisor that needs no message.
template <PointwiseLoss Loss> struct PointwiseTerms {
  Loss loss;

  template <class T, class U> void check(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) const {
    TESSERA_REQUIRE(y.map() == t.map(), "loss: the prediction has layout ", y.layout().str(), " and extents ",
                    y.extents(), ", the target ", t.layout().str(), " and ", t.extents(),
                    "; make the target with make_target() or assign it to a tensor of that layout");
  }
  template <class T, class U>
  std::optional<LabelFault> fault(const Tensor<T, 5, host>&, const Tensor<U, 5, host>&) const {
    return {};
  }
  static long sums(const Extents<5>&) { return 1; }
  static bool waits() { return false; }
  static double value(std::span<const double> sums, const Extents<5>& e) { return sums[0] / double(product(e)); }
  template <class T, class U>
  void measure(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<double> sums) const {
    const View<const T, 5> vy = y.view();
    const View<const U, 5> vt = t.view();
    double sum = 0;
    for_each_index(whole(vy.extents), [&](const Index<5>& i) { sum += loss.value(double(vy[i]), double(vt[i])); });
    sums[0] += sum;
  }
  template <class T, class U>
  void gradient(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<const double>, double factor,
                const View<T, 5>& dy) const {
    const View<const T, 5> vy = y.view();
    const View<const U, 5> vt = t.view();
    const double count = double(product(y.extents()));
    for_each_index(whole(vy.extents), [&](const Index<5>& i) {
      dy[i] = static_cast<T>(double(dy[i]) + factor * loss.derivative(double(vy[i]), double(vt[i])) / count);
    });
  }
};

/// Any loss as a GlobalLoss.
template <GlobalLoss L> const L& global_loss(const L& l) { return l; }
template <PointwiseLoss L> PointwiseTerms<L> global_loss(const L& l) { return {l}; }

/// factor * loss; made by `0.5 * cross_entropy{}`.
template <GlobalLoss A> struct ScaledLoss {
  double factor;
  A a;

  template <class Y, class X> void check(const Y& y, const X& t) const { a.check(y, t); }
  template <class Y, class X> std::optional<LabelFault> fault(const Y& y, const X& t) const { return a.fault(y, t); }
  long sums(const Extents<5>& e) const { return a.sums(e); }
  bool waits() const { return a.waits(); }
  double value(std::span<const double> s, const Extents<5>& e) const { return factor * a.value(s, e); }
  template <class Y, class X> void measure(const Y& y, const X& t, std::span<double> s) const { a.measure(y, t, s); }
  template <class Y, class X, class D>
  void gradient(const Y& y, const X& t, std::span<const double> s, double f, const D& dy) const {
    a.gradient(y, t, s, f * factor, dy);
  }
};

/// a + b, on one target.
template <GlobalLoss A, GlobalLoss B> struct LossPair {
  A a;
  B b;

  template <class Y, class X> void check(const Y& y, const X& t) const { a.check(y, t), b.check(y, t); }
  template <class Y, class X> std::optional<LabelFault> fault(const Y& y, const X& t) const {
    const auto f = a.fault(y, t);
    return f ? f : b.fault(y, t);
  }
  long sums(const Extents<5>& e) const { return a.sums(e) + b.sums(e); }
  bool waits() const { return a.waits() || b.waits(); }
  double value(std::span<const double> s, const Extents<5>& e) const {
    const auto cut = std::size_t(a.sums(e));
    return a.value(s.first(cut), e) + b.value(s.subspan(cut), e);
  }
  template <class Y, class X> void measure(const Y& y, const X& t, std::span<double> s) const {
    const auto cut = std::size_t(a.sums(y.extents()));
    a.measure(y, t, s.first(cut)), b.measure(y, t, s.subspan(cut));
  }
  template <class Y, class X, class D>
  void gradient(const Y& y, const X& t, std::span<const double> s, double f, const D& dy) const {
    const auto cut = std::size_t(a.sums(y.extents()));
    a.gradient(y, t, s.first(cut), f, dy), b.gradient(y, t, s.subspan(cut), f, dy);
  }
};

/// factor loss, and a + b. Only classes are looked at: clang 14 forms operator*(double, int) before it asks AnyLoss.
template <class L, class = std::enable_if_t<std::is_class_v<L>>>
requires AnyLoss<L>
auto operator*(double factor, const L& loss) {
  return ScaledLoss<std::remove_cvref_t<decltype(global_loss(loss))>>{factor, global_loss(loss)};
}
template <class A, class B, class = std::enable_if_t<std::is_class_v<A> && std::is_class_v<B>>>
requires AnyLoss<A> && AnyLoss<B>
auto operator+(const A& a, const B& b) {
  return LossPair<std::remove_cvref_t<decltype(global_loss(a))>, std::remove_cvref_t<decltype(global_loss(b))>>{
      global_loss(a), global_loss(b)};
}

/// The sums of a loss on their way to all ranks, and the function of them that is its value.
class LossSum {
public:
  using Value = std::function<double(std::span<const double>)>;

  /// One all-reduce over `ranks`, of `local` and of whether a rank has a `fault`.
  LossSum(Communicator ranks, std::vector<double> local, Value value, std::optional<LabelFault> fault = {})
      : ranks_(std::move(ranks)), sums_(std::move(local)), value_(std::move(value)), fault_(fault) {
    sums_.push_back(fault_ ? 1 : 0);
    if (ranks_.size() > 1) pending_ = ranks_.iall_reduce(std::span<double>(sums_));
  }
  LossSum(LossSum&&) noexcept = default; // a vector that moves keeps its memory, where the message is under way
  LossSum& operator=(LossSum&&) = delete;

  /// The sums over all ranks; waits. Throws usage_error on every rank if one has a bad label.
  std::span<const double> sums() {
    pending_.wait();
    if (sums_.back() != 0) report();
    return std::span<const double>(sums_).first(sums_.size() - 1);
  }
  /// The global loss; waits, and throws as sums() does.
  double resolve() { return value_(sums()); }

private:
  /// Finds the first bad label of all ranks. Every rank comes here.
  [[noreturn]] void report() const {
    const LabelFault mine = fault_.value_or(LabelFault{});
    LabelFault first;
    bool found = false;
    const auto before = [](const Index<5>& a, const Index<5>& b) {
      return std::lexicographical_compare(a.v, a.v + 5, b.v, b.v + 5);
    };
    for (const auto& theirs : ranks_.all_gather(std::span(&mine, fault_ ? 1 : 0)))
      for (const LabelFault& f : theirs)
        if (!found || before(f.at, first.at)) first = f, found = true;
    detail::fail_usage(text("loss: label ", first.label, " in sample ", first.at[0], " at voxel (d,h,w) ", first.at[2],
                            ",", first.at[3], ",", first.at[4], ", but the prediction has ", first.classes,
                            " classes, 0 to ", first.classes - 1,
                            "; renumber the labels, or name it as the label to ignore"),
                       __FILE__, __LINE__);
  }

  Communicator ranks_;
  std::vector<double> sums_;
  Value value_;
  std::optional<LabelFault> fault_;
  Request pending_; ///< last, so first to go: what it has in flight ends before the sums do
};

/// The loss of y against t, and, unless dy is null, its gradient with respect to y into dy. Starts one all-reduce over
/// the axes that split y; replicas count once. Waits for it only if the gradient needs it.
template <AnyLoss L, class T, class U>
LossSum loss_and_gradient(const L& given, const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t,
                          std::type_identity_t<Tensor<T, 5, host>>* dy) {
  const auto& loss = global_loss(given);
  loss.check(y, t);
  const Extents<5> e = y.extents();
  std::vector<double> local(std::size_t(loss.sums(e)));
  loss.measure(y, t, std::span<double>(local));
  const std::vector<double> mine = loss.waits() ? std::vector<double>{} : local;
  LossSum sum(
      y.grid().over(y.layout().mask(Placement::Kind::split)), std::move(local),
      [loss, e](std::span<const double> sums) { return loss.value(sums, e); }, loss.fault(y, t));
  if (dy) {
    TESSERA_REQUIRE(dy->map() == y.map(), "loss: the gradient has layout ", dy->layout().str(), " and extents ",
                    dy->extents(), ", the prediction ", y.layout().str(), " and ", y.extents(),
                    "; give a tensor like the prediction");
    const std::span<const double> sums = loss.waits() ? sum.sums() : std::span<const double>(mine);
    Blocks<host>::fill(dy->view(), T{});
    loss.gradient(y, t, sums, 1.0, dy->view());
  }
  return sum;
}

/// The same where the host cannot touch the tensors. A loss of single elements whose functions a device may call says
/// so by `static constexpr bool on_device = true`; any other loss is computed on the host, from copies.
template <AnyLoss Loss, class T, class U, class Space>
requires(!Space::host_accessible) LossSum
    loss_and_gradient(const Loss& loss, const Tensor<T, 5, Space>& y, const Tensor<U, 5, Space>& t,
                      std::type_identity_t<Tensor<T, 5, Space>>* dy) {
  if constexpr (std::is_same_v<T, U> && requires { requires Loss::on_device; }) {
    TESSERA_REQUIRE(y.map() == t.map(), "loss: the prediction has layout ", y.layout().str(), " and extents ",
                    y.extents(), ", the target ", t.layout().str(), " and ", t.extents(),
                    "; make the target with make_target() or copy it to a tensor of that layout");
    const double count = double(product(y.extents()));
    const double sum = kernel::device::loss_sum<Space>(loss, y.view(), t.view());
    if (dy) kernel::device::loss_gradient<Space>(loss, y.view(), t.view(), count, dy->view());
    return LossSum(y.grid().over(y.layout().mask(Placement::Kind::split)), {sum},
                   [count](std::span<const double> sums) { return sums[0] / count; });
  } else {
    const Tensor<T, 5, host> host_y = host_copy(y);
    const Tensor<U, 5, host> host_t = host_copy(t);
    if (!dy) return loss_and_gradient(loss, host_y, host_t, nullptr);
    Tensor<T, 5, host> host_dy(dy->grid(), dy->map());
    LossSum sum = loss_and_gradient(loss, host_y, host_t, &host_dy);
    copy(host_dy, *dy);
    return sum;
  }
}

} // namespace tessera
