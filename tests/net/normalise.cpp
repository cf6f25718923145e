// Normalisations inside networks: the same on every grid, gradients against finite differences, in training and in
// inference, with activations and poolings behind them.
#include "networks.hpp"

#include <tessera/net/graph.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// Statistics that no grid changes.
NetworkDescription whole_statistics() {
  return describe({conv(4).with_bias(0.1),
                   group_norm(2),
                   leaky_relu(0.2),
                   conv(6),
                   instance_norm({.affine = Affine::no}),
                   gelu(),
                   average_pool(window(3).pad(1).strided(2)),
                   layer_norm({.epsilon = 1e-3}),
                   sigmoid(),
                   average_pool(window(2).pad(0, 1)),
                   conv(4),
                   batch_norm({.affine = Affine::no}),
                   tanh(),
                   conv(4),
                   group_norm(4),
                   max_pool(window(2)),
                   to(place(n, rep, rep, n)),
                   layer_norm(),
                   flatten(),
                   dense(6),
                   layer_norm(),
                   elu(),
                   dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}
/// Batch statistics of fewer ranks.
NetworkDescription narrow_statistics() {
  return describe({conv(3), batch_norm({.over = ranks_of_sample}), relu(), conv(3), batch_norm({.over = this_piece}),
                   leaky_relu(0.1), max_pool(2), conv(2), batch_norm({.over = grid_axes(0, 2), .affine = Affine::no}),
                   average_pool(window(2))},
                  {.c = 2, .d = 8, .h = 8, .w = 8}, over_ndhw);
}

double loss(Oracle& net, Oracle::Field& x, Mode mode) {
  const auto& y = net.forward(x, mode, 5);
  double sum = 0;
  for_each_index(whole(y.box().extents()), [&](const Index<5>& i) { sum += wave(i + y.box().lo, 1) * y.view()[i]; });
  return net.grid().over(y.layout().mask(Placement::Kind::split)).all_reduce(sum);
}

void check_differences(const AnyGrid& grid, const NetworkDescription& description, Mode mode) {
  Oracle net(grid, description, {.batch = 4, .seed = 6});
  pass(net, 4); // running statistics that are not those of the start
  const std::vector<double> gradients = pass(net, 4, mode, 5).gradients;
  auto x = net.make_input(4);
  fill(x, [](const Index<5>& i) { return wave(i); });
  Random random(63);
  for (const ParameterInfo& p : net.plan().parameters())
    for (int k = 0; k < 3; ++k) {
      const auto at = p.offset + std::size_t(random.in(0, long(p.count) - 1));
      double& value = net.parameters()[at];
      const double before = value, step = 1e-6;
      value = before + step;
      const double above = loss(net, x, mode);
      value = before - step;
      const double below = loss(net, x, mode);
      value = before;
      const double slope = (above - below) / (2 * step);
      CHECK_MESSAGE(std::abs(slope - gradients[at]) < 2e-6 * std::max(1.0, std::abs(slope)), p.name, " on ",
                    grid.shape().str(), ": ", gradients[at], ", differences give ", slope);
    }
}

} // namespace

TEST_CASE("normalisations in a network: output and gradients are the same on every grid, float close to double") {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), whole_statistics(), options);
  for (const Mode mode : {Mode::training, Mode::inference}) {
    pass(one, 3);
    const Passed want = pass(one, 3, mode, 5);
    const std::vector<double> state(one.state().begin(), one.state().end());
    on_ranks([&](const Communicator& c) {
      on_every_grid(c, [&](const AnyGrid& grid) {
        Oracle net(grid, whole_statistics(), options);
        Product fast(grid, whole_statistics(), options);
        for (int before = mode == Mode::training ? 1 : 3; before-- > 0;) pass(net, 3), pass(fast, 3);
        const Passed got = pass(net, 3, mode, 5), close = pass(fast, 3, mode, 5);
        CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
        CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
        CHECK_MESSAGE(distance(net.state(), state) < 1e-12, grid.shape().str());
        CHECK_MESSAGE(distance(close.y, want.y) < 1e-5, grid.shape().str());
        CHECK_MESSAGE(distance(close.gradients, want.gradients) < 5e-5, grid.shape().str());
      });
    });
  }
}

TEST_CASE("normalisations in a network: parameter gradients equal finite differences") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size() > 2 ? 2 : 1, 1, std::min(2, c.size()), 1});
    check_differences(grid, whole_statistics(), Mode::training);
    check_differences(grid, narrow_statistics(), Mode::training);
    check_differences(grid, narrow_statistics(), Mode::inference);
  });
}

TEST_CASE("normalisations in a network: running statistics are the same on every rank, whatever the scope") {
  on_ranks({2, 4, 8}, [](const Communicator& c) {
    for (const auto& sizes : {std::vector<int>{2, c.size() / 2, 1, 1}, {1, 2, 1, c.size() / 2}}) {
      Oracle net(AnyGrid(c, sizes), narrow_statistics(), {.batch = 4, .seed = 6});
      pass(net, 4), pass(net, 4);
      const auto all = c.all_gather(std::span<const double>(net.state()));
      CHECK(all[std::size_t(c.rank())].size() == 16);
      for (const auto& theirs : all) CHECK(theirs == all[0]);
    }
  });
}

TEST_CASE("normalisations take in the activation behind them, and poolings absorb it") {
  for (const LayerSpec& norm : {batch_norm(), group_norm(2), instance_norm(), layer_norm()}) {
    const NetworkPlan plan(
        shape_of({1, 1, 1, 1}),
        describe({conv(4), norm, tanh(), average_pool(2)}, {.c = 1, .d = 4, .h = 4, .w = 4}, over_ndhw), 1);
    CHECK(plan.steps().size() == 3);
    CHECK(plan.steps()[1].fused.kind == kernel::Activation::tanh);
    CHECK(plan.in_place(2));
  }
}

TEST_CASE("normalisations, pointwise functions and softmax computed again in the backward pass: nothing changes") {
  struct Both {
    static NetworkDescription of(bool again) {
      constexpr auto inner =
          seq(conv(4), group_norm(2), gelu(), batch_norm({.momentum = 0.5}), tanh(), silu(), softmax());
      constexpr Input input{.c = 2, .d = 6, .h = 4, .w = 5};
      constexpr auto end = seq(conv(3), batch_norm({.over = ranks_of_sample}), residual(seq(elu(), conv(3))));
      return again ? describe(seq(conv(3), recompute(inner), recompute(end)), input, over_ndhw)
                   : describe(seq(conv(3), inner, end), input, over_ndhw);
    }
  };
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle once(grid, Both::of(false), {.batch = 2, .seed = 9}), twice(grid, Both::of(true), {.batch = 2, .seed = 9});
    for (int step = 0; step < 2; ++step) {
      const Passed want = pass(once, 2), got = pass(twice, 2);
      CHECK(distance(got.y, want.y) < 1e-14);
      CHECK(distance(got.gradients, want.gradients) < 1e-13);
      CHECK(distance(twice.state(), once.state()) < 1e-14); // they follow once a step
    }
  });
}
