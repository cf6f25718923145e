// Networks on the emulated device: equal to the plain loops on the host on every grid, and wrong as soon as streams do
// not wait for each other.
#include "networks.hpp"

#include <tessera/net/graph.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// Every kind of layer that the library has, on extents that divide by nothing.
NetworkDescription all_kinds() {
  return describe({conv(3, window(3).same()).with_bias(0.1),
                   leaky_relu(0.1),
                   batch_norm(),
                   conv_transpose(4, window(3).pad(1)).with_bias(0.2),
                   elu(0.5),
                   gelu(),
                   group_norm(2),
                   silu(),
                   softmax(),
                   average_pool(window(3).pad(1).strided(2)),
                   conv(4, window(2, 3, 3).pad(d, 0, 1).pad(h, 1, 1).pad(w, 1, 1).periodic()),
                   max_pool(window(2).strided(2, 1, 2)),
                   batch_norm({.epsilon = 1e-3}),
                   relu(),
                   to(place(w, h, d, n)),
                   conv(3, window(3).dilated(2).pad(2)).initialised(Init::he_normal),
                   to(place(n, rep, rep, n)),
                   flatten(),
                   dropout(0.7),
                   dense(5).with_bias(0.2),
                   leaky_relu(0.3),
                   to(whole_samples),
                   dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}
#if defined(__SANITIZE_THREAD__) // it would report the races that a test looks for
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Joins, outputs with several readers, and layers that are computed again on the way back.
constexpr auto joined = seq(skip_concat(seq(conv(3), relu(), residual(seq(conv(3), batch_norm(), leaky_relu(0.3))))),
                            recompute(seq(conv(4).with_bias(0.1), batch_norm(), relu(), conv(4))), average_pool(2),
                            residual(seq(conv(5), relu(), dropout(0.8)), conv(5, window(1))));
NetworkDescription joins() { return describe(joined, {.c = 2, .d = 8, .h = 6, .w = 5}, over_ndhw); }

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

TEST_CASE("emulated device: networks that are not chains, and recomputation, equal the host's on the same grid") {
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle host_net(grid, joins(), {.batch = 2});
      OnDevice net(grid, joins(), {.batch = 2});
      const Passed want = pass(host_net, 2, Mode::training, 3), got = pass(net, 2, Mode::training, 3);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
    });
  });
}

TEST_CASE("emulated device: smaller batches share the memory and nothing is allocated after the first step of each") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    OnDevice net(grid, all_kinds(), {.batch = 3, .seed = 3});
    for (const long samples : {3L, 1L, 2L, 3L}) {
      Oracle own(grid, all_kinds(), {.batch = samples, .seed = 3});
      const Passed want = pass(own, samples), got = pass(net, samples);
      CHECK(distance(got.y, want.y) < 1e-10);
      CHECK(distance(got.gradients, want.gradients) < 1e-10);
    }
    auto x = net.make_input();
    const auto step = [&] {
      net.forward(x, Mode::training);
      net.backward(x);
      net.for_each_gradient([](std::size_t, std::size_t) {});
    };
    step();
    c.barrier(); // the count is of all thread-ranks
    const auto before = allocation_counter().allocations.load();
    c.barrier();
    step(), step();
    c.barrier();
    CHECK(allocation_counter().allocations.load() == before);
    c.barrier();
  });
}

TEST_CASE("emulated device: without the waits between streams a network is wrong, so its tests would notice" *
          doctest::skip(sanitized)) {
  const NetworkOptions options{.batch = 2, .seed = 4};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), convolutions(), options);
  const Passed want = pass(one, 2);
  EmulationSettings& unruly = emulation();
  const int delay = unruly.delay_one_in, longest = unruly.longest_delay_us;
  unruly.delay_one_in = 2, unruly.longest_delay_us = 400;
  on_ranks({2}, [&](const Communicator& c) {
    const auto wrong_of_10 = [&] {
      OnDevice net(AnyGrid(c, {1, 2, 1, 1}), convolutions(), options);
      int wrong = 0;
      for (int k = 0; k < 10; ++k) {
        const Passed got = pass(net, 2);
        wrong += !(distance(got.y, want.y) < 1e-12 && distance(got.gradients, want.gradients) < 1e-12);
      }
      return wrong;
    };
    CHECK(wrong_of_10() == 0);
    c.barrier();
    unruly.waits_count = false;
    CHECK(c.all_reduce(wrong_of_10()) > 0);
    unruly.waits_count = true;
    c.barrier();
  });
  unruly.delay_one_in = delay, unruly.longest_delay_us = longest;
}

TEST_CASE("emulated device: a network that does not fit into the device's memory is refused before it is made") {
  const auto all = emulation().memory.load(), held = allocation_counter().bytes_held.load();
  emulation().memory = 100'000;
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    const std::string said = all_throw<usage_error>(c, [&] { OnDevice(grid, all_kinds(), {.batch = 8}); });
    CHECK(said.find(", emulated device need ") != said.npos);
    CHECK_NOTHROW(AnyNetwork<double, reference>(grid, all_kinds(), {.batch = 8})); // the host has enough
  });
  emulation().memory = all;
  CHECK(allocation_counter().bytes_held.load() == held);
}

namespace {

/// y = x + a * (x of the cell before it in depth), by loops of the host.
struct Echo {
  constexpr Stencil stencil() const { return window(2, 1, 1).pad(d, 1, 0); }
  constexpr Extents<5> parameters(int) const { return {{1, 1, 1, 1, 1}}; }
  template <class T> void forward(const Local&, View<const T, 5> x, View<const T, 5> a, View<T, 5> y) const {
    for_each_index(whole(y.extents), [&](Index<5> q) {
      T& to = y[q];
      const T before = x[q];
      ++q[2];
      to = x[q] + a(0, 0, 0, 0, 0) * before;
    });
  }
  template <class T>
  void backward(const Local&, View<const T, 5> x, View<const T, 5> a, View<const T, 5> dy, View<T, 5> dx,
                View<T, 5> da) const {
    for_each_index(whole(dy.extents), [&](Index<5> q) {
      const T g = dy[q];
      da(0, 0, 0, 0, 0) += g * x[q];
      dx[q] += g * a(0, 0, 0, 0, 0);
      ++q[2];
      dx[q] += g;
    });
  }
};
struct Echoes {
  static constexpr Input input{.c = 2, .d = 6, .h = 5, .w = 4};
  static constexpr Layout layout = over_ndhw;
  static constexpr auto net = seq(Echo{}, conv(2), relu(), Echo{}, average_pool(2));
};

} // namespace

TEST_CASE("emulated device: a layer of the user's own runs on the host and finds its blocks there") {
  Network<Echoes, double, reference> one(Grid<4>(Communicator(), {1, 1, 1, 1}), {.batch = 2});
  const Passed want = pass(one, 2);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    for (const auto& f : factorisations(c.size(), 4)) {
      Network<Echoes, double, emulated> net(Grid<4>(c, {f[0], f[1], f[2], f[3]}), {.batch = 2});
      const Passed got = pass(net, 2);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-12, net.grid().shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-12, net.grid().shape().str());
    }
  });
}
