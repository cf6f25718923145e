// Networks of every kind of layer: equal on any grid, their gradients against finite differences, the ways in which an
// activation is computed, batches of several sizes, and what is not computed.
#include "networks.hpp"

#include <tessera/train/loss.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// Every kind of layer that the library has, on extents that divide by nothing.
NetworkDescription all_kinds() {
  return describe({conv(3, window(3).same()).with_bias(0.1), leaky_relu(0.1),                   //
                   batch_norm(),                                                                //
                   average_pool(window(3).pad(1).strided(2).padded_with(Padding::reflect)),     //
                   conv(4, window(2, 3, 3).pad(d, 0, 1).pad(h, 1, 1).pad(w, 1, 1).periodic()),  //
                   max_pool(window(2).strided(2, 1, 2)), batch_norm({.epsilon = 1e-3}), relu(), //
                   to(place(w, h, d, n)),
                   conv(3, window(3).dilated(2).pad(2).padded_with(w, Padding::replicate, Padding::zeros))
                       .initialised(Init::he_normal),
                   to(place(n, rep, rep, n)), flatten(), dropout(0.7), dense(5).with_bias(0.2), leaky_relu(0.3),
                   to(whole_samples), dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}

} // namespace

TEST_CASE("network: output and parameter gradients are the same on every grid") {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), all_kinds(), options);
  const Passed want = pass(one, 3, Mode::training, 5);
  const std::vector<double> weights(one.parameters().begin(), one.parameters().end());
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle net(grid, all_kinds(), options);
      CHECK(std::ranges::equal(net.parameters(), weights));
      const Passed got = pass(net, 3, Mode::training, 5);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
    });
  });
}

TEST_CASE("network: parameter gradients equal finite differences on 1 and several ranks") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const auto ways = factorisations(c.size(), 4);
    for (const auto& sizes : {ways.front(), ways[ways.size() / 2]}) check_slopes(AnyGrid(c, sizes), all_kinds(), 2, 5);
  });
}

TEST_CASE("network: an activation that the pooling behind it absorbs, one that stays with the convolution, one alone") {
  const auto network = [](std::vector<LayerSpec> before_pool, const LayerSpec& pool) {
    std::vector<LayerSpec> all{conv(3).with_bias(0.1)};
    all.insert(all.end(), before_pool.begin(), before_pool.end());
    all.insert(all.end(), {pool, conv(2)});
    return describe(all, {.c = 2, .d = 6, .h = 5, .w = 7}, over_ndhw);
  };
  const Stencil s = window(3).pad(1).strided(2);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    for (const LayerSpec& act : {relu(), leaky_relu(0.2), elu(0.5), sigmoid(), tanh()})
      for (const LayerSpec& pool : {max_pool(s), average_pool(s), average_pool(s, PaddingCounts::no)}) {
        const AnyGrid grid(c, {1, c.size() > 2 ? 2 : c.size(), c.size() > 2 ? 2 : 1, 1});
        // dropout(1) changes nothing but stands between.
        Oracle absorbed(grid, network({act}, pool), {}), kept(grid, network({act, dropout(1)}, pool), {}),
            apart(grid, network({dropout(1), act}, pool), {});
        REQUIRE(absorbed.plan().steps()[0].fused.kind == act.activation);
        REQUIRE(kept.plan().steps()[0].fused.kind == act.activation);
        REQUIRE(apart.plan().steps()[0].fused.kind == kernel::Activation::none);
        const Passed want = pass(absorbed, 1);
        for (Oracle* net : {&kept, &apart}) {
          std::ranges::copy(std::as_const(absorbed).parameters(), net->parameters().begin());
          const Passed got = pass(*net, 1);
          CHECK(distance(got.y, want.y) < 1e-13);
          CHECK(distance(got.gradients, want.gradients) < 1e-13);
        }
      }
  });
}

namespace {
struct Executions {
  std::atomic<long> forward{0}, data{0}, weights{0};
};
Executions executions;

/// The reference backend, counting what its convolutions compute.
struct Counting : reference {
  template <class T> class Convolution : public reference::Convolution<T> {
    using Base = reference::Convolution<T>;

  public:
    using Base::Base;
    void forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
      ++executions.forward;
      Base::forward(x, w, bias, y);
    }
    void backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx) {
      ++executions.data;
      Base::backward_data(dy, w, dx);
    }
    void backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db,
                          kernel::Gradient mode) {
      ++executions.weights;
      Base::backward_weights(x, dy, dw, db, mode);
    }
  };
};
} // namespace

TEST_CASE("network: no gradient is computed for the input") {
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  AnyNetwork<float, Counting> net(
      grid, describe({conv(2), relu(), conv(3), conv(2)}, {.c = 1, .d = 4, .h = 4, .w = 4}, over_ndhw), {});
  pass(net, 1);
  CHECK(executions.forward == 3);
  CHECK(executions.weights == 3);
  CHECK(executions.data == 2);
}

TEST_CASE("network: dL/dw of y = w x under a mean over all voxels of all samples is 1 on every grid") {
  struct mean_value { // a loss of the user's own
    static double value(double y, double) { return y; }
    static double derivative(double, double) { return 1; }
  };
  on_ranks([](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      for (const int depth : {8, 7}) {
        Oracle net(grid, describe({conv(1, window(1))}, {.c = 1, .d = depth, .h = 4, .w = 2}, over_ndhw), {.batch = 4});
        auto x = net.make_input();
        fill(x, [](const Index<5>&) { return 1; });
        const auto t = net.make_target();
        const auto& y = net.forward(x, Mode::training);
        auto mean = loss_and_gradient(mean_value{}, y, t, &net.output_gradient());
        net.backward(x);
        net.for_each_gradient([](std::size_t, std::size_t) {});
        const double rounding = depth == 8 ? 0 : 1e-14; // 1/256 is exact, 1/224 is not
        CHECK(std::abs(net.gradients()[0] - 1) <= rounding);
        CHECK(mean.resolve() == doctest::Approx(net.parameters()[0]));
      }
    });
  });
}

TEST_CASE("network: smaller batches share the memory and equal a network made for them") {
  on_ranks({1, 2, 3, 4}, [](const Communicator& c) {
    for (const auto& sizes : {std::vector<int>{c.size(), 1, 1, 1}, {1, c.size(), 1, 1}}) {
      const AnyGrid grid(c, sizes);
      Oracle net(grid, all_kinds(), {.batch = 5, .seed = 3});
      for (const long samples : {5L, 2L, 1L, 5L, 4L, 1L}) {
        Oracle own(grid, all_kinds(), {.batch = samples, .seed = 3});
        const Passed want = pass(own, samples), got = pass(net, samples);
        CHECK(distance(got.y, want.y) < 1e-13);
        CHECK(distance(got.gradients, want.gradients) < 1e-13);
      }
    }
  });
}

TEST_CASE("network: what does not belong to it is refused on every rank in the same words") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle net(grid, all_kinds(), {.batch = 2});
    CHECK(all_throw<usage_error>(c, [&] { net.make_input(3); }).find("make it with a larger batch") !=
          std::string::npos);
    CHECK(all_throw<usage_error>(c, [&] { net.make_input(0); }).find("at most 2") != std::string::npos);
    Oracle::Field other(grid, Map<5>(whole_samples, grid.shape(), {{2, 2, 9, 7, 6}}));
    CHECK(all_throw<usage_error>(c, [&] { net.forward(other, Mode::training); }).find("make_input()") !=
          std::string::npos);
    auto x = net.make_input();
    CHECK(all_throw<usage_error>(c, [&] { net.backward(x); }).find("call forward") != std::string::npos);
  });
}

TEST_CASE(
    "network: a second backward pass after one forward pass is refused, for gradients lie where activations lay") {
  on_ranks({1, 2}, [](const Communicator& world) {
    Oracle net(AnyGrid(world, {1, world.size(), 1, 1}), all_kinds(), {.batch = 1});
    auto x = net.make_input();
    net.forward(x, Mode::training);
    net.backward(x);
    CHECK_THROWS_WITH_AS(net.backward(x), doctest::Contains("call forward again"), usage_error);
    net.for_each_gradient([](std::size_t, std::size_t) {});
    net.forward(x, Mode::training);
    CHECK_NOTHROW(net.backward(x));
    net.for_each_gradient([](std::size_t, std::size_t) {});
  });
}

TEST_CASE("network: data parallelism alone moves nothing between layers") {
  on_ranks([](const Communicator& c) {
    const AnyGrid grid(c, {c.size(), 1, 1, 1});
    Oracle net(grid,
               describe({conv(2), relu(), max_pool(2), to(whole_samples), flatten(), dense(2)},
                        {.c = 1, .d = 4, .h = 4, .w = 4}, over_ndhw),
               {.batch = 5});
    for (const auto& [name, t] : net.traffic()) {
      CHECK(t.forward == Traffic{});
      CHECK(t.backward == Traffic{});
    }
  });
}

TEST_CASE("network: a dense layer whose output has a halo") {
  // One cell with periodic padding of one on each side: a block of three around every sample of the dense layer.
  const NetworkDescription net = describe({flatten(), dense(3), conv(2, window(3).pad(1).periodic())},
                                          {.c = 2, .d = 1, .h = 1, .w = 1}, whole_samples);
  on_ranks({1, 2}, [&](const Communicator& c) {
    Oracle both(AnyGrid(c, {c.size(), 1, 1, 1}), net, {.batch = 2});
    const Passed got = pass(both, 2);
    const auto p = both.parameters(); // dense (3, 2), its biases, conv (2, 27 cells, 3)
    for (std::size_t s = 0; s < 2; ++s)
      for (std::size_t o = 0; o < 2; ++o) {
        double want = 0;
        for (std::size_t i = 0; i < 3; ++i) {
          double taps = 0;
          for (std::size_t k = 0; k < 27; ++k) taps += p[9 + (o * 27 + k) * 3 + i];
          const long sample = static_cast<long>(s);
          want += taps * (p[6 + i] + p[2 * i] * wave({{sample, 0}}) + p[2 * i + 1] * wave({{sample, 1}}));
        }
        CHECK(got.y[2 * s + o] == doctest::Approx(want));
      }
  });
}
