// layer/normalise.hpp: BatchNormLayer, batch normalisation with the statistics of the whole batch on all ranks.
//
// Training: per channel the mean, then the sum of squared deviations from it, each added up over the ranks that hold
// pieces (never E[x^2] - E[x]^2), so that any grid normalises as one rank would. As PyTorch does, the biased variance
// normalises and the unbiased one goes into the running statistics. Inference takes those, and moves nothing.
//
// With N values per channel over all ranks and s = 1 / sqrt(variance + epsilon):
//   dx = gamma s (dy - sum(dy) / N - xhat sum(dy xhat) / N),  dgamma = sum(dy xhat),  dbeta = sum(dy).
//
// Numbers per channel are combined on the host, whatever the space of the tensors; a backend takes and gives them there.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: BatchNormLayer<float, cpu> l(batch_norm(), {}, grid, x.map());  l.forward(pass, x, y);
#pragma once

#include <cmath>
#include <tessera/layer/layer.hpp>

namespace tessera {

template <class T, class Backend> class BatchNormLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  /// `fused` is the activation that follows, computed with the normalisation.
  BatchNormLayer(const LayerSpec& spec, InputActivation fused, const AnyGrid& grid, const Map<5>& map)
      : fused_(fused), epsilon_(spec.epsilon), momentum_(spec.momentum), box_(map.box(grid.rank())),
        ranks_(grid.over(map.layout().mask(Placement::Kind::split))), channels_(map.extents()[1]),
        count_(double(product(map.extents())) / double(std::max(1L, channels_))), sums_(std::size_t(2 * channels_)),
        mean_(std::size_t(channels_)), inverse_(mean_), scale_(mean_), of_x_(mean_), constant_(mean_) {}

  Box<5> need() const override { return box_; }
  void activation_is_absorbed() override { absorbed_ = true; }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    const View<const T, 5> in = std::as_const(x).view(box_);
    const auto gamma = on_host<Space>(pass.weights), beta = on_host<Space>(pass.biases);
    const auto state = on_host<Space>(pass.state);
    const std::span<T> running_mean = state.span().first(mean_.size()),
                       running_variance = state.span().subspan(mean_.size());
    if (pass.mode == Mode::training) {
      TESSERA_REQUIRE(count_ > 1, "batch_norm (layer ", pass.layer,
                      "): a batch of one value per channel has no variance; "
                      "use more samples per step, or normalise before the volume has shrunk to one cell");
      Backend::channel_sums(in, sums_.data());
      sum_over_ranks(channels_);
      for (std::size_t c = 0; c < mean_.size(); ++c) mean_[c] = static_cast<T>(sums_[c] / count_);
      Backend::channel_squares(in, mean_.data(), sums_.data());
      sum_over_ranks(channels_);
      for (std::size_t c = 0; c < mean_.size(); ++c) {
        inverse_[c] = static_cast<T>(1 / std::sqrt(sums_[c] / count_ + epsilon_));
        const auto follow = [&](T& running, double now) {
          running = static_cast<T>((1 - momentum_) * static_cast<double>(running) + momentum_ * now);
        };
        follow(running_mean[c], static_cast<double>(mean_[c]));
        follow(running_variance[c], sums_[c] / (count_ - 1));
      }
      state.store();
    } else
      for (std::size_t c = 0; c < mean_.size(); ++c) {
        mean_[c] = running_mean[c];
        inverse_[c] = static_cast<T>(1 / std::sqrt(static_cast<double>(running_variance[c]) + epsilon_));
      }
    for (std::size_t c = 0; c < mean_.size(); ++c) scale_[c] = gamma[c] * inverse_[c];
    trained_ = pass.mode == Mode::training;
    Backend::normalise(in, mean_.data(), scale_.data(), beta.data(), fused_.kind, fused_.slope, y.view(box_));
    pass.poke();
  }

  void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) override {
    if (fused_.kind != kernel::Activation::none && !absorbed_)
      Backend::activation_backward(fused_.kind, fused_.slope, y.view(), dy.view());
    const View<const T, 5> in = std::as_const(x).view(box_), g = std::as_const(dy).view(box_);
    Backend::normalisation_sums(in, g, mean_.data(), sums_.data());
    const double* const with_x = sums_.data() + channels_; // sums of dy (x - mean)
    const auto of_gamma = on_host<Space>(pass.weight_gradients), of_beta = on_host<Space>(pass.bias_gradients);
    for (std::size_t c = 0; c < mean_.size(); ++c) {
      of_gamma[c] = static_cast<T>(with_x[c] * static_cast<double>(inverse_[c]));
      of_beta[c] = static_cast<T>(sums_[c]);
    }
    of_gamma.store(), of_beta.store();
    pass.gradients_ready(); // what this rank adds; the network sums it
    if (!dx) return;
    if (trained_)
      sum_over_ranks(2 * channels_);
    else
      std::fill(sums_.begin(), sums_.end(), 0.0); // running statistics are constants
    for (std::size_t c = 0; c < mean_.size(); ++c) {
      const double s = static_cast<double>(inverse_[c]);
      const double scale = static_cast<double>(scale_[c]);
      of_x_[c] = static_cast<T>(-scale * s * s * with_x[c] / count_);
      constant_[c] = static_cast<T>(-scale * sums_[c] / count_);
    }
    Backend::normalisation_backward(in, g, mean_.data(), scale_.data(), of_x_.data(), constant_.data(), dx->view(box_));
    pass.poke();
  }

private:
  void sum_over_ranks(long count) {
    if (ranks_.size() > 1) ranks_.iall_reduce(std::span<double>(sums_.data(), std::size_t(count))).wait();
  }

  InputActivation fused_;
  double epsilon_, momentum_;
  Box<5> box_;
  Communicator ranks_;
  long channels_;
  double count_; ///< values per channel, over all ranks
  std::vector<double> sums_;
  std::vector<T> mean_, inverse_, scale_, of_x_,
      constant_; ///< scale = gamma * inverse; of dx: factors of x - mean and 1
  bool absorbed_ = false, trained_ = false;
};

} // namespace tessera
