// The plain cuda backend: a network on the GPU equals the plain loops on the host. Without a GPU, that is said by name.
#include "net/networks.hpp"

#include <tessera/backend/cuda_plain.hpp>
#include <tessera/train/trainer.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

NetworkDescription all_kinds() {
  return describe({conv(3, window(3).same()).with_bias(0.1), leaky_relu(0.1), batch_norm(),
                   average_pool(window(3).pad(1).strided(2)), conv(4, window(2, 3, 3).periodic()),
                   max_pool(window(2).strided(2, 1, 2)), relu(), to(place(w, h, d, n)), conv(3), to(whole_samples),
                   flatten(), dropout(0.7), dense(5).with_bias(0.2), leaky_relu(0.3), dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}
const bool there = cuda_device::devices() > 0;

} // namespace

TEST_CASE("without a GPU the number of devices is 0 and what needs one fails with the name of the call" *
          doctest::skip(there)) {
  CHECK_THROWS_AS(cuda_device::select(0), usage_error);
  CHECK_THROWS_WITH_AS(cuda_device::available_memory(), doctest::Contains("cudaMemGetInfo: "), backend_error);
  using Memory = Buffer<float, cuda_device>;
  CHECK_THROWS_WITH_AS(Memory(4), doctest::Contains("cuda"), backend_error);
}

TEST_CASE("on a GPU a network equals the plain loops, and its trainer learns the same" * doctest::skip(!there)) {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), all_kinds(), options);
  const Passed want = pass(one, 3, Mode::training, 5);
  const auto losses = [](auto& net) {
    Trainer trainer(net, adam{.rate = 1e-2}, mean_squared_error{});
    auto x = net.make_input(), t = net.make_target();
    fill(x, [](const Index<5>& i) { return wave(i); });
    fill(t, [](const Index<5>& i) { return 0.1 * double(i[0]) - 0.2 * double(i[1]); });
    std::vector<double> all;
    for (int step = 0; step < 5; ++step) all.push_back(trainer.step(x, t));
    return all;
  };
  const std::vector<double> learnt = losses(one);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      AnyNetwork<double, cuda_plain> net(grid, all_kinds(), options);
      const Passed got = pass(net, 3, Mode::training, 5);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(losses(net), learnt) < 1e-9, grid.shape().str());
    });
  });
}
