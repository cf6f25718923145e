// Exchanges of device memory equal those of host memory bit by bit: halos, redistributions, their adjoints, repeated.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <tessera/move/redistribute.hpp>
#include <tessera/space/emulated.hpp>
#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using test::on_ranks;
using test::Random;

namespace {

using Here = Tensor<double, 5>;
using There = Tensor<double, 5, emulated_device>;

/// Whole numbers, other ones on every rank: sums are exact in any order.
void fill_random(Here& x, There& y, Random& random, int rank) {
  fill(x, [&](const Index<5>&) { return double(random.in(-9, 9) * (rank + 1)); });
  copy(x, y);
}
/// Everything in the block, the halo too.
template <class A> std::vector<double> block(const A& x) {
  return read_back<typename A::space>(std::span(x.data(), std::size_t(x.store().volume())));
}

Layout random_layout(Random& random, int axes) {
  constexpr Dim dims[] = {Dim::n, Dim::d, Dim::h, Dim::w, Dim::d};
  Layout l;
  l.axes = axes;
  for (int a = 0; a < axes; ++a)
    l[a] = random.one_in(4) ? Placement(Placement::Kind::rep) : Placement(dims[random.pick(0, 4)]);
  return l;
}
AnyGrid random_grid(const Communicator& c, Random& random, int axes) {
  const auto ways = test::factorisations(c.size(), axes);
  return {c, ways[std::size_t(random.in(0, long(ways.size()) - 1))]};
}

} // namespace

TEST_CASE("halos of device memory and their adjoints equal the host's") {
  on_ranks({1, 2, 3, 4}, [](const Communicator& c) {
    Random random(std::uint64_t(31 + c.size()));
    for (int k = 0; k < 25; ++k) {
      const int axes = random.pick(1, 3);
      const AnyGrid grid = random_grid(c, random, axes);
      Extents<5> e{{random.in(1, 2), random.in(1, 3), 1, 1, 1}};
      Stencil s;
      for (int i = 0; i < 3; ++i) {
        s[i].k = random.pick(1, 4), s[i].stride = random.pick(1, 2);
        e[2 + i] = random.in(2, 8);
        s[i].below = random.pick(0, 2), s[i].above = random.pick(0, 2);
        if (random.one_in(3)) s[i].mode = Padding::periodic;
        while (s[i].output(e[2 + i]) < 1) ++e[2 + i];
      }
      const Map<5> map = test::random_map<5>(random, random_layout(random, axes), grid.shape(), e);
      Here x(grid, map);
      There y(grid, map);
      Halo<double, 5> here(x, s);
      Halo<double, 5, emulated_device> there(y, s);
      CHECK(here.traffic() == there.traffic());
      here.reserve(x), there.reserve(y);
      for (int again = 0; again < 3; ++again) {
        Random own(std::uint64_t(1000 * k + again));
        fill_random(x, y, own, c.rank());
        here.start(x), there.start(y);
        there.poke();
        here.finish(), there.finish();
        CHECK(block(x) == block(y));
        here.run_adjoint(x), there.run_adjoint(y);
        CHECK(block(x) == block(y));
      }
    }
  });
}

TEST_CASE("redistributions of device memory and their adjoints equal the host's") {
  on_ranks({1, 2, 3, 4}, [](const Communicator& c) {
    Random random(std::uint64_t(71 + c.size()));
    int done = 0;
    while (done < 30) {
      const int axes = random.pick(1, 2);
      const AnyGrid grid = random_grid(c, random, axes);
      const long number = test::number_of_layouts(5, axes);
      const Layout a = test::layout_number<5>(random.in(0, number - 1), axes),
                   b = test::layout_number<5>(random.in(0, number - 1), axes);
      if (!movable(a, b)) continue;
      const Extents<5> e{{random.in(1, 3), random.in(1, 3), random.in(1, 4), random.in(1, 4), random.in(1, 4)}};
      const Map<5> from = test::random_map<5>(random, a, grid.shape(), e),
                   to = test::random_map<5>(random, b, grid.shape(), e);
      Here x(grid, from), y(grid, to);
      There dx(grid, from), dy(grid, to);
      Redistribution<double, 5> here(grid, from, to);
      Redistribution<double, 5, emulated_device> there(grid, from, to);
      for (int again = 0; again < 2; ++again) {
        Random own(std::uint64_t(1000 * done + again));
        fill_random(x, dx, own, c.rank());
        here.run(x, y), there.run(dx, dy);
        CHECK_MESSAGE(block(y) == block(dy), a.str(), " -> ", b.str(), " on ", grid.shape().str());
        here.run_adjoint(y, x), there.run_adjoint(dy, dx);
        CHECK_MESSAGE(block(x) == block(dx), a.str(), " -> ", b.str(), " on ", grid.shape().str());
      }
      ++done;
    }
  });
}

TEST_CASE("assignment between layouts redistributes on the device") {
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    Grid<2> grid(c, {c.size(), 1});
    DistTensor<double, 5, place(d, n), emulated_device> x(grid, {{3, 2, 7, 4, 5}});
    fill(x, [&](const Index<5>& i) { return test::linear(i, x.extents()); });
    DistTensor<double, 5, place(w, h), emulated_device> y;
    y = x;
    CHECK(gather(y) == gather(x));
    DistTensor<double, 5, place(rep, rep), emulated_device> z;
    z = y;
    CHECK(gather(z) == gather(x));
  });
}
