// layer/normalise.hpp: NormLayer: batch, group, instance and layer normalisation, exact on any grid.
//
// Statistics are taken per channel of the whole batch (batch_norm), or per sample and group of channels (the others). A
// rank finds the means of its part and the squared deviations from them; parts are merged by the formula of Chan, Golub
// and LeVeque: with n values, mean m and squared deviations M of each part,
//   mean = sum(n m) / N,   deviations = sum(M) + sum(n (m - mean)^2).
// In float one all-reduce carries sum(n m) and sum(M + n m^2): in double, the second less N mean^2 is exact to 2^-53 of
// mean^2, which is less than what rounding the values themselves to float does to their variance. In double, where that
// would show, a second all-reduce carries the deviations from the common mean.
//
// As PyTorch does, the biased variance normalises and the unbiased one goes into the running statistics of batch_norm,
// with which inference works. With narrower statistics these follow the mean over all parts, so they are the same on
// every rank. With N values, s = 1 / sqrt(variance + epsilon), and sums over what shares the statistics:
//   dx = s (gamma dy - sum(gamma dy) / N - xhat sum(gamma dy xhat) / N),  dgamma = sum(dy xhat),  dbeta = sum(dy).
//
// Numbers per channel are combined on the host; a backend takes and gives them there.
//
// All-reduces per step, for ranks that share statistics: forward 1 (2 in double), backward 1. Batch statistics of less
// than all ranks: 1 more forward, for the running ones, hidden behind the normalisation. Inference of batch_norm: none.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: NormLayer<float, cpu> l(group_norm(4), {}, grid, x.map());  l.forward(pass, x, y);
#pragma once

#include <cmath>
#include <map>
#include <tessera/layer/layer.hpp>
#include <tessera/space/host_access.hpp>

namespace tessera {

/// The grid axes along which ranks share statistics, of those that split a tensor laid out as `l`.
constexpr unsigned scope_axes(const Scope& s, const Layout& l) {
  unsigned within_sample = 0;
  for (int a = 0; a < l.axes; ++a)
    if (l[a].splits() && !l[a].splits(Dim::n)) within_sample |= 1U << a;
  const unsigned all = l.mask(Placement::Kind::split);
  switch (s.kind) {
  case Scope::Kind::all: return all;
  case Scope::Kind::piece: return 0;
  case Scope::Kind::sample: return within_sample;
  case Scope::Kind::axes: return s.axes & all;
  }
  return all;
}

/// The least number of cells (samples times voxels) that a set of ranks joined along the axes of `mask` holds, and that
/// of the set of `rank`. Sets that hold nothing do not count.
struct SharedCells {
  double least = 0, mine = 0;
};
inline SharedCells shared_cells(const Map<5>& map, unsigned mask, int rank) {
  const auto set_of = [&](int r) {
    auto at = map.grid().coords(r);
    for (int a = 0; a < map.layout().axes; ++a)
      if (mask >> a & 1U) at[std::size_t(a)] = 0;
    return at;
  };
  std::map<decltype(set_of(0)), double> sets;
  for (int r = 0; r < map.grid().ranks(); ++r) {
    Box<5> cells = map.box(r);
    cells.lo[1] = 0, cells.hi[1] = 1;
    sets[set_of(r)] += double(cells.volume());
  }
  SharedCells s{0, sets[set_of(rank)]};
  for (const auto& [set, count] : sets)
    if (count > 0 && (s.least == 0 || count < s.least)) s.least = count;
  return s;
}

template <class T, class Backend> class NormLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  /// `fused` is the activation that follows, computed with the normalisation.
  NormLayer(const LayerSpec& spec, InputActivation fused, const AnyGrid& grid, const Map<5>& map)
      : spec_(spec), fused_(fused), box_(map.box(grid.rank())), of_batch_(spec.kind == LayerKind::batch_norm),
        channels_(map.extents()[1]), sets_(of_batch_ ? 1 : box_.extent(0)),
        groups_(of_batch_ ? channels_ : groups_of(spec, channels_)), width_(channels_ / std::max(1L, groups_)) {
    const unsigned mask = scope_axes(of_batch_ ? spec.scope : ranks_of_sample, map.layout());
    ranks_ = grid.over(mask);
    const unsigned all = map.layout().mask(Placement::Kind::split);
    if (of_batch_ && mask != all) {
      everyone_ = grid.over(all);
      narrow_ = everyone_.size() > ranks_.size();
    }
    const Extents<5>& e = map.extents();
    const SharedCells cells = shared_cells(map, mask, grid.rank());
    least_ = cells.least;
    count_ = of_batch_ ? cells.mine : double(width_ * e[2] * e[3] * e[4]);
    all_count_ = double(e[0] * e[2] * e[3] * e[4]);
    own_count_ = box_.empty() ? 0 : double(box_.volume()) / double(sets_ * groups_);
    const auto statistics = std::size_t(sets_ * groups_), rows = std::size_t(sets_ * channels_);
    mean_.resize(statistics), inverse_.resize(statistics), deviations_.resize(statistics);
    parts_.resize(std::max(2 * statistics, std::size_t(2 * channels_)));
    sums_.resize(2 * rows);
    gamma_.assign(std::size_t(channels_), T{1}), beta_.assign(std::size_t(channels_), T{});
    row_.resize(slots * rows);
    gradients_.resize(std::size_t(2 * channels_)), held_.resize(std::size_t(2 * channels_));
  }

  Box<5> need() const override { return box_; }
  void activation_is_absorbed() override { absorbed_ = true; }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    const View<const T, 5> in = std::as_const(x).view(box_);
    measured_ = !of_batch_ || pass.mode == Mode::training;
    if (!pass.weights.empty()) fetch(pass.weights, gamma_), fetch(pass.biases, beta_);
    Request running;
    if (measured_) {
      TESSERA_REQUIRE(
          !of_batch_ || least_ != 1, "batch_norm (layer ", pass.layer,
          "): a batch of one value per channel has no variance; use more samples per step, statistics of more "
          "ranks, or normalise before the volume has shrunk to one cell");
      measure(in);
      for (std::size_t g = 0; g < mean_.size(); ++g)
        inverse_[g] = 1 / std::sqrt((count_ > 0 ? deviations_[g] / count_ : 0.0) + spec_.epsilon);
      if (of_batch_ && !pass.again) running = gather_running();
    } else
      take_running(pass.state);
    for_each_row([&](std::size_t row, std::size_t c, std::size_t g) {
      const double scale = static_cast<double>(gamma_[c]) * inverse_[g];
      const T centre = static_cast<T>(mean_[g]);
      slot(mean)[row] = centre;
      slot(factor)[row] = static_cast<T>(scale);
      slot(shift)[row] =
          static_cast<T>(static_cast<double>(beta_[c]) - scale * (mean_[g] - static_cast<double>(centre)));
    });
    for (long k = 0; k < sets_; ++k)
      Backend::normalise(set(in, k), of_set(mean, k), of_set(factor, k), of_set(shift, k), fused_.kind, fused_.slope,
                         set(y.view(box_), k));
    pass.poke();
    running.wait();
    if (measured_ && of_batch_ && !pass.again) follow(pass.state);
  }

  void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) override {
    if (fused_.kind != kernel::Activation::none && !absorbed_)
      Backend::activation_backward(fused_.kind, fused_.slope, y.view(), dy.view());
    const View<const T, 5> in = std::as_const(x).view(box_), g = std::as_const(dy).view(box_);
    for (long k = 0; k < sets_; ++k)
      Backend::normalisation_sums(set(in, k), set(g, k), of_set(mean, k), sums_.data() + 2 * k * channels_);
    // Per set: sums of dy, then of dy (x - mean); the mean was rounded, so the second gets the rest.
    std::vector<double>& merged = parts_;
    std::fill(merged.begin(), merged.end(), 0.0);
    std::fill(gradients_.begin(), gradients_.end(), 0.0);
    for_each_row([&](std::size_t row, std::size_t c, std::size_t group) {
      const std::size_t at = 2 * (row - c) + c;
      const double of_dy = sums_[at];
      const double of_x = sums_[at + std::size_t(channels_)] - rest(row, group) * of_dy;
      gradients_[c] += of_x * inverse_[group];
      gradients_[std::size_t(channels_) + c] += of_dy;
      merged[group] += static_cast<double>(gamma_[c]) * of_dy;
      merged[mean_.size() + group] += static_cast<double>(gamma_[c]) * of_x;
    });
    if (!pass.weight_gradients.empty()) { // what this rank adds; the network sums it
      store(gradients_.data(), pass.weight_gradients);
      store(gradients_.data() + channels_, pass.bias_gradients);
      pass.gradients_ready();
    }
    if (!dx) return;
    if (measured_)
      sum_over_ranks(2 * mean_.size());
    else
      std::fill(merged.begin(), merged.end(), 0.0); // running statistics are constants
    for_each_row([&](std::size_t row, std::size_t, std::size_t group) {
      const double s = inverse_[group], n = std::max(1.0, count_);
      const double of_x = -s * s * s * merged[mean_.size() + group] / n;
      slot(slope)[row] = static_cast<T>(of_x);
      slot(constant)[row] = static_cast<T>(-s * merged[group] / n - of_x * rest(row, group));
    });
    for (long k = 0; k < sets_; ++k)
      Backend::normalisation_backward(set(in, k), set(g, k), of_set(mean, k), of_set(factor, k), of_set(slope, k),
                                      of_set(constant, k), set(dx->view(box_), k));
    pass.poke();
  }

private:
  /// Coefficients of each channel of each set, as the kernels take them.
  enum Slot : std::size_t { mean, factor, shift, slope, constant, slots };

  /// What shares statistics in one kernel call: the whole batch, or a sample.
  template <class U> View<U, 5> set(const View<U, 5>& v, long k) const {
    if (of_batch_) return v;
    Box<5> one = whole(v.extents);
    one.lo[0] = k, one.hi[0] = k + 1;
    return v.box(one);
  }
  /// f(row, channel, group) for every channel of every set.
  template <class F> void for_each_row(const F& f) const {
    for (long k = 0; k < sets_; ++k)
      for (long c = 0; c < channels_; ++c)
        f(std::size_t(k * channels_ + c), std::size_t(c), std::size_t(k * groups_ + c / width_));
  }
  T* slot(Slot s) { return row_.data() + std::size_t(s) * std::size_t(sets_ * channels_); }
  const T* of_set(Slot s, long k) { return slot(s) + k * channels_; }
  /// The mean less its value in T.
  double rest(std::size_t row, std::size_t group) { return mean_[group] - static_cast<double>(slot(mean)[row]); }

  // Parameters, their gradients and running statistics lie in the memory of the network: small copies.
  static void fetch(std::span<const T> from, std::vector<T>& to) {
    read_back<Space>(to.data(), from.data(), from.size());
  }
  void store(const double* from, std::span<T> to) {
    for (std::size_t i = 0; i < to.size(); ++i) held_[i] = static_cast<T>(from[i]);
    write_from_host<Space>(to.data(), std::as_const(held_).data(), to.size());
  }

  /// mean_ and deviations_ of all that shares them.
  void measure(const View<const T, 5>& in) {
    for (long k = 0; k < sets_; ++k) Backend::channel_sums(set(in, k), sums_.data() + k * channels_);
    std::fill(mean_.begin(), mean_.end(), 0.0), std::fill(deviations_.begin(), deviations_.end(), 0.0);
    for_each_row([&](std::size_t row, std::size_t, std::size_t g) { mean_[g] += sums_[row]; });
    for (double& m : mean_) m = own_count_ > 0 ? m / own_count_ : 0.0;
    for_each_row([&](std::size_t row, std::size_t, std::size_t g) { slot(mean)[row] = static_cast<T>(mean_[g]); });
    for (long k = 0; k < sets_; ++k)
      Backend::channel_squares(set(in, k), of_set(mean, k), sums_.data() + k * channels_);
    for_each_row([&](std::size_t row, std::size_t, std::size_t g) {
      const double off = rest(row, g);
      deviations_[g] += sums_[row] - own_count_ / double(width_) * off * off;
    });
    if (ranks_.size() > 1) merge();
    for (double& d : deviations_) d = std::max(0.0, d);
  }
  void merge() {
    const std::size_t many = mean_.size();
    constexpr bool in_one = sizeof(T) < sizeof(double);
    for (std::size_t g = 0; g < many; ++g) {
      parts_[g] = own_count_ * mean_[g];
      parts_[many + g] = deviations_[g] + own_count_ * mean_[g] * mean_[g];
    }
    sum_over_ranks(in_one ? 2 * many : many);
    for (std::size_t g = 0; g < many; ++g) {
      const double common = count_ > 0 ? parts_[g] / count_ : 0.0, off = mean_[g] - common;
      mean_[g] = common;
      deviations_[g] = in_one ? parts_[many + g] - count_ * common * common : deviations_[g] + own_count_ * off * off;
    }
    if (in_one) return;
    std::copy(deviations_.begin(), deviations_.end(), parts_.begin());
    sum_over_ranks(many);
    std::copy_n(parts_.begin(), many, deviations_.begin());
  }
  void sum_over_ranks(std::size_t count) {
    if (ranks_.size() > 1) ranks_.iall_reduce(std::span<double>(parts_.data(), count)).wait();
  }

  /// Mean and unbiased variance for the running statistics go to parts_, from all ranks where they have several.
  Request gather_running() {
    const auto channels = std::size_t(channels_);
    for (std::size_t c = 0; c < channels; ++c) {
      parts_[c] = mean_[c];
      parts_[channels + c] = count_ > 1 ? deviations_[c] / (count_ - 1) : 0.0;
    }
    if (!narrow_) return {};
    for (std::size_t c = 0; c < 2 * channels; ++c) parts_[c] *= own_count_ / all_count_;
    return everyone_.iall_reduce(std::span<double>(parts_.data(), 2 * channels));
  }
  void follow(std::span<T> state) {
    if (all_count_ == 0) return;
    fetch(state, held_);
    for (std::size_t i = 0; i < state.size(); ++i)
      held_[i] = static_cast<T>((1 - spec_.momentum) * static_cast<double>(held_[i]) + spec_.momentum * parts_[i]);
    write_from_host<Space>(state.data(), std::as_const(held_).data(), state.size());
  }
  void take_running(std::span<const T> state) {
    fetch(state, held_);
    for (std::size_t c = 0; c < mean_.size(); ++c) {
      mean_[c] = static_cast<double>(held_[c]);
      inverse_[c] = 1 / std::sqrt(static_cast<double>(held_[mean_.size() + c]) + spec_.epsilon);
    }
  }

  LayerSpec spec_;
  InputActivation fused_;
  Box<5> box_;
  bool of_batch_;
  long channels_;
  long sets_, groups_;    ///< sets of cells with statistics of their own, and groups of channels in each
  long width_;            ///< channels of a group
  Communicator ranks_;    ///< they share statistics
  Communicator everyone_; ///< they share running statistics
  bool narrow_ = false;   ///< statistics of less than all ranks
  double count_ = 0, own_count_ = 0, all_count_ = 0; ///< values per statistic: shared, of this rank; cells of the batch
  double least_ = 0;                                 ///< the least number of cells that any ranks share
  std::vector<double> mean_, inverse_, deviations_, sums_, parts_, gradients_;
  std::vector<T> gamma_, beta_, row_, held_;
  bool absorbed_ = false, measured_ = false;
};

} // namespace tessera
