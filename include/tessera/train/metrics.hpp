// train/metrics.hpp: how good a segmentation is: Confusion, which counts predicted against true classes over steps and
// ranks; argmax, the class of each voxel.
//
// Counts are whole numbers, so the metrics are the same on every grid to the last bit; replicas count once.
//
// May know: base, layout, space, comm, tensor, train/label_loss.hpp.
// Example: ConfusionCounter counter(3);  counter.add(model.forward(x, Mode::inference), t);  // step after step
//          const Confusion all = counter.result();  all.dice(1);  all.mean_dice(Background::left_out);
#pragma once

#include <limits>
#include <tessera/train/label_loss.hpp>

namespace tessera {

/// at(t, p): how many voxels of true class t were predicted as class p, over all ranks.
class Confusion {
public:
  Confusion(long classes, std::vector<std::int64_t> counts) : classes_(classes), counts_(std::move(counts)) {}

  long classes() const { return classes_; }
  std::int64_t at(long truth, long predicted) const { return counts_[std::size_t(truth * classes_ + predicted)]; }
  /// Voxels that count.
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto n : counts_) sum += n;
    return sum;
  }
  std::int64_t truth(long c) const {
    std::int64_t sum = 0;
    for (long p = 0; p < classes_; ++p) sum += at(c, p);
    return sum;
  }
  std::int64_t predicted(long c) const {
    std::int64_t sum = 0;
    for (long t = 0; t < classes_; ++t) sum += at(t, c);
    return sum;
  }
  /// 2 |both| / (|true| + |predicted|); not a number where the class is in neither.
  double dice(long c) const { return ratio(2 * at(c, c), truth(c) + predicted(c)); }
  /// |both| / |either|; not a number where the class is in neither.
  double iou(long c) const { return ratio(at(c, c), truth(c) + predicted(c) - at(c, c)); }
  /// The fraction of the voxels with the right class; not a number if there are none.
  double accuracy() const {
    std::int64_t right = 0;
    for (long c = 0; c < classes_; ++c) right += at(c, c);
    return ratio(right, total());
  }
  /// Means over the classes that occur, in truth or prediction.
  double mean_dice(Background b = Background::counts) const {
    return mean(b, [this](long c) { return dice(c); });
  }
  double mean_iou(Background b = Background::counts) const {
    return mean(b, [this](long c) { return iou(c); });
  }

private:
  static double ratio(std::int64_t a, std::int64_t b) {
    return b > 0 ? double(a) / double(b) : std::numeric_limits<double>::quiet_NaN();
  }
  template <class F> double mean(Background b, const F& f) const {
    double sum = 0, count = 0;
    for (long c = b == Background::counts ? 0 : 1; c < classes_; ++c)
      if (truth(c) + predicted(c) > 0) sum += f(c), count += 1;
    return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
  }

  long classes_;
  std::vector<std::int64_t> counts_;
};

namespace detail {
/// The channel with the largest score, the first of equals.
template <class T> long largest(const T* scores, long channels, long stride) {
  long best = 0;
  for (long c = 1; c < channels; ++c)
    if (double(scores[c * stride]) > double(scores[best * stride])) best = c;
  return best;
}
} // namespace detail

/// Adds up over steps; result() adds up over ranks.
class ConfusionCounter {
public:
  explicit ConfusionCounter(long classes, std::optional<long> ignore = {}) : classes_(classes), ignore_(ignore) {
    TESSERA_REQUIRE(classes >= 1, "ConfusionCounter: ", classes, " classes; give at least one");
    clear();
  }
  /// The largest score of each voxel of y (n,c,d,h,w) against the labels t. Local: nothing is sent.
  template <class T, class U> void add(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) {
    detail::check_labels(y, t);
    TESSERA_REQUIRE(y.extents()[1] == classes_, "ConfusionCounter: a prediction of ", y.extents()[1],
                    " classes, but it counts ", classes_, "; make it for as many");
    take(y, t, [stride = y.view().strides[1], n = classes_](const T* at) { return detail::largest(at, n, stride); });
  }
  /// Predicted labels (n,1,d,h,w) against true ones. Local.
  template <class T, class U>
  requires std::is_integral_v<T>
  void add_labels(const Tensor<T, 5, host>& predicted, const Tensor<U, 5, host>& t) {
    detail::check_labels(predicted, t);
    TESSERA_REQUIRE(predicted.extents()[1] == 1, "ConfusionCounter: predicted labels with ", predicted.extents()[1],
                    " channels; one is expected: use add() for scores");
    take(predicted, t, [](const T* at) { return static_cast<long>(*at); });
  }

  /// Everything that was added, over all ranks. Collective: one all-reduce. Throws usage_error on every rank if a label
  /// was no class.
  Confusion result() const {
    if (!ranks_) return {classes_, std::vector<std::int64_t>(std::size_t(classes_ * classes_))};
    std::vector<std::int64_t> all = counts_;
    ranks_->iall_reduce(std::span<std::int64_t>(all)).wait();
    const std::int64_t bad = all.back();
    TESSERA_REQUIRE(bad == 0, "ConfusionCounter: ", bad, " voxels with a label that is none of the ", classes_,
                    " classes, 0 to ", classes_ - 1, "; renumber the labels, or name the one to ignore");
    all.pop_back();
    return {classes_, std::move(all)};
  }
  /// Forgets what was added.
  void clear() { counts_.assign(std::size_t(classes_ * classes_) + 1, 0); }

private:
  template <class Y, class U, class F> void take(const Y& y, const Tensor<U, 5, host>& t, const F& predict) {
    const Communicator& ranks = y.grid().over(y.layout().mask(Placement::Kind::split));
    TESSERA_REQUIRE(!ranks_ || ranks_->size() == ranks.size(), "ConfusionCounter: tensors over ", ranks_->size(),
                    " and over ", ranks.size(), " ranks; use one counter for each layout");
    ranks_ = ranks;
    const auto vy = y.view();
    const View<const U, 5> vt = t.view();
    for_each_index(whole(vt.extents), [&](const Index<5>& i) {
      const long truth = static_cast<long>(vt[i]);
      if (ignore_ == truth) return;
      const long predicted = predict(&vy[i]);
      const bool good = truth >= 0 && truth < classes_ && predicted >= 0 && predicted < classes_;
      ++counts_[good ? std::size_t(truth * classes_ + predicted) : counts_.size() - 1];
    });
  }

  long classes_;
  std::optional<long> ignore_;
  std::optional<Communicator> ranks_;
  std::vector<std::int64_t> counts_; ///< truth by prediction, and last the voxels without a class
};

/// The class with the largest score of each voxel, the first of equals, into labels laid out like y. Local.
template <class T, class U> void argmax(const Tensor<T, 5, host>& y, Tensor<U, 5, host>& labels) {
  detail::check_labels(y, labels);
  TESSERA_REQUIRE(y.extents()[1] - 1 <= long(std::numeric_limits<U>::max()), "argmax: ", y.extents()[1],
                  " classes do not fit into the type of the labels; use a wider one");
  const auto vy = y.view();
  const View<U, 5> v = labels.view();
  for_each_index(whole(v.extents), [&](const Index<5>& i) {
    v[i] = static_cast<U>(detail::largest(&vy[i], y.extents()[1], vy.strides[1]));
  });
}

} // namespace tessera
