// Convolutions and poolings whose values are worked out by hand, or that users of other systems found wrong there.
#include "alone.hpp"

#include <tessera/net/plan.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr double exact = 1e-10;

/// Equal to the definition on every grid of the ranks, boundaries balanced and, where it can be, aligned to the
/// strides.
void equal_on_every_grid(const Communicator& c, const Alone& a, const Computed<double>& want) {
  const Index<3> s = a.spec.stencil.strides();
  on_every_grid(c, [&](const AnyGrid& grid) {
    for (const Extents<5>& quantum : {Map<5>::ones(), Extents<5>{{1, 1, s[0], s[1], s[2]}}})
      check_equal(text(a.str(), " on ", grid.shape()),
                  on_grid<double, reference>(grid, a, {Map<5>(over_ndhw, grid.shape(), a.in, quantum)}), want, exact);
  });
}

/// A layer without randomness: x and dy from functions of the global index, weights all `weight`.
template <class X, class Dy>
Alone made_of(const LayerSpec& spec, const Extents<5>& in, const X& x, const Dy& dy, double weight = 1) {
  Alone a{spec, {}, in, {}, {}, {}, {}};
  for_each_index(whole(in), [&](const Index<5>& i) { a.x.push_back(x(i)); });
  for_each_index(whole(a.out()), [&](const Index<5>& i) { a.dy.push_back(dy(i)); });
  a.w.assign(std::size_t(product(a.weights())), weight);
  if (spec.bias) a.b.assign(std::size_t(spec.channels), 0.0);
  return a;
}
const auto ones = [](const Index<5>&) { return 1.0; };
const auto zeros = [](const Index<5>&) { return 0.0; };

Map<5> split_along_depth(const AnyGrid& grid, const Extents<5>& in, const std::vector<long>& sizes) {
  return {place(d),
          grid.shape(),
          in,
          {Partition(in[0]), Partition(in[1]), Partition::from_sizes(sizes), Partition(in[3]), Partition(in[4])}};
}

} // namespace

TEST_CASE("conv: k=5 s=2 p=2 on depth 17, uneven shards") {
  Random random(1);
  const Alone a = alone(random, conv(3, window(5).pad(2).strided(2)).with_bias(), {{1, 2, 17, 9, 9}});
  REQUIRE(a.out() == Extents<5>{{1, 3, 9, 5, 5}});
  const Computed<double> want = by_definition(a);
  on_ranks([&](const Communicator& c) { equal_on_every_grid(c, a, want); });
}

TEST_CASE("conv: boundaries given by the user, strides 2 and 3") {
  on_ranks({3}, [](const Communicator& c) {
    const AnyGrid grid(c, {3});
    for (const int stride : {2, 3})
      for (const std::vector<long>& sizes :
           {std::vector<long>{5, 6, 6}, {6, 5, 6}, {1, 15, 1}, {17, 0, 0}, {0, 0, 17}, {2, 0, 15}}) {
        Random random(2);
        const Alone a = alone(random, conv(3, window(5).pad(2).strided(stride)).with_bias(), {{1, 2, 17, 9, 9}});
        check_equal(text("stride ", stride, ", blocks ", sizes[0], ",", sizes[1], ",", sizes[2]),
                    on_grid<double, reference>(grid, a, {split_along_depth(grid, a.in, sizes)}), by_definition(a),
                    exact);
      }
  });
}

TEST_CASE("conv: even kernels") {
  Random random(3);
  const Alone a = alone(random, conv(2, window(2)), {{2, 2, 9, 9, 5}});
  const Alone b = alone(random, conv(2, window(4).pad(1).strided(2)), {{1, 2, 16, 16, 6}});
  const Alone e = alone(random, conv(2, window(4).pad(1, 2)), {{1, 2, 11, 7, 11}});
  REQUIRE(a.out()[2] == 8);
  REQUIRE(b.out()[2] == 8);
  REQUIRE(e.out()[2] == 11);
  for (const Alone* each : {&a, &b, &e}) {
    const Computed<double> want = by_definition(*each);
    on_ranks([&](const Communicator& c) { equal_on_every_grid(c, *each, want); });
  }
}

TEST_CASE("conv: k=2 without padding moves planes down only, one message each") {
  Random random(4);
  const Alone a = alone(random, conv(2, window(2)), {{1, 2, 9, 4, 5}});
  on_ranks({3}, [&](const Communicator& c) {
    const AnyGrid grid(c, {3});
    const auto before = c.counters();
    const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
    const std::uint64_t plane = 2 * 4 * 5 * sizeof(double), down = c.rank() > 0, up = c.rank() < 2;
    CHECK(got.traffic.forward == Traffic{down, down * plane});
    CHECK(got.traffic.backward == Traffic{up, up * plane});
    CHECK((c.counters() - before).messages == down + up);
    CHECK((c.counters() - before).bytes == (down + up) * plane);
  });
}

TEST_CASE("conv: a halo wider than the shards comes in several hops") {
  Random random(5);
  const Alone a = alone(random, conv(2, window(3).dilated(4).pad(4)), {{1, 2, 12, 10, 9}});
  REQUIRE(a.out()[2] == 12);
  const Computed<double> want = by_definition(a);
  on_ranks([&](const Communicator& c) { equal_on_every_grid(c, a, want); });
  on_ranks({4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {4});
    const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
    // Radius 4, shards of 3: the two ranks next to each other and the one after.
    CHECK(got.traffic.forward.messages == (c.rank() == 0 || c.rank() == 3 ? 2 : 3));
  });
}

TEST_CASE("conv: all ones count the cells inside") {
  const Alone a = made_of(conv(1, window(3).pad(1)), {{1, 1, 6, 6, 6}}, ones, zeros);
  const auto outside = [](long q) { return q == 0 || q == 5; };
  const std::array<double, 4> counted{27, 18, 12, 8}; // interior, face, edge, corner
  std::vector<double> want;
  for_each_index(whole(a.in), [&](const Index<5>& i) {
    want.push_back(counted[std::size_t(outside(i[2]) + outside(i[3]) + outside(i[4]))]);
  });
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      CHECK(on_grid<double, reference>(grid, a, {Map<5>(over_ndhw, grid.shape(), a.in)}).y == want);
    });
  });
}

TEST_CASE("conv: a single 1 next to all borders of a 2x2x2 grid") {
  const auto point = [](const Index<5>& i) { return i[2] == 2 && i[3] == 2 && i[4] == 2 ? 1.0 : 0.0; };
  const Alone a = made_of(conv(1, window(3).pad(1)), {{1, 1, 6, 6, 6}}, point, zeros);
  on_ranks({8}, [&](const Communicator& c) {
    const AnyGrid grid(c, {2, 2, 2});
    const Map<5> map(place(d, h, w), grid.shape(), a.in);
    const auto got = on_grid<double, reference>(grid, a, {map});
    CHECK(std::ranges::count(got.y, 1.0) == 27);
    CHECK(std::ranges::count(got.y, 0.0) == 216 - 27);
    const std::array<long, 8> on_rank{8, 4, 4, 2, 4, 2, 2, 1};
    long mine = 0;
    for_each_index(map.box(c.rank()),
                   [&](const Index<5>& i) { mine += got.y[std::size_t((i[2] * 6 + i[3]) * 6 + i[4])] == 1.0; });
    CHECK(mine == on_rank[std::size_t(c.rank())]);
  });
}

TEST_CASE("conv: each cell and each window is accounted once in the gradients") {
  const Alone a = made_of(conv(1, window(3, 1, 1).pad(d, 1, 1)).with_bias(), {{1, 1, 6, 1, 1}}, ones, ones);
  on_ranks({1, 2, 3, 6}, [&](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
    CHECK(got.dx == std::vector<double>{2, 3, 3, 3, 3, 2});
    CHECK(got.dw == std::vector<double>{5, 6, 5});
    CHECK(got.db == std::vector<double>{6});
  });
}

TEST_CASE("conv and pooling: every padding mode on each side of each dim, on every grid, against padded tensors") {
  constexpr std::uint64_t seed = 77;
  MESSAGE("seed ", seed);
  on_ranks({1, 2, 3, 4, 8}, [](const Communicator& world) {
    Random random(seed);
    for (int dim = 0; dim < 3; ++dim)
      for (int below = 0; below < 4; ++below)
        for (int above = 0; above < 4; ++above) {
          Stencil s = window(3).same();
          s[dim] = {.k = random.pick(1, 4), .stride = random.pick(1, 2), .dilation = random.pick(1, 2)};
          s[dim].below = random.pick(0, 3), s[dim].above = random.pick(0, 3);
          s[dim].mode = {static_cast<Padding>(below), static_cast<Padding>(above)};
          const LayerSpec kinds[] = {conv(2, s).with_bias(), max_pool(s), average_pool(s),
                                     average_pool(s, PaddingCounts::no)};
          Extents<5> in{{1, 2, 3, 3, 3}};
          in[2 + dim] = random.in(5, 7);
          const Alone a = alone(random, kinds[random.pick(0, 3)], in);
          const Computed<double> want = by_definition(a);
          on_every_grid(world, [&](const AnyGrid& grid) {
            const Lie lie{Map<5>(over_ndhw, grid.shape(), in)};
            check_equal(text(a.str(), " on ", grid.shape()), on_grid<double, reference>(grid, a, lie), want, 1e-11);
          });
        }
  });
}

TEST_CASE("conv: reflect and replicate, by hand") {
  on_ranks({1, 2, 4}, [](const Communicator& world) {
    const AnyGrid grid(world, {fit});
    const auto run = [&](const LayerSpec& spec) { // x = 1, 2, 4, 8
      Alone a = made_of(
          spec, {{1, 1, 4, 1, 1}}, [](const Index<5>& i) { return double(1 << i[2]); }, ones);
      if (a.is_conv()) a.w = {1, 10, 100};
      return on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), {{1, 1, 4, 1, 1}})});
    };
    const Stencil s = window(3, 1, 1).pad(d, 1, 1);
    const auto mirrored = run(conv(1, s.padded_with(Padding::reflect)));
    CHECK(mirrored.y == std::vector<double>{2 + 10 + 200, 1 + 20 + 400, 2 + 40 + 800, 4 + 80 + 400});
    CHECK(mirrored.dx == std::vector<double>{11, 1 + 111, 111 + 100, 110}); // 1 and 2 are read once more outside
    CHECK(mirrored.dw == std::vector<double>{2 + 1 + 2 + 4, 15, 2 + 4 + 8 + 4});
    const auto repeated = run(conv(1, s.padded_with(Padding::replicate)));
    CHECK(repeated.y == std::vector<double>{1 + 10 + 200, 1 + 20 + 400, 2 + 40 + 800, 4 + 80 + 800});
    CHECK(repeated.dx == std::vector<double>{11 + 1, 111, 111, 110 + 100});
    const auto sides = run(conv(1, s.padded_with(d, Padding::replicate, Padding::zeros)));
    CHECK(sides.y == std::vector<double>{1 + 10 + 200, 1 + 20 + 400, 2 + 40 + 800, 4 + 80});
    CHECK(sides.dx == std::vector<double>{12, 111, 111, 110});
    // Stored padding holds values: it can win, and it counts.
    const Stencil two = window(3, 1, 1).pad(d, 2, 2).padded_with(Padding::reflect);
    CHECK(run(max_pool(two)).y == std::vector<double>{4, 2, 4, 8, 8, 8});
    CHECK(run(max_pool(two)).dx == std::vector<double>{0, 1, 2, 3});
    const Stencil zeros_above = s.padded_with(d, Padding::replicate, Padding::zeros);
    CHECK(run(average_pool(zeros_above, PaddingCounts::no)).y == std::vector<double>{4.0 / 3, 7.0 / 3, 14.0 / 3, 6});
    CHECK(run(average_pool(zeros_above)).y == std::vector<double>{4.0 / 3, 7.0 / 3, 14.0 / 3, 4});
  });
}

TEST_CASE("conv: periodic shifts on the same ring of ranks") {
  for (const auto& [weights, want] :
       {std::pair{std::vector<double>{1, 0, 0}, std::vector<double>{7, 0, 1, 2, 3, 4, 5, 6}},
        std::pair{std::vector<double>{0, 0, 1}, std::vector<double>{1, 2, 3, 4, 5, 6, 7, 0}}}) {
    const auto count = [](const Index<5>& i) { return double(i[2]); };
    Alone a = made_of(conv(1, window(3, 1, 1).pad(d, 1, 1).periodic()), {{1, 1, 8, 1, 1}}, count, count);
    a.w = weights;
    on_ranks([&, &want = want](const Communicator& c) {
      const AnyGrid grid(c, {c.size()});
      const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
      CHECK(got.y == want);
      std::vector<double> back(8); // the transposed shift
      for (std::size_t i = 0; i < 8; ++i) back[std::size_t(want[i])] = double(i);
      CHECK(got.dx == back);
    });
  }
}

TEST_CASE("conv: a window larger than the input is refused before anything runs, in the same words on all ranks") {
  const std::string want = "dim d: the window spans 5 (kernel 3, dilation 2) but the input has size 4";
  on_ranks({1, 4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const auto before = c.counters();
    const LayerSpec spec = conv(1, window(3).dilated(2));
    CHECK_THROWS_WITH_AS(output_map(Map<5>(place(d), grid.shape(), {{1, 1, 4, 8, 8}}), spec.stencil, 1),
                         doctest::Contains(want.c_str()), usage_error);
    const std::string told = [&] {
      try {
        NetworkPlan(grid.shape(), describe({conv(2), spec}, {.c = 1, .d = 4, .h = 8, .w = 8}, place(d)), 1);
      } catch (const usage_error& e) { return std::string(e.what()); }
      return std::string();
    }();
    CHECK(told.starts_with("Network: layer 1 (conv), dim d: a window is larger than its padded input; use a smaller "
                           "kernel, fewer poolings or a larger input (needs 5, has 4)"));
    CHECK((c.counters() - before).messages == 0);
  });
}

TEST_CASE("conv: k=4 s=4 on a split w needs no neighbour, and its gradient lies as its input does") {
  static_assert(dual(place(n, w)) == place(n, w));
  static_assert(dual(over_ndhw) == over_ndhw);
  Random random(12);
  const Alone a = alone(random, conv(3, window(4).strided(4)), {{2, 2, 8, 8, 32}});
  const Computed<double> want = by_definition(a);
  on_ranks([&](const Communicator& c) {
    equal_on_every_grid(c, a, want);
    const AnyGrid grid(c, {c.size()});
    const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(w), grid.shape(), a.in, {{1, 1, 1, 1, 4}})});
    check_equal("w", got, want, exact);
    CHECK(got.traffic.forward.messages == 0);
    CHECK(got.traffic.backward.messages == 0);
  });
}

TEST_CASE("max pool: padding never wins, on uneven shards") {
  const auto minus_five = [](const Index<5>&) { return -5.0; };
  const Alone a = made_of(max_pool(window(3).pad(1).strided(2)), {{1, 2, 9, 9, 9}}, minus_five, ones);
  const Computed<double> want = by_definition(a);
  on_ranks([&](const Communicator& c) {
    equal_on_every_grid(c, a, want);
    on_every_grid(c, [&](const AnyGrid& grid) {
      const auto got = on_grid<double, reference>(grid, a, {Map<5>(over_ndhw, grid.shape(), a.in)});
      CHECK(std::ranges::count(got.y, -5.0) == long(got.y.size()));
    });
  });
}

TEST_CASE("max pool: of equal cells the first in the global order has the gradient, on every grid") {
  // Depth 4, window 3, padding 1, all equal: windows start at cells 0, 0, 1, 2.
  const Alone a = made_of(max_pool(window(3, 1, 1).pad(d, 1, 1)), {{1, 1, 4, 1, 1}}, ones, ones);
  on_ranks({1, 2, 3, 4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
    CHECK(got.dx == std::vector<double>{2, 1, 1, 0});
  });
}

TEST_CASE("average pool: the divisor comes from the global window, never from the shard") {
  // Depth 9, window 3, stride 2, padding 1: ends see two cells inside the tensor.
  const auto count = [](const Index<5>& i) { return double(i[2]); };
  const Stencil s = window(3, 1, 1).pad(d, 1, 1).strided(2, 1, 1);
  const Alone counted = made_of(average_pool(s), {{1, 1, 9, 1, 1}}, count, ones);
  const Alone inside = made_of(average_pool(s, PaddingCounts::no), {{1, 1, 9, 1, 1}}, count, ones);
  on_ranks([&](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const auto on = [&](const Alone& a) {
      return on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
    };
    const double t = 1.0 / 3;
    check_equal("counted", on(counted), {{t, 2, 4, 6, 5}, {t, 2 * t, t, 2 * t, t, 2 * t, t, 2 * t, t}, {}, {}}, 1e-15);
    check_equal("not counted", on(inside),
                {{0.5, 2, 4, 6, 7.5}, {0.5, 0.5 + t, t, 2 * t, t, 2 * t, t, 0.5 + t, 0.5}, {}, {}}, 1e-15);
  });
}

TEST_CASE("average pool with ceil(): what lies beyond the padding counts in no divisor") {
  // Depth 6, window 3, stride 2, padding 0 below and 1 above: windows at 0, 2, 4 need no ceil(). Padding 0/0 does: the
  // last window has cells 4 and 5 only. Padding 1/1 and stride 3: windows at -1, 2, 5; the last has cell 5 and a zero.
  const auto count = [](const Index<5>& i) { return double(i[2]); };
  const auto check = [&](const Stencil& s, PaddingCounts counts, const std::vector<double>& want) {
    const Alone a = made_of(average_pool(s, counts), {{1, 1, 6, 1, 1}}, count, ones);
    on_ranks({1, 2, 3, 4}, [&](const Communicator& c) {
      const AnyGrid grid(c, {c.size()});
      const auto got = on_grid<double, reference>(grid, a, {Map<5>(place(d), grid.shape(), a.in)});
      check_equal("ceil", got, by_definition(a), exact);
      CHECK(got.y == want);
    });
  };
  const Stencil plain = window(3, 1, 1).strided(2, 1, 1).ceil(),
                padded = window(3, 1, 1).pad(d, 1, 1).strided(3, 1, 1).ceil();
  check(plain, PaddingCounts::yes, {1, 3, 4.5});
  check(plain, PaddingCounts::no, {1, 3, 4.5});
  check(padded, PaddingCounts::yes, {1.0 / 3, 3, 2.5});
  check(padded, PaddingCounts::no, {0.5, 3, 5});
}

TEST_CASE("pool: uneven extents, padding and activations on every grid") {
  Random random(13);
  const InputActivation leaky{kernel::Activation::leaky_relu, 0.1};
  std::vector<Alone> all;
  for (const Stencil& s : {window(3).pad(1).strided(2), window(2).strided(2), window(3).strided(3), window(2, 3, 1)})
    for (const LayerSpec& spec : {average_pool(s), average_pool(s, PaddingCounts::no), max_pool(s)})
      all.push_back(alone(random, spec, {{2, 2, 9, 7, 6}}, all.size() % 2 ? leaky : InputActivation{}));
  for (const Alone& a : all) {
    const Computed<double> want = by_definition(a);
    on_ranks([&](const Communicator& c) { equal_on_every_grid(c, a, want); });
  }
}
