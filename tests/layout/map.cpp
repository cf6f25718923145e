// Map: the boxes of the ranks; needed_input: what they read; output_map; errors.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>
#include <set>

using namespace tessera;
using namespace tessera::names;

namespace {

template <int N> void boxes_tile(test::Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const int axes = random.pick(1, 4),
              ranks = std::array{1, 2, 3, 4, 6, 8, 12}[static_cast<std::size_t>(random.in(0, 6))];
    const auto grids = test::factorisations(ranks, axes);
    const GridShape shape =
        test::shape_of(grids[static_cast<std::size_t>(random.in(0, static_cast<long>(grids.size()) - 1))]);
    const Layout layout = test::layout_number<N>(random.in(0, test::number_of_layouts(N, axes) - 1), axes);
    Extents<N> e;
    for (int k = 0; k < N; ++k) e[k] = random.one_in(20) ? 0 : random.in(1, 5);
    const Map<N> m = test::random_map(random, layout, shape, e);
    INFO(layout.str(), " on ", shape.str(), ", extents ", e.str());

    // Each element is held once for every choice of the coordinates of the axes that do not split.
    long copies = 1;
    for (int a = 0; a < axes; ++a)
      if (!layout[a].splits()) copies *= shape.size[static_cast<std::size_t>(a)];
    std::vector<long> held(static_cast<std::size_t>(product(e)), 0);
    for (int r = 0; r < ranks; ++r) {
      const Box<N> b = m.box(r);
      REQUIRE(whole(e).contains(b));
      const auto c = shape.coords(r);
      for_each_index(b, [&](const Index<N>& i) {
        ++held[static_cast<std::size_t>(test::linear(i, e)) - 1];
        const auto holder = test::holders(m, i);
        for (int a = 0; a < axes; ++a)
          if (layout[a].splits()) REQUIRE(holder[static_cast<std::size_t>(a)] == c[static_cast<std::size_t>(a)]);
      });
    }
    REQUIRE(std::ranges::all_of(held, [&](long count) { return count == copies; }));
    for (int k = 0; k < N; ++k) REQUIRE(m.is_split(k) == (Map<N>::parts_of(layout, shape, k) > 1));
  }
}

} // namespace

TEST_CASE("GridShape: the last axis is fastest") {
  const GridShape s = test::shape_of({2, 3, 4});
  CHECK(s.ranks() == 24);
  CHECK(s.str() == "2x3x4");
  int r = 0;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k, ++r) CHECK(s.coords(r) == std::array<int, 6>{i, j, k});
  CHECK(GridShape{}.ranks() == 1);
}

TEST_CASE("the boxes of a map tile the tensor exactly, for random layouts, grids, extents and boundaries") {
  constexpr std::uint64_t seed = 41;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  boxes_tile<1>(random, 300);
  boxes_tile<2>(random, 500);
  boxes_tile<3>(random, 700);
  boxes_tile<4>(random, 700);
  boxes_tile<5>(random, 700);
}

TEST_CASE("several axes that split one dim number its blocks with the last axis fastest") {
  const Map<3> m(place(d, d, h), test::shape_of({2, 3, 1}), {{13, 5, 5}});
  CHECK(m.partition(0).sizes() == std::vector<long>{3, 2, 2, 2, 2, 2});
  for (int r = 0; r < 6; ++r) CHECK(m.part(r, 0) == r);
  const Map<3> crossed(place(d, h, d), test::shape_of({2, 2, 2}), {{4, 2, 1}});
  // Rank 5 is (1,0,1): block 1*2+1 of d, block 0 of h.
  CHECK(crossed.box(5) == Box<3>{{{3, 0, 0}}, {{4, 1, 1}}});
}

TEST_CASE("the quantum of a map") {
  const Map<5> m(place(n, d), test::shape_of({2, 3}), {{3, 2, 17, 9, 9}}, {{1, 1, 4, 1, 1}});
  CHECK(m.partition(0).sizes() == std::vector<long>{2, 1});
  CHECK(m.partition(2).sizes() == std::vector<long>{8, 8, 1});
}

TEST_CASE("maps that make no sense are errors that name what is wrong") {
  const GridShape two = test::shape_of({2, 2});
  CHECK_THROWS_WITH_AS(
      (Map<5>(place(n, d, h), two, {{1, 1, 4, 4, 4}})),
      doctest::Contains("place(n,d,h) places 3 grid axes but the grid 2x2 has 2; give one placement per axis"),
      usage_error);
  CHECK_THROWS_WITH_AS((Map<5>(place(n), two, {{1, 1, 4, 4, 4}})), doctest::Contains("place(n) places 1 grid axes"),
                       usage_error);
  CHECK_THROWS_WITH_AS((Map<3>(place(n, d), two, {{4, 4, 4}})),
                       doctest::Contains("place(n,d) splits a dim that a tensor of rank 3 does not have"), usage_error);
  CHECK_THROWS_AS((Map<3>(place(d, h), two, {{4, -1, 4}})), usage_error);
  const auto parts = [](std::vector<long> d_sizes) {
    return std::array<Partition, 3>{Partition::from_sizes(d_sizes), Partition::balanced(4, 2), Partition(4)};
  };
  CHECK_NOTHROW(Map<3>(place(d, h), two, {{17, 4, 4}}, parts({5, 12})));
  CHECK_THROWS_WITH_AS(
      (Map<3>(place(d, h), two, {{17, 4, 4}}, parts({5, 6, 6}))),
      doctest::Contains("dim d has extent 17 over 2 blocks but its partition has extent 17 in 3 blocks"), usage_error);
  CHECK_THROWS_WITH_AS(
      (Map<3>(place(d, h), two, {{17, 4, 4}}, parts({5, 6}))),
      doctest::Contains("dim d has extent 17 over 2 blocks but its partition has extent 11 in 2 blocks; give "
                        "block sizes that add up"),
      usage_error);
}

TEST_CASE("needed_input is the hull of what the taps touch, clipped where zeros are padded") {
  constexpr std::uint64_t seed = 42;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  int empty = 0, outside = 0;
  constexpr int rounds = 20000;
  for (int round = 0; round < rounds; ++round) {
    Stencil s;
    Extents<5> in{{random.in(1, 3), random.in(1, 3), 0, 0, 0}};
    Box<5> out;
    out.lo[0] = random.in(0, in[0] - 1), out.hi[0] = random.one_in(20) ? out.lo[0] : random.in(out.lo[0] + 1, in[0]);
    out.lo[1] = 0, out.hi[1] = 4;
    Box<5> expected;
    expected.lo[0] = out.lo[0], expected.hi[0] = out.hi[0];
    expected.lo[1] = 0, expected.hi[1] = in[1];
    bool nothing = out.hi[0] == out.lo[0];
    for (int i = 0; i < 3; ++i) {
      Window& x = s[i];
      do {
        in[2 + i] = random.in(1, 12);
        x = {.k = random.pick(1, 5),
             .stride = random.pick(1, 4),
             .dilation = random.pick(1, 3),
             .below = random.pick(0, 4),
             .above = random.pick(0, 4),
             .mode = {test::random_padding(random), test::random_padding(random)}};
      } while (x.output(in[2 + i]) == 0);
      out.lo[2 + i] = random.in(0, x.output(in[2 + i]) - 1);
      out.hi[2 + i] = random.one_in(20) ? out.lo[2 + i] : random.in(out.lo[2 + i] + 1, x.output(in[2 + i]));
      std::set<long> touched;
      for (long q = out.lo[2 + i]; q < out.hi[2 + i]; ++q)
        for (int j = 0; j < x.k; ++j) touched.insert(q * x.stride - x.below + long(j) * x.dilation);
      if (!touched.empty()) {
        // The kernel pads zeros itself, so the part of the reach that lies in the tensor is needed.
        long lo = *touched.begin(), hi = *touched.rbegin() + 1;
        if (x.mode.below == Padding::zeros) lo = std::max(lo, 0L);
        if (x.mode.above == Padding::zeros) hi = std::min(hi, in[2 + i]);
        expected.lo[2 + i] = lo, expected.hi[2 + i] = hi;
        if (hi <= lo) ++outside;
      }
      nothing = nothing || touched.empty() || expected.hi[2 + i] <= expected.lo[2 + i];
    }
    const Box<5> need = needed_input(out, s, in);
    INFO(out.str(), " of ", in.str());
    if (nothing) {
      ++empty;
      REQUIRE(need.empty());
    } else
      REQUIRE(need == expected);
  }
  MESSAGE(rounds, " stencils, ", empty, " with nothing to read, ", outside, " with a dim that reads padding only");
  CHECK(empty > 1000);
  CHECK(outside > 50);
}

TEST_CASE("output_map: layout kept, extents of the output, inherited boundaries, channels balanced anew") {
  const Map<5> in(
      place(c, d), test::shape_of({2, 3}), {{1, 3, 17, 9, 9}},
      {Partition(1), Partition::from_sizes({1, 2}), Partition::from_sizes({5, 6, 6}), Partition(9), Partition(9)});
  const Stencil s = window(5).pad(2).strided(2);
  const Map<5> out = output_map(in, s, 5);
  CHECK(out.layout() == in.layout());
  CHECK(out.extents() == Extents<5>{{1, 5, 9, 5, 5}});
  CHECK(out.partition(1).sizes() == std::vector<long>{3, 2});
  CHECK(out.partition(2).sizes() == std::vector<long>{3, 3, 3}); // 0,2,4 | 6,8,10 | 12,14,16
  CHECK(output_map(in, s, 3).partition(1) == in.partition(1));
  CHECK_THROWS_WITH_AS(output_map(in, window(5).dilated(5), 5), doctest::Contains("dim d: the window spans 21"),
                       usage_error);
}
