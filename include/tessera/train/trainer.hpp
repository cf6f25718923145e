// train/trainer.hpp: Trainer, one training step: forward, loss, backward, update; the same result on every grid.
//
// Each layer's parameters are updated when their gradient has arrived, in the order the gradients were started, so the
// first updates overlap the last messages.
//
// May know: base to tensor, layer, net, train.
// Example: Trainer trainer(model, adam{.rate = 1e-3}, mean_squared_error{});  double loss = trainer.step(x, t);
#pragma once

#include <tessera/net/network.hpp>
#include <tessera/train/metrics.hpp>
#include <tessera/train/optimizer.hpp>
#include <tessera/train/schedule.hpp>

namespace tessera {

template <class Element, class Backend, class Optimizer, class Loss> class Trainer {
public:
  using T = Element;
  using Net = AnyNetwork<T, Backend>; ///< whatever the model: one trainer for all
  using Field = typename Net::Field;
  static constexpr std::size_t moment_count = Optimizer::moments.size();

  /// The model outlives the trainer.
  Trainer(Net& model, Optimizer optimizer, Loss loss, Schedule schedule = constant())
      : model_(&model), optimizer_(optimizer), loss_(loss), schedule_(schedule) {
    for (auto& m : moments_) m = Buffer<T, typename Backend::space>(model.parameters().size());
  }

  /// One step on the samples in x (n,c,d,h,w) with targets t, of make_target() or, for a loss of labels, make_labels();
  /// returns the loss before the update, the mean over all samples of all ranks. x keeps its values; its halo is
  /// exchanged. If a label is no class, every rank throws the same usage_error and nothing is updated.
  template <class U> double step(Field& x, const Tensor<U, 5, typename Field::space>& t) {
    const Field& y = model_->forward(x, Mode::training, steps_);
    LossSum loss = loss_and_gradient(loss_, y, t, &model_->output_gradient());
    model_->backward(x);
    const double value = loss.resolve(); // was under way before the gradients, so it is here before them
    const double factor = schedule_.factor(steps_);
    model_->for_each_gradient([&](std::size_t offset, std::size_t count) {
      std::array<T*, moment_count> m;
      for (std::size_t i = 0; i < moment_count; ++i) m[i] = moments_[i].data() + offset;
      optimizer_.template update<Backend, T>(model_->parameters().subspan(offset, count),
                                             std::span<const T>(model_->gradients()).subspan(offset, count), m, steps_,
                                             factor);
    });
    ++steps_;
    return value;
  }
  /// The loss without dropout and without an update.
  template <class U> double evaluate(Field& x, const Tensor<U, 5, typename Field::space>& t) {
    const Field& y = model_->forward(x, Mode::inference);
    return loss_and_gradient(loss_, y, t, nullptr).resolve();
  }

  Net& model() { return *model_; }
  const Net& model() const { return *model_; }
  /// Steps done so far.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t s) { steps_ = s; }
  const Optimizer& optimizer() const { return optimizer_; }
  std::span<T> moment(std::size_t i) { return {moments_[i].data(), moments_[i].size()}; }

private:
  Net* model_;
  Optimizer optimizer_;
  Loss loss_;
  Schedule schedule_;
  std::array<Buffer<T, typename Backend::space>, moment_count> moments_;
  std::uint64_t steps_ = 0;
};

} // namespace tessera
