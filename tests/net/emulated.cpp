// Networks on the emulated device: equal to the plain loops on the host on every grid, and wrong as soon as streams do
// not wait for each other.
#include "networks.hpp"

#include <cstring>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// Every kind of layer that the library has, on extents that divide by nothing.
NetworkDescription all_kinds() {
  return describe({conv(3, window(3).same()).with_bias(0.1), leaky_relu(0.1), batch_norm(),
                   average_pool(window(3).pad(1).strided(2)),
                   conv(4, window(2, 3, 3).pad(d, 0, 1).pad(h, 1, 1).pad(w, 1, 1).periodic()),
                   max_pool(window(2).strided(2, 1, 2)), batch_norm({.epsilon = 1e-3}), relu(), to(place(w, h, d, n)),
                   conv(3, window(3).dilated(2).pad(2)).initialised(Init::he_normal), to(place(n, rep, rep, n)),
                   flatten(), dropout(0.7), dense(5).with_bias(0.2), leaky_relu(0.3), to(whole_samples), dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}
NetworkDescription convolutions() {
  return describe(
      {conv(3).with_bias(0.1), relu(), max_pool(window(3).pad(1).strided(2)), conv(3), average_pool(2), conv(2)},
      {.c = 2, .d = 12, .h = 6, .w = 6}, over_ndhw);
}

} // namespace

TEST_CASE("emulated device: convolution, activation and pooling equal the host's on every grid") {
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), convolutions(), {.batch = 2, .seed = 4});
  const Passed want = pass(one, 2);
  on_ranks({1, 2, 3, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      OnDevice net(grid, convolutions(), {.batch = 2, .seed = 4});
      const Passed got = pass(net, 2);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-12, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-12, grid.shape().str());
    });
  });
}

TEST_CASE("emulated device: every kind of layer equals the host's on every grid") {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), all_kinds(), options);
  const Passed want = pass(one, 3, Mode::training, 5), inferred = pass(one, 3, Mode::inference);
  const std::vector<double> weights(one.parameters().begin(), one.parameters().end()),
      state(one.state().begin(), one.state().end());
  on_ranks({1, 2, 4, 6}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      OnDevice net(grid, all_kinds(), options);
      CHECK(read_back<emulated_device>(net.parameters()) == weights);
      const Passed got = pass(net, 3, Mode::training, 5);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
      CHECK(distance(read_back<emulated_device>(net.state()), state) < 1e-12);
      CHECK_MESSAGE(distance(pass(net, 3, Mode::inference).y, inferred.y) < 1e-10, grid.shape().str());
    });
  });
}
