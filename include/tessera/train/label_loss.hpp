// train/label_loss.hpp: cross_entropy and dice, losses of class scores against integer labels, one for each voxel.
//
// The prediction has one channel per class; labels are integers from 0, a tensor (n,1,d,h,w) laid out like the
// prediction (make_labels() of a network). Every sum is over the voxels of all samples of all ranks, before any ratio
// is formed. A label out of range is the same usage_error on every rank and names its voxel.
//
// May know: base, layout, space, comm, tensor, train/loss.hpp.
// Example: Trainer trainer(model, adam{}, 0.5 * cross_entropy{.ignore = 255} + 0.5 * dice{.ignore = 255});
//          auto t = model.make_labels();  trainer.step(x, t);
#pragma once

#include <tessera/train/loss.hpp>

namespace tessera {

namespace detail {

template <class T, class U> void check_labels(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) {
  static_assert(std::is_integral_v<U>, "tessera: labels are integers; make them with make_labels(), and use a "
                                       "pointwise loss for real targets");
  TESSERA_REQUIRE(!y.map().is_split(1), "loss: ", y.layout().str(),
                  " splits the channels of the prediction, but a "
                  "voxel's label needs all its classes on one rank; put to(...) without c after the last layer");
  TESSERA_REQUIRE(t.map() == label_map(y.map()), "loss: the prediction has layout ", y.layout().str(), " and extents ",
                  y.extents(), ", the labels ", t.layout().str(), " and ", t.extents(),
                  "; labels have one channel and are laid out like the prediction: make them with make_labels()");
}

/// Is `label` one of the classes, and does it count?
inline bool is_class(long label, long classes, const std::optional<long>& ignore) {
  return label >= 0 && label < classes && label != ignore;
}

template <class T, class U>
std::optional<LabelFault> first_bad_label(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t,
                                          const std::optional<long>& ignore) {
  const long classes = y.extents()[1];
  const View<const U, 5> v = t.view();
  std::optional<LabelFault> bad;
  for_each_index(whole(v.extents), [&](const Index<5>& i) {
    const long label = static_cast<long>(v[i]);
    if (!bad && (label < 0 || label >= classes) && label != ignore) bad = {i + t.box().lo, label, classes};
  });
  return bad;
}

/// Calls f(scores, label, offset in dy) for every voxel that counts. `scores` are the voxel's channels as double.
template <class T, class U, class F>
void for_each_labelled(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, const std::optional<long>& ignore,
                       const F& f) {
  const View<const T, 5> vy = y.view();
  const View<const U, 5> vt = t.view();
  const long classes = y.extents()[1];
  std::vector<double> scores(static_cast<std::size_t>(classes));
  for_each_index(whole(vt.extents), [&](const Index<5>& i) {
    const long label = static_cast<long>(vt[i]);
    if (!is_class(label, classes, ignore)) return;
    const T* at = &vy[i];
    for (long c = 0; c < classes; ++c) scores[static_cast<std::size_t>(c)] = double(at[c * vy.strides[1]]);
    f(std::span<double>(scores), static_cast<std::size_t>(label), i);
  });
}

/// Scores become probabilities. Returns the log of the sum of exp(scores).
inline double softmax(std::span<double> z) {
  const double most = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (double& v : z) sum += v = std::exp(v - most);
  for (double& v : z) v /= sum;
  return most + std::log(sum);
}

} // namespace detail

/// The mean of -log softmax(y)[label] over the voxels that count: y are logits. With `weights`, one for each class, the
/// mean is weighted: sum of w[label] * (...) over the sum of w[label]. If no voxel counts, value and gradient are 0.
struct cross_entropy {
  std::vector<double> weights = {}; ///< empty: every class counts the same
  std::optional<long> ignore = {};  ///< voxels with this label do not count

  template <class T, class U> void check(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) const {
    detail::check_labels(y, t);
    TESSERA_REQUIRE(weights.empty() || long(weights.size()) == y.extents()[1], "cross_entropy: ", weights.size(),
                    " weights for ", y.extents()[1], " classes; give one for each class");
    for (const double w : weights)
      TESSERA_REQUIRE(w >= 0, "cross_entropy: a class has weight ", w, "; weights must not be negative");
  }
  template <class T, class U>
  std::optional<LabelFault> fault(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) const {
    return detail::first_bad_label(y, t, ignore);
  }
  static long sums(const Extents<5>&) { return 2; } // of w * loss, and of w
  bool waits() const { return ignore || !weights.empty(); }
  static double value(std::span<const double> s, const Extents<5>&) { return s[1] > 0 ? s[0] / s[1] : 0; }
  template <class T, class U>
  void measure(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<double> s) const {
    detail::for_each_labelled(y, t, ignore, [&](std::span<double> z, std::size_t label, const Index<5>&) {
      const double w = weight(label), logit = z[label];
      s[0] += w * (detail::softmax(z) - logit);
      s[1] += w;
    });
  }
  template <class T, class U>
  void gradient(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<const double> s, double factor,
                const View<T, 5>& dy) const {
    const double divisor = waits() ? s[1] : double(product(t.extents()));
    if (!(divisor > 0)) return;
    detail::for_each_labelled(y, t, ignore, [&](std::span<double> z, std::size_t label, const Index<5>& i) {
      detail::softmax(z);
      z[label] -= 1;
      const double scale = factor * weight(label) / divisor;
      T* at = &dy[i];
      for (std::size_t c = 0; c < z.size(); ++c, at += dy.strides[1]) *at = static_cast<T>(double(*at) + scale * z[c]);
    });
  }

private:
  double weight(std::size_t label) const { return weights.empty() ? 1 : weights[label]; }
};

/// What turns the prediction into the probabilities of the classes.
enum class Scores : unsigned char {
  logits,       ///< softmax over the channels
  probabilities ///< nothing: they are probabilities
};
/// Does class 0, the background, count as one of the classes?
enum class Background : unsigned char { counts, left_out };

/// 1 - the mean over the classes of (2 I + smooth) / (S + smooth), the soft Dice coefficient: I is the sum of the
/// probability of the class over the voxels with its label, S the sum of its probability over all voxels plus the
/// number of voxels with its label; both over the whole batch, of all ranks. A class that is nowhere has coefficient 1.
struct dice {
  double smooth = 1e-5;
  std::optional<long> ignore = {}; ///< voxels with this label do not count
  Background background = Background::counts;
  Scores scores = Scores::logits;

  template <class T, class U> void check(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) const {
    detail::check_labels(y, t);
    TESSERA_REQUIRE(smooth >= 0, "dice: smooth = ", smooth, "; it must not be negative");
    TESSERA_REQUIRE(y.extents()[1] > first(), "dice: a prediction of ", y.extents()[1],
                    " classes without the background leaves none; count the background, or give two classes");
  }
  template <class T, class U>
  std::optional<LabelFault> fault(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t) const {
    return detail::first_bad_label(y, t, ignore);
  }
  static long sums(const Extents<5>& e) { return 2 * e[1]; } // I and S of each class
  static bool waits() { return true; }
  double value(std::span<const double> s, const Extents<5>&) const {
    double sum = 0;
    for (auto c = std::size_t(first()); c < s.size() / 2; ++c) sum += coefficient(s[2 * c], s[2 * c + 1]);
    return 1 - sum / double(s.size() / 2 - std::size_t(first()));
  }
  template <class T, class U>
  void measure(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<double> s) const {
    detail::for_each_labelled(y, t, ignore, [&](std::span<double> p, std::size_t label, const Index<5>&) {
      if (scores == Scores::logits) detail::softmax(p);
      for (std::size_t c = 0; c < p.size(); ++c) s[2 * c + 1] += p[c];
      s[2 * label] += p[label];
      s[2 * label + 1] += 1;
    });
  }
  template <class T, class U>
  void gradient(const Tensor<T, 5, host>& y, const Tensor<U, 5, host>& t, std::span<const double> s, double factor,
                const View<T, 5>& dy) const {
    const std::size_t classes = s.size() / 2, from = std::size_t(first());
    // d loss / d p of a voxel whose label is another class, and what is added if it is this one.
    std::vector<double> other(classes), own(classes), d(classes);
    for (std::size_t c = from; c < classes; ++c) {
      const double below = s[2 * c + 1] + smooth;
      if (!(below > 0)) continue;
      const double each = -factor / double(classes - from);
      other[c] = -each * coefficient(s[2 * c], s[2 * c + 1]) / below;
      own[c] = 2 * each / below;
    }
    detail::for_each_labelled(y, t, ignore, [&](std::span<double> p, std::size_t label, const Index<5>& i) {
      d = other;
      d[label] += own[label];
      if (scores == Scores::logits) {
        detail::softmax(p);
        double mean = 0;
        for (std::size_t c = 0; c < classes; ++c) mean += p[c] * d[c];
        for (std::size_t c = 0; c < classes; ++c) d[c] = p[c] * (d[c] - mean);
      }
      T* at = &dy[i];
      for (std::size_t c = 0; c < classes; ++c, at += dy.strides[1]) *at = static_cast<T>(double(*at) + d[c]);
    });
  }

private:
  long first() const { return background == Background::counts ? 0 : 1; }
  double coefficient(double both, double sizes) const {
    return sizes + smooth > 0 ? (2 * both + smooth) / (sizes + smooth) : 1;
  }
};

} // namespace tessera
