// Training on the emulated device: the same losses as on the host, every optimizer and loss, and checkpoints that go
// from one to the other.
#include "io/files.hpp"
#include "net/networks.hpp"

#include <tessera/train/checkpoint.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

NetworkDescription network() {
  return describe({conv(3).with_bias(), batch_norm(), leaky_relu(0.1), average_pool(window(3).pad(1).strided(2)),
                   conv(2), relu(), to(whole_samples), flatten(), dropout(0.8), dense(4), leaky_relu(0.01), dense(2)},
                  {.c = 2, .d = 6, .h = 5, .w = 4}, over_ndhw);
}

/// A loss of the user's own that says nothing of devices.
struct fourth_power {
  static double value(double y, double t) { return std::pow(y - t, 4); }
  static double derivative(double y, double t) { return 4 * std::pow(y - t, 3); }
};

template <class Backend, class Optimizer, class Loss> struct Training {
  AnyNetwork<double, Backend> net;
  Trainer<double, Backend, Optimizer, Loss> trainer;
  explicit Training(const AnyGrid& grid)
      : net(grid, network(), {.batch = 3, .seed = 2}), trainer(net, Optimizer{.rate = 1e-2}, Loss{}, cosine(12)) {}
  /// The loss of each of `count` steps on batches of 3, 3, 1, 3, 3, 1, ..., and that of an evaluation after it.
  std::vector<double> steps(int count) {
    std::vector<double> all;
    for (int k = 0; k < count; ++k) {
      const long samples = trainer.steps() % 3 == 2 ? 1 : 3, first = long(trainer.steps()) % 3 * 3;
      auto x = net.make_input(samples), t = net.make_target(samples);
      fill(x, [&](Index<5> i) { return i[0] += first, wave(i); });
      fill(t, [&](const Index<5>& i) { return 0.1 * double(i[0] + first) - 0.2 * double(i[1]); });
      all.push_back(trainer.step(x, t));
      all.push_back(trainer.evaluate(x, t));
    }
    return all;
  }
};
AnyGrid alone() { return {Communicator(), {1, 1, 1, 1}}; }

template <class Optimizer, class Loss> void same_as_host(std::initializer_list<int> ranks) {
  Training<reference, Optimizer, Loss> host_training(alone());
  const std::vector<double> want = host_training.steps(7);
  on_ranks(ranks, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      CHECK_MESSAGE(distance(Training<emulated, Optimizer, Loss>(grid).steps(7), want) < 1e-9, grid.shape().str());
    });
  });
}

} // namespace

TEST_CASE("emulated device: adam on the squared error learns as on the host, on every grid") {
  same_as_host<adam, mean_squared_error>({1, 2, 4});
}
TEST_CASE("emulated device: sgd, the absolute error, and a loss that only the host can compute") {
  same_as_host<sgd, mean_absolute_error>({1, 2});
  same_as_host<adam, fourth_power>({1, 3});
}

TEST_CASE("emulated device: a checkpoint of the device resumes on the host and the other way round") {
  using There = Training<emulated, adam, mean_squared_error>;
  using Here = Training<reference, adam, mean_squared_error>;
  const std::vector<double> want = Here(alone()).steps(6);
  on_ranks({1, 2}, [&](const Communicator& c) {
    const Scratch dir(c);
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    There first(grid);
    CHECK(distance(first.steps(3), std::span(want).first(6)) < 1e-10);
    save(first.trainer, dir / "there.h5");
    Here second(grid);
    resume(second.trainer, dir / "there.h5");
    CHECK(std::ranges::equal(second.net.parameters(), read_back<emulated_device>(first.net.parameters())));
    CHECK(std::ranges::equal(second.net.state(), read_back<emulated_device>(first.net.state())));
    CHECK(std::ranges::equal(second.trainer.moment(1), read_back<emulated_device>(first.trainer.moment(1))));
    save(second.trainer, dir / "here.h5");
    There third(grid);
    resume(third.trainer, dir / "here.h5");
    CHECK(distance(third.steps(3), std::span(want).last(6)) < 1e-10);
  });
}

TEST_CASE("emulated device: a target of another layout is refused by all ranks") {
  on_ranks({2}, [](const Communicator& c) {
    Training<emulated, adam, mean_squared_error> t(AnyGrid(c, {1, 2, 1, 1}));
    auto x = t.net.make_input();
    Tensor<double, 5, emulated_device> wrong(t.net.grid(),
                                             Map<5>(place(d, n, n, n), t.net.grid().shape(), {{3, 2, 1, 1, 1}}));
    const std::string said = all_throw<usage_error>(c, [&] { t.trainer.step(x, wrong); });
    CHECK(said.find("make the target with make_target()") != said.npos);
  });
}
