// The trainer: the same steps on every grid, batches that do not divide, the rate of the schedule, evaluation.
#include "net/networks.hpp"

#include <tessera/train/trainer.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

NetworkDescription small_network() {
  return describe({conv(3).with_bias(), leaky_relu(0.1), average_pool(window(3).pad(1).strided(2)), conv(2), relu(),
                   to(whole_samples), flatten(), dropout(0.8), dense(4), leaky_relu(0.01), dense(2)},
                  {.c = 2, .d = 6, .h = 5, .w = 4}, over_ndhw);
}

/// Four epochs of 7 samples in batches of 3, 3 and 1.
std::vector<double> losses(const AnyGrid& grid) {
  Oracle net(grid, small_network(), {.batch = 3, .seed = 2});
  Trainer trainer(net, adam{.rate = 1e-2}, mean_squared_error{}, cosine(12).warm_up(2));
  std::vector<double> all;
  for (int epoch = 0; epoch < 4; ++epoch)
    for (long first = 0; first < 7; first += 3) {
      const long samples = std::min(3L, 7 - first);
      auto x = net.make_input(samples), t = net.make_target(samples);
      fill(x, [&](Index<5> i) { return i[0] += first, wave(i); });
      fill(t, [&](const Index<5>& i) { return 0.1 * double(i[0] + first) - 0.2 * double(i[1]); });
      all.push_back(trainer.step(x, t));
      all.push_back(trainer.evaluate(x, t));
    }
  CHECK(trainer.steps() == 12);
  return all;
}

} // namespace

TEST_CASE("trainer: the same losses on every grid, with a last batch that leaves ranks without samples") {
  const std::vector<double> want = losses(AnyGrid(Communicator(), {1, 1, 1, 1}));
  CHECK(want.back() < want[5]); // the last batch of the first epoch and of the last, both evaluated
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      CHECK_MESSAGE(distance(losses(grid), want) < 1e-9, grid.shape().str());
    });
  });
}

TEST_CASE("trainer: one step of sgd is the gradient times rate and factor; evaluation changes nothing") {
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle net(grid, small_network(), {.batch = 2});
    Trainer trainer(net, sgd{.rate = 0.5}, mean_squared_error{}, linear_decay(10, 0.5).warm_up(4));
    auto x = net.make_input(), t = net.make_target();
    fill(x, [](const Index<5>& i) { return wave(i); });
    const std::vector<double> before(net.parameters().begin(), net.parameters().end());
    const double evaluated = trainer.evaluate(x, t);
    CHECK(std::ranges::equal(net.parameters(), before));
    CHECK(trainer.evaluate(x, t) == evaluated);
    CHECK(trainer.steps() == 0);
    trainer.step(x, t);
    std::vector<double> want = before;
    for (std::size_t i = 0; i < want.size(); ++i) want[i] -= 0.5 * 0.25 * net.gradients()[i]; // the first of 4 warm steps
    CHECK(distance(net.parameters(), want) < 1e-15);
  });
}
