// Partition: balanced, given, inherited.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>

using namespace tessera;

TEST_CASE("balanced blocks: they tile the extent, boundaries are multiples of the quantum, the first are the larger") {
  CHECK(Partition::balanced(17, 3).sizes() == std::vector<long>{6, 6, 5});
  CHECK(Partition::balanced(17, 20).sizes() == [] {
    std::vector<long> s(20, 0);
    std::fill_n(s.begin(), 17, 1);
    return s;
  }());
  CHECK(Partition::balanced(12, 4, 4).sizes() == std::vector<long>{4, 4, 4, 0});
  CHECK(Partition::balanced(17, 3, 4).sizes() == std::vector<long>{8, 8, 1});
  long cases = 0;
  for (long extent = 0; extent <= 40; ++extent)
    for (int parts = 1; parts <= 9; ++parts)
      for (const long quantum : {1L, 2L, 3L, 4L, 8L}) {
        ++cases;
        const Partition p = Partition::balanced(extent, parts, quantum);
        INFO("extent ", extent, ", ", parts, " parts, quantum ", quantum);
        REQUIRE(p.parts() == parts);
        REQUIRE(p.extent() == extent);
        long at = 0, most = 0, units_most = 0, units_least = 1000, before = 1000;
        bool empty = false;
        for (int b = 0; b < parts; ++b) {
          REQUIRE(p[b].lo == at);
          at = p[b].hi;
          REQUIRE((at % quantum == 0 || at == extent));
          const long units = (p[b].size() + quantum - 1) / quantum;
          units_most = std::max(units_most, units), units_least = std::min(units_least, units);
          REQUIRE(p[b].size() <= before);
          before = p[b].size();
          most = std::max(most, before);
          empty = empty || before == 0;
        }
        REQUIRE(at == extent);
        REQUIRE(units_most - units_least <= 1);
        REQUIRE(p.largest() == most);
        REQUIRE(p.any_empty() == empty);
      }
  MESSAGE(cases, " cases");
}

TEST_CASE("given blocks and faulty ones") {
  const Partition p = Partition::from_sizes({5, 0, 6, 6});
  CHECK(p.extent() == 17);
  CHECK(p.parts() == 4);
  CHECK(p[1].empty());
  CHECK(p[2] == Interval{5, 11});
  CHECK(p.sizes() == std::vector<long>{5, 0, 6, 6});
  CHECK(p == Partition::from_sizes({5, 0, 6, 6}));
  CHECK_FALSE(p == Partition::from_sizes({5, 1, 5, 6}));
  CHECK(Partition().extent() == 0);
  CHECK(Partition(9).sizes() == std::vector<long>{9});
  CHECK_THROWS_WITH_AS(Partition::from_sizes({}), doctest::Contains("no block sizes given; give one for each rank"),
                       usage_error);
  CHECK_THROWS_WITH_AS(Partition::from_sizes({3, -1}), doctest::Contains("block size -1; sizes must not be negative"),
                       usage_error);
  CHECK_THROWS_WITH_AS(Partition::balanced(4, 0), doctest::Contains("extent 4, 0 parts, quantum 1"), usage_error);
  CHECK_THROWS_AS(Partition::balanced(-1, 1), usage_error);
  CHECK_THROWS_AS(Partition::balanced(4, 2, 0), usage_error);
}

TEST_CASE("inherited: output q belongs to the holder of input q*stride, what padding adds to the last block") {
  constexpr std::uint64_t seed = 31;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  int empty = 0, added = 0;
  for (int round = 0; round < 5000; ++round) {
    const long extent = random.in(1, 30);
    const int parts = random.pick(1, 6);
    const Partition in = test::random_partition(random, extent, parts);
    const Window x{.k = random.pick(1, 5),
                   .stride = random.pick(1, 4),
                   .dilation = random.pick(1, 3),
                   .below = random.pick(0, 4),
                   .above = random.pick(0, 4)};
    const Partition out = in.inherited(x);
    INFO("extent ", extent, ", k ", x.k, ", stride ", x.stride, ", dilation ", x.dilation, ", padding ", x.below, "/",
         x.above);
    REQUIRE(out.parts() == parts);
    REQUIRE(out.extent() == x.output(extent));
    std::vector<long> counted(static_cast<std::size_t>(parts), 0);
    for (long q = 0; q < x.output(extent); ++q) {
      int holder = parts - 1;
      for (int p = 0; p < parts; ++p)
        if (q * x.stride >= in[p].lo && q * x.stride < in[p].hi) holder = p;
      ++counted[static_cast<std::size_t>(holder)];
      REQUIRE(q >= out[holder].lo);
      REQUIRE(q < out[holder].hi);
      added += q * x.stride >= extent;
    }
    REQUIRE(out.sizes() == counted);
    empty += in.any_empty();
  }
  CHECK(empty > 500);
  CHECK(added > 500);
}
