// Networks that are not chains: the same on any grid, gradients that come together from several readers, recomputation,
// and the arena that values and gradients share.
#include "networks.hpp"

#include <random>
#include <tessera/net/graph.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr Stencil same3 = window(3).same();

// What the words make: whose output each layer reads.
constexpr auto skip = skip_concat(seq(conv(2), relu()));
static_assert(skip.size() == 3 && skip.layers[2].kind == LayerKind::concat);
static_assert(skip.layers[2].from == -1 && skip.layers[2].other == -3);
constexpr auto three = branch(seq(conv(1), conv(1)), seq(), conv(4));
static_assert(three.size() == 5 && three.layers[2].from == -1 && three.layers[2].other == -3);
static_assert(three.layers[3].from == -4 && three.layers[4].from == -2 && three.layers[4].other == -1);
constexpr auto wired = graph([](GraphBuilder& g, Node x) {
  const Node a = g(x, conv(3)), b = g(x, seq(conv(3), relu()));
  return g.concat(g.add(b, a), x);
});
static_assert(wired.size() == 5 && wired.layers[1].from == -2 && wired.layers[3].from == -1 &&
              wired.layers[3].other == -3 && wired.layers[4].other == -5);
static_assert(walk(wired, {.c = 2, .d = 4, .h = 4, .w = 4}, over_ndhw).layers[4].out == Extents<4>{{5, 4, 4, 4}});

template <int N> std::vector<LayerSpec> list(const Sequence<N>& s) { return {s.layers.begin(), s.layers.end()}; }

/// Skips inside skips, shortcuts, three-way branches, an input that is read four times, an output that is read by a
/// layer and its own sum, activations before and after the joins.
constexpr auto tangle =
    seq(branch(conv(3).with_bias(0.1), seq(conv(2), leaky_relu(0.2)), seq()), batch_norm(), leaky_relu(0.1),
        skip_concat(seq(conv(4, window(3).same().dilated(2).pad(2)), relu(),
                        residual(seq(conv(4), batch_norm(), leaky_relu(0.3))), skip_concat(conv(3)))),
        average_pool(window(3).pad(1).strided(2)), residual(seq(conv(5), relu(), dropout(0.8)), conv(5, window(1))),
        graph([](GraphBuilder& g, Node x) {
          const Node a = g(x, seq(conv(4), leaky_relu(0.1)));
          const Node twice = g.add(a, a);
          return g.concat(g.add(g(twice, max_pool(window(3).same())), a), g(x, conv(1)));
        }),
        to(whole_samples), flatten(), residual(seq(dropout(0.7), dense(5 * 5 * 4 * 3))), dense(3));

NetworkDescription tangled() { return describe(tangle, {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw); }

} // namespace

TEST_CASE("graph: output and all gradients are the same on every grid") {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), tangled(), options);
  const Passed want = pass(one, 3, Mode::training, 5);
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle net(grid, tangled(), options);
      for (int twice = 0; twice < 2; ++twice) {
        const Passed got = pass(net, 3, Mode::training, 5);
        CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
        CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
      }
      const Passed fewer = pass(net, 2, Mode::training, 5);
      Oracle two(AnyGrid(Communicator(), {1, 1, 1, 1}), tangled(), {.batch = 2, .seed = 5});
      CHECK_MESSAGE(distance(fewer.gradients, pass(two, 2, Mode::training, 5).gradients) < 1e-10, grid.shape().str());
    });
  });
}

namespace {
/// The paper's network in small: two poolings, skips, transposed convolutions.
constexpr auto block(int a, int b) { return seq(conv(a), batch_norm(), relu(), conv(b), batch_norm(), relu()); }
template <class Below> constexpr auto level(int c, Below below) {
  return seq(block(c / 2, c), skip_concat(seq(max_pool(2), below, up(2 * c))), block(c, c));
}
constexpr auto small_unet = seq(level(4, level(8, block(8, 16))), conv(3, window(1)).with_bias());
static_assert(walk(small_unet, {.c = 1, .d = 16, .h = 8, .w = 12}, over_ndhw).fault == Fault::none);
static_assert(walk(small_unet, {.c = 1, .d = 17, .h = 19, .w = 23}, over_ndhw).fault == Fault::sizes_differ);
} // namespace

TEST_CASE("graph: a U-Net is the same on every grid, and its blocks stay aligned") {
  const NetworkDescription unet = describe(small_unet, {.c = 1, .d = 16, .h = 8, .w = 12}, over_ndhw);
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), unet, {.batch = 2, .seed = 5});
  const Passed want = pass(one, 2);
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle net(grid, unet, {.batch = 2, .seed = 5});
      const Passed got = pass(net, 2);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-9, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-9, grid.shape().str());
    });
    const AnyGrid split(c, {1, c.size() > 4 ? 1 : c.size(), c.size() > 4 ? 2 : 1, c.size() > 4 ? c.size() / 2 : 1});
    Oracle net(split, unet, {.batch = 1});
    if (c.size() <= 4)
      for (const auto& [name, traffic] : net.traffic())
        if (name.ends_with("concat") || name.ends_with("conv_transpose")) CHECK(traffic.forward == Traffic{});
  });
}

TEST_CASE("graph: parameter gradients equal finite differences") {
  on_ranks({1, 2}, [](const Communicator& c) { check_slopes(AnyGrid(c, {1, c.size(), 1, 1}), tangled(), 2, 5); });
}

TEST_CASE("graph: two readers of one output add their gradients; by hand") {
  // y = 3 (2 x) + 5 (2 x) + 2 x, one cell: dy/dw of the first weight is 9 x.
  Oracle net(AnyGrid(Communicator(), {1, 1, 1, 1}),
             describe(graph([](GraphBuilder& g, Node x) {
                        const Node a = g(x, conv(1, window(1)));
                        return g.add(g.add(g(a, conv(1, window(1))), g(a, conv(1, window(1)))), a);
                      }),
                      {.c = 1, .d = 1, .h = 1, .w = 1}, over_ndhw),
             {});
  net.parameters()[0] = 2, net.parameters()[1] = 3, net.parameters()[2] = 5;
  auto x = net.make_input();
  fill(x, [](const Index<5>&) { return 7; });
  CHECK(net.forward(x, Mode::training).view()[Index<5>{}] == 2 * 7 * 9);
  fill(net.output_gradient(), [](const Index<5>&) { return 1; });
  net.backward(x);
  net.for_each_gradient([](std::size_t, std::size_t) {});
  CHECK(net.gradients()[0] == 9 * 7);
  CHECK(net.gradients()[1] == 14);
  CHECK(net.gradients()[2] == 14);
}

TEST_CASE("graph: operands whose boundaries differ are brought together, and it is counted") {
  // Depth 6 over 4: blocks of 2,2,1,1; the path with stride 1 windows of one side keeps them, so nothing moves. After
  // pooling by 2 on one path and a 5-wide unpadded window on the other, extents are 3 and boundaries differ.
  const NetworkDescription net = describe(branch(seq(max_pool(window(2).strided(2))), seq(conv(2, window(4)))),
                                          {.c = 1, .d = 6, .h = 6, .w = 6}, over_ndhw);
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), net, {.batch = 1});
  const Passed want = pass(one, 1);
  on_ranks([&](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle split(grid, net, {.batch = 1});
    const Passed got = pass(split, 1);
    CHECK(distance(got.y, want.y) < 1e-12);
    CHECK(distance(got.gradients, want.gradients) < 1e-12);
    const auto& s = split.plan().steps().back();
    const bool differ = s.in.partition(2) != s.second.partition(2);
    const auto moved = c.all_reduce(std::int64_t(split.traffic().back().second.forward.bytes));
    CHECK((moved > 0) == differ);
  });
}

TEST_CASE("recompute: the same losses, gradients, running statistics and masks in less memory") {
  constexpr auto piece = seq(conv(6), batch_norm(), relu(), dropout(0.8), residual(seq(conv(6), leaky_relu(0.1))),
                             average_pool(window(3).same()));
  const auto network = [&](auto part) {
    return describe(seq(conv(6), part, part, part, max_pool(2)), {.c = 2, .d = 8, .h = 8, .w = 8}, over_ndhw);
  };
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle kept(grid, network(piece), {.batch = 4, .seed = 3}),
          again(grid, network(recompute(piece)), {.batch = 4, .seed = 3});
      for (std::uint64_t step = 0; step < 2; ++step) {
        const Passed want = pass(kept, 4, Mode::training, step), got = pass(again, 4, Mode::training, step);
        CHECK(got.y == want.y);
        CHECK(got.gradients == want.gradients);
        CHECK(std::ranges::equal(kept.state(), again.state()));
      }
      const auto activations = [&](const Oracle& net) { return net.plan().memory(grid.rank(), 8, 0).activations; };
      CHECK(double(activations(again)) < 0.7 * double(activations(kept)));
    });
  });
}

namespace {
template <class End> void check_halo_after(const End& end) {
  const auto network = [&](auto part) {
    return describe(seq(conv(3), part, conv(2)), {.c = 2, .d = 8, .h = 6, .w = 6}, over_ndhw);
  };
  const auto piece = seq(conv(4).with_bias(0.1), relu(), end);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle kept(grid, network(piece), {.batch = 2}), again(grid, network(recompute(piece)), {.batch = 2});
      const Passed want = pass(kept, 2), got = pass(again, 2);
      CHECK(got.y == want.y);
      CHECK_MESSAGE(got.gradients == want.gradients, grid.shape().str());
    });
  });
}
} // namespace

TEST_CASE("recompute: a piece that ends in a window gets its halo back") {
  check_halo_after(conv(4));
  check_halo_after(max_pool(window(3).same()));
  check_halo_after(average_pool(window(3).same()));
  check_halo_after(conv_transpose(4, window(3).pad(1)));
}

TEST_CASE("graph: faults name the layer and the remedy") {
  const auto told = [](const std::vector<LayerSpec>& layers) -> std::string {
    try {
      NetworkPlan(shape_of({1, 1, 1, 1}), describe(layers, {.c = 2, .d = 17, .h = 16, .w = 16}, over_ndhw), 1);
    } catch (const usage_error& e) { return e.what(); }
    return "nothing";
  };
  const auto says = [&](const std::string& text, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts) CHECK_MESSAGE(text.find(part) != text.npos, text, " lacks ", part);
  };
  says(told(list(skip_concat(max_pool(2)))), {"layer 1 (concat), dim d", "needs 17, has 8", "divides by all strides"});
  says(told(list(residual(conv(3)))), {"layer 1 (add), dim c", "needs 2, has 3"});
  says(told(list(small_unet)), {"(concat), dim d", "needs 17, has 16", "divides by all strides"});
  says(told({conv_transpose(2, window(3).strided(2), {{2, 0, 0}})}),
       {"layer 0 (conv_transpose), dim d", "below the stride"});
  says(told({conv_transpose(2, window(3).periodic())}), {"layer 0 (conv_transpose)", "use zeros"});
  says(told({conv_transpose(2, window(1).pad(9))}), {"layer 0 (conv_transpose), dim d", "use less"});
  says(told(list(skip_concat(to(whole_samples)))), {"layer 1 (concat)", "layout", "into both paths"});
  says(told({conv(2), add(-4)}), {"layer 1 (add)", "does not come before it"});
  says(told({conv(2), add(0)}), {"layer 1 (add)", "does not come before it"});
  LayerSpec stray = conv(2);
  stray.from = -2;
  says(told({conv(2), stray}), {"layer 0 (conv)", "no layer reads its output"});
}

TEST_CASE("arena: blocks that live at one time do not overlap, others share; random") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const auto below = [&](int n) { return long(random() % unsigned(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<ArenaBlock> blocks(std::size_t(1 + below(40)));
    std::uint64_t all = 0;
    for (ArenaBlock& b : blocks) {
      b.bytes = std::uint64_t(below(5) == 0 ? 0 : 1 + below(1000));
      all += (b.bytes + 63) / 64 * 64;
      for (long i = 0, n = 1 + below(2); i < n; ++i) {
        const long from = below(30);
        b.lives.push_back({from, from + below(6)});
      }
    }
    const Arena a(blocks);
    CHECK(a.bytes() <= all);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const bool apart = a.offset(i) + blocks[i].bytes <= a.offset(j) || a.offset(j) + blocks[j].bytes <= a.offset(i);
        const bool empty = blocks[i].bytes == 0 || blocks[j].bytes == 0;
        CHECK_MESSAGE((apart || empty || !blocks[i].meets(blocks[j])), "seed ", seed, ", blocks ", i, " and ", j);
      }
  }
  CHECK(Arena({{1000, {{0, 3}}}, {1000, {{4, 9}}}}).bytes() == 1024);
  CHECK(Arena({{1000, {{0, 4}}}, {1000, {{4, 9}}}}).bytes() == 2048);
}
