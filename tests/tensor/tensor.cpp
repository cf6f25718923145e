// Tensor and DistTensor: blocks, fill, gather, scatter, halos, copies, moves, boundaries, element types.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <cmath>
#include <tessera/tensor/dist_tensor.hpp>
#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using test::on_ranks;

namespace {

/// fill, gather and scatter of random layouts, extents and boundaries on every grid of `axes` axes.
template <class T, int N> void round_trips(const Communicator& world, int axes, test::Random& random, int rounds) {
  for (const auto& sizes : test::factorisations(world.size(), axes)) {
    const AnyGrid grid(world, sizes);
    for (int round = 0; round < rounds; ++round) {
      const Layout layout = test::layout_number<N>(random.in(0, test::number_of_layouts(N, axes) - 1), axes);
      Extents<N> e;
      for (int k = 0; k < N; ++k) e[k] = random.one_in(15) ? 0 : random.in(1, 3);
      const Map<N> map = test::random_map(random, layout, grid.shape(), e);
      Tensor<T, N> x(grid, map);
      long addends = 1;
      for (int a = 0; a < axes; ++a)
        if (layout[a].kind == Placement::Kind::sum) addends *= grid.size(a);

      const auto value = [&](const Index<N>& i) { return static_cast<T>(std::fmod(test::linear(i, e), 100)); };
      std::vector<T> all, sums;
      for_each_index(whole(e), [&](const Index<N>& i) {
        all.push_back(value(i));
        sums.push_back(static_cast<T>(value(i) * static_cast<T>(addends)));
      });
      fill(x, value);
      bool right = x.box() == map.box(world.rank());
      for_each_index(x.box(), [&](const Index<N>& i) { right = right && x.view()[i - x.box().lo] == value(i); });
      right = right && gather(x) == sums;
      Tensor<T, N> y(grid, map);
      scatter(y, all);
      for_each_index(x.box(), [&](const Index<N>& i) { right = right && y.view()[i - x.box().lo] == value(i); });
      CHECK_MESSAGE(right, layout.str(), " on ", grid.shape().str(), ", extents ", e.str(), ", rank ", world.rank());
    }
  }
}

} // namespace

TEST_CASE_TEMPLATE("fill, gather and scatter give every element its global value", T, double, float, std::int16_t,
                   std::uint8_t, std::int64_t) {
  constexpr std::uint64_t seed = 51;
  MESSAGE("seed ", seed);
  on_ranks([](const Communicator& world) {
    test::Random random(seed);
    for (int axes = 1; axes <= 4; ++axes) {
      round_trips<T, 1>(world, axes, random, 2);
      round_trips<T, 2>(world, axes, random, 2);
      round_trips<T, 3>(world, axes, random, 3);
      round_trips<T, 4>(world, axes, random, 3);
      round_trips<T, 5>(world, axes, random, 3);
    }
  });
}

TEST_CASE(
    "reserve makes room, keeps values, clears the halo, works on empty ranks, and costs nothing the second time") {
  on_ranks([](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    // Three planes: from 4 ranks on, some hold nothing.
    DistTensor<double, 5, place(d)> x(grid, {{2, 3, 3, 4, 5}});
    fill(x, [&](const Index<5>& i) { return test::linear(i, x.extents()); });
    Box<5> need = x.box();
    need.lo[2] -= 2, need.hi[2] += 1, need.lo[4] -= 1;
    x.reserve(need);
    CHECK(x.store().contains(need));
    CHECK(x.store().contains(x.box()));
    long wrong = 0;
    for_each_index(x.store(), [&](const Index<5>& i) {
      const double expected = x.box().contains(i) ? test::linear(i, x.extents()) : 0;
      wrong += x.view(x.store())[i - x.store().lo] != expected;
    });
    CHECK(wrong == 0);

    // Another need keeps the room there is.
    Box<5> more = x.box();
    more.hi[3] += 3;
    x.reserve(more);
    CHECK(x.store().contains(need));
    CHECK(x.store().contains(more));
    const double* where = x.data();
    const Box<5> store = x.store();
    x.reserve(need);
    x.reserve(more);
    x.reserve(Box<5>{});
    CHECK(x.data() == where);
    CHECK(x.store() == store);
    wrong = 0;
    for_each_index(x.box(),
                   [&](const Index<5>& i) { wrong += x.view()[i - x.box().lo] != test::linear(i, x.extents()); });
    CHECK(wrong == 0);
  });
}

TEST_CASE("copies are deep, halo included; what was moved from is like new") {
  on_ranks({1, 3}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<float, 3, place(d)> x(grid, {{7, 2, 3}});
    fill(x, [&](const Index<3>& i) { return test::linear(i, x.extents()); });
    Box<3> need = x.box();
    ++need.hi[0];
    x.reserve(need);
    fill_block(x.view(need), 5.0f);

    DistTensor<float, 3, place(d)> copy = x;
    CHECK(copy.data() != x.data());
    CHECK(copy.map() == x.map());
    CHECK(copy.store() == x.store());
    x.view()(0, 0, 0) = -1;
    CHECK(copy.view()(0, 0, 0) == 5);
    CHECK(copy.view(need)(need.extent(0) - 1, 1, 2) == 5);

    const float* where = copy.data();
    DistTensor<float, 3, place(d)> moved = std::move(copy);
    CHECK(moved.data() == where);
    CHECK(moved.box() == x.box());
    // NOLINTBEGIN(bugprone-use-after-move): that is the question
    CHECK(copy.data() == nullptr);
    CHECK(copy.view().empty());
    CHECK(copy.extents() == Extents<3>{});
    const DistTensor<float, 3, place(d)> of_moved = copy;
    CHECK(of_moved.box().empty());
    CHECK(gather(of_moved).empty());
    copy = x;
    CHECK(copy.view()(0, 0, 0) == -1);
    const auto& alias = copy;
    copy = alias;
    CHECK(copy.view()(0, 0, 0) == -1);
    copy = std::move(moved);
    CHECK(copy.data() == where);
    CHECK(copy.view()(0, 0, 0) == 5);
    moved.reserve(Box<3>{});
    fill(moved, [](const Index<3>&) { return 1; });
    // NOLINTEND(bugprone-use-after-move)
  });
}

TEST_CASE("default-constructed tensors are empty and safe") {
  DistTensor<double, 5, place(n, d, h, w)> x;
  CHECK(x.box().empty());
  CHECK(x.view().empty());
  CHECK(x.data() == nullptr);
  CHECK(gather(x).empty());
  fill(x, [](const Index<5>&) { return 1; });
  scatter(x, {});
  x.reserve(x.box());
  auto y = x;
  y = std::move(x);
  x = y;
  CHECK(y.extents() == Extents<5>{});
  const Tensor<int, 2> t;
  CHECK(t.grid().ranks() == 1);
}

TEST_CASE("boundaries given by the user, uneven and empty") {
  on_ranks({3}, [](const Communicator& world) {
    const Grid<2> grid(world, {3, 1});
    const DistTensor<float, 3, place(d, h)> x(
        grid, {{17, 4, 4}}, {Partition::from_sizes({5, 0, 12}), Partition::from_sizes({4}), Partition(4)});
    const std::array<Interval, 3> expected{Interval{0, 5}, Interval{5, 5}, Interval{5, 17}};
    const Interval mine = expected[static_cast<std::size_t>(world.rank())];
    CHECK(x.box() == Box<3>{{{mine.lo, 0, 0}}, {{mine.hi, 4, 4}}});
    const std::string told = test::all_throw<usage_error>(world, [&] {
      DistTensor<float, 3, place(d, h)>(grid, {{17, 4, 4}},
                                        {Partition::from_sizes({5, 12}), Partition(4), Partition(4)});
    });
    CHECK(told.starts_with("dim d has extent 17 over 3 blocks but its partition has extent 17 in 2 blocks"));
  });
}

TEST_CASE("memory of somebody else: used in place, copied deeply, checked") {
  on_ranks({2}, [](const Communicator& world) {
    const Grid<1> grid(world, {2});
    const Map<2> map(place(n), grid.shape(), {{4, 3}});
    Box<2> store = map.box(world.rank());
    ++store.hi[0];
    std::vector<int> memory(static_cast<std::size_t>(store.volume()), 9);
    Tensor<int, 2> x(grid, map, store, memory.data());
    fill(x, [](const Index<2>& i) { return static_cast<int>(10 * i[0] + i[1]); });
    CHECK(memory[4] == 20 * world.rank() + 11);
    CHECK(memory[6] == 9);
    Tensor<int, 2> copy = x;
    memory[4] = 0;
    CHECK(copy.view()(1, 1) == 20 * world.rank() + 11);
    CHECK(copy.data()[6] == 9);
    const Tensor<int, 2> moved = std::move(x);
    CHECK(moved.data() == memory.data());
    Box<2> small = map.box(world.rank());
    --small.hi[0];
    CHECK_THROWS_WITH_AS((Tensor<int, 2>(grid, map, small, memory.data())),
                         doctest::Contains("the block must contain it"), usage_error);
  });
}

TEST_CASE("misuse throws the same text on every rank") {
  on_ranks({4}, [](const Communicator& world) {
    const Grid<2> grid(world, {2, 2}), other(world, {1, 4});
    const Map<2> map(place(n, c), other.shape(), {{4, 4}});
    CHECK(
        test::all_throw<usage_error>(world, [&] {
          Tensor<int, 2>(grid, map);
        }).starts_with("Tensor: its map was made for a grid 1x4 but the grid is 2x2; make the map with grid.shape()"));
    Tensor<int, 2> x(other, map);
    CHECK(test::all_throw<usage_error>(world, [&] {
            scatter(x, std::vector<int>(15));
          }).starts_with("scatter: 15 elements given for a tensor of 4x4; give all of them, row-major"));
    CHECK(test::all_throw<usage_error>(world, [&] {
            DistTensor<int, 2, place(c, n)> y(x);
          }).starts_with("DistTensor place(c,n) made from a tensor of place(n,c)"));
    CHECK(test::all_throw<usage_error>(world, [&] {
            DistTensor<int, 2, place(c, n)> y(grid, {{-1, 3}});
          }).find("extent -1") != std::string::npos);
  });
}
