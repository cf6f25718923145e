// Grid: sizes, coordinates, groups of axes; errors are the same on every rank.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <tessera/tensor/grid.hpp>

using namespace tessera;
using test::on_ranks;

TEST_CASE("over(mask) is the group of the axes in mask, in grid order, for every grid of up to 4 axes and every mask") {
  on_ranks([](const Communicator& world) {
    for (int axes = 1; axes <= 4; ++axes)
      for (const auto& sizes : test::factorisations(world.size(), axes)) {
        const AnyGrid grid(world, sizes);
        bool right = grid.ranks() == world.size() && grid.rank() == world.rank() && grid.axes() == axes;
        const auto mine = grid.shape().coords(world.rank());
        for (int a = 0; a < axes; ++a)
          right = right && grid.coord(a) == mine[static_cast<std::size_t>(a)] &&
                  grid.size(a) == sizes[static_cast<std::size_t>(a)];
        for (unsigned mask = 0; mask < 1u << axes; ++mask) {
          const Communicator& group = grid.over(mask);
          std::vector<int> expected;
          for (int r = 0; r < world.size(); ++r) {
            const auto theirs = grid.shape().coords(r);
            bool member = true;
            for (int a = 0; a < axes; ++a)
              if (!(mask >> a & 1u))
                member = member && theirs[static_cast<std::size_t>(a)] == mine[static_cast<std::size_t>(a)];
            if (member) expected.push_back(r);
          }
          const int me = world.rank();
          std::vector<int> found;
          for (const auto& one : group.all_gather(std::span<const int>(&me, 1))) found.push_back(one.at(0));
          right = right && found == expected && &grid.over(mask) == &group;
        }
        for (int a = 0; a < axes; ++a) right = right && &grid.along(a) == &grid.over(1u << a);
        CHECK_MESSAGE(right, "grid ", grid.shape().str(), ", rank ", world.rank());
      }
  });
}

TEST_CASE("fit takes the ranks that are left over") {
  on_ranks([](const Communicator& world) {
    CHECK(Grid<1>(world, {fit}).size(0) == world.size());
    CHECK(Grid<3>(world, {1, fit, 1}).shape().str() == text("1x", world.size(), "x1"));
    if (world.size() % 2 == 0) CHECK(Grid<2>(world, {fit, 2}).size(0) == world.size() / 2);
    CHECK(Grid<2>(world, {world.size(), fit}).size(1) == 1);
  });
}

TEST_CASE("grids that do not fit throw the same usage_error on every rank") {
  on_ranks({1, 4}, [](const Communicator& world) {
    const auto told = [&](const std::vector<int>& sizes) {
      return test::all_throw<usage_error>(world, [&] { AnyGrid(world, sizes); });
    };
    if (world.size() == 4) {
      CHECK(told({2, 3}).starts_with("Grid 2x3 needs 6 ranks but 4 run; start 6 (mpirun -n 6) or change the sizes"));
      CHECK(told({3, fit}).starts_with("Grid 3xfit: 4 ranks are not a multiple of 3; start a multiple of 3 ranks"));
      CHECK(told({8, fit}).starts_with("Grid 8xfit: 4 ranks are not a multiple of 8"));
      CHECK(told({1, 1}).starts_with("Grid 1x1 needs 1 rank but 4 run"));
    } else {
      CHECK(told({2}).starts_with("Grid 2 needs 2 ranks but 1 runs; start 2 (mpirun -n 2)"));
      CHECK(told({2, fit}).starts_with("Grid 2xfit: 1 rank is not a multiple of 2"));
    }
    CHECK(told({2, 0, 3}).starts_with("Grid 2x0x3: sizes must be at least 1, and at most one axis may be `fit`"));
    CHECK(told({fit, fit}).starts_with("Grid fitxfit: sizes must be at least 1"));
    CHECK(told({-2}).starts_with("Grid -2: sizes"));
    CHECK(told({1, 1, 1, 1, 1, 1, 1}).starts_with("Grid: 7 axes; at most 6"));
    // Products that do not fit into an int, or into 64 bits.
    CHECK(told({65536, 65536}).starts_with("Grid 65536x65536 needs 4294967296 ranks"));
    CHECK(told({65536, 65536, fit}).find("not a multiple of 4294967296") != std::string::npos);
    CHECK(
        told({2000000000, 2000000000, 2000000000, 2000000000, 2000000000, 2000000000}).starts_with("Grid 2000000000x"));
  });
}

TEST_CASE("grids are values: copies share the groups, other grids are others") {
  on_ranks({4}, [](const Communicator& world) {
    const Grid<2> a(world, {2, 2});
    const AnyGrid copy = a;
    CHECK(copy == a);
    CHECK(&copy.along(0) == &a.along(0));
    CHECK_FALSE(AnyGrid(world, {2, 2}) == a);
    CHECK(&a.over(0b11) == &a.over(0b1111)); // axes that do not exist add nobody
    CHECK(a.over(0b11) == world);            // no new group for all ranks
    const comm::Counters before = world.counters();
    a.along(0), a.along(1), a.over(0b11);
    const comm::Counters used = world.counters() - before;
    CHECK(used.messages == 0);
    a.along(0), a.along(1);
    CHECK((world.counters() - before) == used);
  });
}

TEST_CASE("a default-constructed grid is one rank without axes") {
  const AnyGrid grid;
  CHECK(grid.ranks() == 1);
  CHECK(grid.axes() == 0);
  CHECK(grid.rank() == 0);
  CHECK(grid.over(0).size() == 1);
}
