// Networks with groups, windows that round up, upsampling and global pools: the same on every grid, and right.
#include "networks.hpp"

#include <tessera/net/graph.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

template <int N> std::vector<LayerSpec> list(const Sequence<N>& s) { return {s.layers.begin(), s.layers.end()}; }

/// A classifier: depthwise and grouped convolutions, poolings that round up, a global pool before the dense layer.
/// No activation stands at its kink: the bias of the one that may see zeros only is not 0.
constexpr auto classifier(const LayerSpec& pooled) {
  return seq(conv(6).with_bias(0.1), leaky_relu(0.1), conv(6, window(3).same().strided(2)).grouped(6), relu(),
             max_pool(window(2).strided(2).ceil()), conv(9, window(1)).grouped(3).with_bias(0.05), leaky_relu(0.2),
             upsample(2, 1, 2), average_pool(window(3).pad(1).strided(2).ceil(), PaddingCounts::no),
             conv(8, window(2).same()), pooled, dense(5), leaky_relu(0.1), dense(3));
}
/// A U-shape whose halves meet at odd sizes too, and end in upsampling.
constexpr auto u_shape = seq(
    conv(4), leaky_relu(0.1),
    skip_concat(seq(average_pool(2), conv(6).grouped(2), relu(), skip_concat(seq(max_pool(2), conv(4), upsample(2))),
                    conv(4, window(1)), upsample(2).trilinear())),
    conv(3), upsample(1, 3, 2).trilinear(AlignCorners::yes));

void same_on_every_grid(const NetworkDescription& what, long batch) {
  const NetworkOptions options{.batch = batch, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), what, options);
  const Passed want = pass(one, batch);
  on_ranks({1, 2, 3, 4, 6}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle net(grid, what, options);
      for (int twice = 0; twice < 2; ++twice) {
        const Passed got = pass(net, batch);
        CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
        CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
      }
      Product fast(grid, what, options);
      const Passed got = pass(fast, batch);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-4, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-4, grid.shape().str());
      AnyNetwork<double, emulated> device(grid, what, options);
      const Passed there = pass(device, batch);
      CHECK_MESSAGE(distance(there.y, want.y) < 1e-10, grid.shape().str());
      CHECK_MESSAGE(distance(there.gradients, want.gradients) < 1e-10, grid.shape().str());
    });
  });
}

} // namespace

TEST_CASE("operators: a classifier that ends in a global average is the same on every grid") {
  same_on_every_grid(describe(classifier(global_average_pool()), {.c = 2, .d = 11, .h = 8, .w = 7}, over_ndhw), 3);
}
TEST_CASE("operators: a classifier that ends in a global maximum is the same on every grid") {
  same_on_every_grid(describe(classifier(global_max_pool()), {.c = 2, .d = 11, .h = 8, .w = 7}, over_ndhw), 2);
}
TEST_CASE("operators: a U-shape with upsampling is the same on every grid") {
  same_on_every_grid(describe(u_shape, {.c = 2, .d = 12, .h = 8, .w = 4}, over_ndhw), 2);
}

TEST_CASE("operators: parameter gradients equal finite differences") {
  for (const NetworkDescription& what :
       {describe(classifier(global_average_pool()), {.c = 2, .d = 7, .h = 6, .w = 5}, over_ndhw),
        describe(classifier(global_max_pool()), {.c = 2, .d = 7, .h = 6, .w = 5}, over_ndhw),
        describe(u_shape, {.c = 2, .d = 8, .h = 4, .w = 4}, over_ndhw)})
    on_ranks({1, 2}, [&](const Communicator& c) { check_slopes(AnyGrid(c, {1, c.size(), 1, 1}), what, 2); });
}

TEST_CASE("operators: after a global pool the axes that split the volume replicate, and the others go on") {
  const NetworkDescription what =
      describe(list(classifier(global_max_pool())), {.c = 2, .d = 8, .h = 8, .w = 8}, over_ndhw);
  GridShape shape{4, {2, 2, 2, 1}};
  const NetworkPlan plan(shape, what, 5);
  CHECK(plan.output().layout() == place(n, rep, rep, rep));
  CHECK(plan.output().extents() == Extents<5>{{5, 3, 1, 1, 1}});
  CHECK(plan.output().partition(0).sizes() == std::vector<long>{3, 2});
}

TEST_CASE("operators: blocks divided by a pooling and multiplied by an upsampling meet their skip without moving") {
  on_ranks({2, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle net(grid, describe(u_shape, {.c = 2, .d = 24, .h = 8, .w = 4}, over_ndhw), {.batch = 1});
    int joins = 0;
    for (const auto& layer : net.traffic())
      if (layer.first.ends_with("concat")) {
        ++joins;
        CHECK_MESSAGE(layer.second.forward.messages + layer.second.backward.messages == 0, layer.first);
      }
    CHECK(joins == 2);
  });
}

TEST_CASE("operators: memory is what was estimated") {
  const NetworkDescription what = describe(u_shape, {.c = 2, .d = 16, .h = 16, .w = 16}, over_ndhw);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) { check_memory(c, grid, what, 4); });
  });
}

TEST_CASE("operators: what cannot be is refused in the same words on every rank") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    const auto told = [&](std::vector<LayerSpec> layers) {
      const NetworkDescription what = describe(std::move(layers), {.c = 4, .d = 8, .h = 8, .w = 8}, over_ndhw);
      return all_throw<usage_error>(c, [&] { NetworkPlan(grid.shape(), what, 1); });
    };
    CHECK(told({relu(), conv(6).grouped(4)}).find("layer 1 (conv): grouped(groups) needs") != std::string::npos);
    CHECK(told({upsample(2, 0, 1)}).find("layer 0 (upsample)") != std::string::npos);
    CHECK(told({max_pool(window(3).strided(2).periodic().ceil())}).find("ceil() needs padding with zeros") !=
          std::string::npos);
  });
}
