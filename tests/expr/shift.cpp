// Shifts against whole arrays on every grid: paddings, hops, empty ranks, nesting, second buffers, traffic, errors.
#include "whole.hpp"

#include <tessera/expr/evaluate.hpp>

using namespace tessera;
using namespace tessera::names;
using test::numbers, test::on_ranks, test::Whole;

namespace {

constexpr Layout cube = place(d, h, w);
using Field = DistTensor<double, 3, cube>;

/// Calls f(grid) for every 3D grid of these ranks.
template <class F> void on_grids(const Communicator& world, const F& f) {
  for (const auto& s : test::factorisations(world.size(), 3)) f(Grid<3>(world, test::sizes_of(s)));
}

Whole<3> laplace(const Whole<3>& u, Padding mode) {
  Whole<3> sum = -6.0 * u;
  for (int k = 0; k < 3; ++k) sum = sum + u.shifted(k, 1, mode) + u.shifted(k, -1, mode);
  return sum;
}
auto laplace(const Field& u, Padding mode) {
  return shift<d>(u, +1, mode) + shift<d>(u, -1, mode) + shift<h>(u, +1, mode) + shift<h>(u, -1, mode) +
         shift<w>(u, +1, mode) + shift<w>(u, -1, mode) - 6 * u;
}

std::uint64_t allocations(const Communicator& world) {
  world.barrier();
  const auto count = allocation_counter().allocations.load();
  world.barrier();
  return count;
}

} // namespace

TEST_CASE("shift: neighbours in each dim, zeros and periodic, every grid") {
  for (const Extents<3>& e : {Extents<3>{{7, 6, 5}}, Extents<3>{{3, 2, 9}}, Extents<3>{{1, 1, 4}}})
    on_ranks([&](const Communicator& world) {
      on_grids(world, [&](const Grid<3>& grid) {
        Field u(grid, e), v(grid, e);
        const auto a = numbers(e);
        test::set(u, a);
        for (const Padding mode : {Padding::zeros, Padding::periodic}) {
          v = laplace(u, mode);
          CHECK(test::difference(v, laplace(a, mode)) == 0);
          v = shift<d>(u, +2, mode) - shift<d>(u, -3, mode) + 5 * shift<w>(u, 4, mode); // several hops
          CHECK(test::difference(v, a.shifted(0, 2, mode) + -1.0 * a.shifted(0, -3, mode) +
                                        5.0 * a.shifted(2, 4, mode)) == 0);
          v = shift<d>(shift<h>(shift<w>(u, -1, mode), 2, mode), 1, mode); // a corner
          CHECK(test::difference(v, a.shifted(2, -1, mode).shifted(1, 2, mode).shifted(0, 1, mode)) == 0);
        }
        v = shift<d>(u, 20); // beyond the tensor
        CHECK(test::difference(v, 0.0 * a) == 0);
        v = shift<h>(u, -13, Padding::periodic); // more than once around
        CHECK(test::difference(v, a.shifted(1, -13, Padding::periodic)) == 0);
        v = shift<d>(u, 1, Padding::periodic) + shift<h>(u, 1); // each dim its own padding
        CHECK(test::difference(v, a.shifted(0, 1, Padding::periodic) + a.shifted(1, 1)) == 0);
        CHECK(test::difference(u, a) == 0);
      });
    });
}

TEST_CASE("shift: reflect and replicate, several hops, corners, of expressions, every grid") {
  for (const Extents<3>& e : {Extents<3>{{7, 6, 5}}, Extents<3>{{4, 2, 9}}})
    on_ranks([&](const Communicator& world) {
      on_grids(world, [&](const Grid<3>& grid) {
        Field u(grid, e), v(grid, e);
        const auto a = numbers(e), b = numbers(e, 17);
        const Whole<3> one{e, [](const Index<3>&) { return 1.0; }};
        test::set(u, a);
        for (const Padding mode : {Padding::reflect, Padding::replicate}) {
          v = laplace(u, mode);
          CHECK(test::difference(v, laplace(a, mode)) == 0);
          v = shift<d>(u, +2, mode) - shift<d>(u, -3, mode) + 5 * shift<w>(u, 4, mode);
          CHECK(test::difference(v, a.shifted(0, 2, mode) + -1.0 * a.shifted(0, -3, mode) +
                                        5.0 * a.shifted(2, 4, mode)) == 0);
          v = shift<d>(shift<h>(shift<w>(u, -1, mode), 1, mode), 3, mode); // a corner
          CHECK(test::difference(v, a.shifted(2, -1, mode).shifted(1, 1, mode).shifted(0, 3, mode)) == 0);
          test::set(v, b);
          v = shift<d>(u + 1, 2, mode) + shift<w>(2 * u + v, -1, mode) + shift<d>(shift<h>(u + 1, 1), -1, mode);
          CHECK(test::difference(v, (a + one).shifted(0, 2, mode) + (2.0 * a + b).shifted(2, -1, mode) +
                                        (a + one).shifted(1, 1).shifted(0, -1, mode)) == 0);
        }
        v = shift<h>(u, -13, Padding::replicate); // beyond the tensor
        CHECK(test::difference(v, a.shifted(1, -13, Padding::replicate)) == 0);
        v = shift<d>(u, 1, Padding::reflect) + shift<h>(u, -1, Padding::replicate) + shift<w>(u, 2); // each dim its own
        CHECK(test::difference(v, a.shifted(0, 1, Padding::reflect) + a.shifted(1, -1, Padding::replicate) +
                                      a.shifted(2, 2)) == 0);
        u = u + laplace(u, Padding::reflect); // into itself
        CHECK(test::difference(u, a + laplace(a, Padding::reflect)) == 0);
      });
    });
}

TEST_CASE("shift: of expressions, and back again: outside counts as zero, whatever the expression is there") {
  const Extents<3> e{{5, 4, 6}};
  on_ranks([&](const Communicator& world) {
    on_grids(world, [&](const Grid<3>& grid) {
      Field u(grid, e), v(grid, e), y(grid, e);
      const auto a = numbers(e), b = numbers(e, 17);
      test::set(u, a);
      test::set(v, b);
      const Whole<3> one{e, [](const Index<3>&) { return 1.0; }};
      y = shift<d>(u + 1, 2) + shift<w>(2 * u + v, -1);
      CHECK(test::difference(y, (a + one).shifted(0, 2) + (2.0 * a + b).shifted(2, -1)) == 0);
      y = shift<d>(shift<d>(u, 1), -1); // loses the first plane
      CHECK(test::difference(y, a.shifted(0, 1).shifted(0, -1)) == 0);
      y = shift<w>(shift<w>(u + 1, -2) + v, 2);
      CHECK(test::difference(y, ((a + one).shifted(2, -2) + b).shifted(2, 2)) == 0);
      y = shift<h>(shift<h>(u + 1, -3, Padding::periodic) + v, 2, Padding::periodic);
      CHECK(test::difference(y, ((a + one).shifted(1, -3, Padding::periodic) + b).shifted(1, 2, Padding::periodic)) ==
            0);
      u = shift<d>(u + 1, 1) - shift<h>(u, 1);
      CHECK(test::difference(u, (a + one).shifted(0, 1) + -1.0 * a.shifted(1, 1)) == 0);
    });
  });
}

TEST_CASE("shift: of samples and channels, with a bias") {
  const Extents<5> e{{3, 4, 2, 3, 3}};
  on_ranks([&](const Communicator& world) {
    for (const auto& s : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(s));
      DistTensor<double, 5, place(n, c, w)> u(grid, e), y(grid, e);
      DistTensor<double, 1, place(rep, rep, rep)> bias(grid, {{4}});
      fill(bias, [](const Index<1>& i) { return double(i[0] * i[0] + 1); });
      const auto a = numbers(e);
      test::set(u, a);
      const Whole<5> b{e, [](const Index<5>& i) { return double(i[1] * i[1] + 1); }};
      for (const Padding mode : {Padding::zeros, Padding::periodic, Padding::reflect, Padding::replicate}) {
        y = shift<c>(u, 1, mode) + shift<n>(u, -1, mode) + bias;
        CHECK(test::difference(y, a.shifted(1, 1, mode) + a.shifted(0, -1, mode) + b) == 0);
        y = shift<c>(u + bias, -2, mode) + shift<w>(u + 2 * bias, 1, mode);
        CHECK(test::difference(y, (a + b).shifted(1, -2, mode) + (a + 2.0 * b).shifted(4, 1, mode)) == 0);
        y = u + shift<c>(bias, 1, mode);
        CHECK(test::difference(y, a + b.shifted(1, 1, mode)) == 0);
      }
    }
  });
}

TEST_CASE("shift: a tensor assigned to itself, step after step, without an allocation from the third on") {
  const Extents<3> e{{6, 5, 7}};
  on_ranks([&](const Communicator& world) {
    on_grids(world, [&](const Grid<3>& grid) {
      Field u(grid, e);
      auto a = numbers(e).stored();
      test::set(u, a);
      std::uint64_t before = 0;
      for (int step = 0; step < 4; ++step) {
        if (step == 2) before = allocations(world);
        u = u + laplace(u, Padding::zeros);
        if (step < 3) a = (a + laplace(a, Padding::zeros)).stored();
      }
      CHECK(allocations(world) == before);
      CHECK(test::difference(u, (a + laplace(a, Padding::zeros))) == 0);
    });
  });
}

TEST_CASE("shift: memory of somebody else keeps its place") {
  on_ranks({1, 2}, [](const Communicator& world) {
    const Extents<3> e{{6, 2, 3}};
    const Grid<1> grid(world, {fit});
    const Map<3> map(place(d), grid.shape(), e);
    const Box<3> box = map.box(world.rank());
    std::vector<double> mine(std::size_t(box.volume()), 7.0);
    Box<3> room = box; // foreign memory that is not zero where the halo lies
    room.lo[0] -= 1, room.hi[0] += 1;
    std::vector<double> roomy(std::size_t(room.volume()), 99.0);
    DistTensor<double, 3, place(d)> u(Tensor<double, 3>(grid, map, room, roomy.data()));
    const auto a = numbers(e);
    test::set(u, a);
    u = shift<d>(u, 1) + shift<d>(u, -1);
    CHECK(u.data() == roomy.data());
    CHECK(test::difference(u, a.shifted(0, 1) + a.shifted(0, -1)) == 0);
  });
}

TEST_CASE("shift: zeros after wrapping around, and of a const tensor") {
  const Extents<3> e{{4, 4, 4}};
  on_ranks({1, 2, 4}, [&](const Communicator& world) {
    on_grids(world, [&](const Grid<3>& grid) {
      Field u(grid, e), v;
      const auto a = numbers(e);
      test::set(u, a);
      const Field& same = u;
      v = laplace(same, Padding::periodic);
      v = laplace(same, Padding::zeros);
      CHECK(test::difference(v, laplace(a, Padding::zeros)) == 0);
    });
  });
}

TEST_CASE("shift: 0..7 turned by one, on 1, 2, 3, 4 and 8 ranks") {
  on_ranks({1, 2, 3, 4, 8}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 3, place(w)> x(grid, {1, 1, 8}), y;
    fill(x, [](const Index<3>& i) { return double(i[2]); });
    y = shift<w>(x, -1, Padding::periodic);
    CHECK(gather(y) == std::vector<double>{7, 0, 1, 2, 3, 4, 5, 6});
    y = shift<w>(x, +1, Padding::periodic);
    CHECK(gather(y) == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 0});
  });
}

TEST_CASE("shift: a star stencil talks across faces only, one message each, however often the tensor is named") {
  on_ranks({8}, [](const Communicator& world) {
    const Grid<3> grid(world, {2, 2, 2});
    Field u(grid, {8, 8, 8}), v(grid, {8, 8, 8});
    const auto sent = [&](const auto& assign) {
      const auto before = world.counters();
      assign();
      return world.counters() - before;
    };
    const comm::Counters star = sent([&] { v = laplace(u, Padding::zeros); });
    CHECK(star.messages == 3);
    CHECK(star.bytes == 3 * 16 * sizeof(double));
    CHECK(star.collectives == 0);
    CHECK(sent([&] { v = shift<d>(shift<h>(shift<w>(u, 1), 1), 1); }).messages <= 7);
    CHECK(sent([&] { v = u + 2 * v; }) == comm::Counters{});
    const comm::Counters one_way = sent([&] { v = shift<d>(u, 1); });
    CHECK(one_way.messages == (grid.coord(0) == 1 ? 1 : 0));
  });
}

TEST_CASE("shift: replicas exchange among themselves") {
  on_ranks({4, 6}, [](const Communicator& world) {
    const Grid<2> grid(world, {2, fit});
    DistTensor<float, 3, place(rep, h)> u(grid, {3, 7, 2}), v;
    const auto a = numbers(Extents<3>{{3, 7, 2}});
    test::set(u, a);
    v = shift<h>(u, 3) + shift<d>(u, 1);
    CHECK(test::difference(v, a.shifted(1, 3) + a.shifted(0, 1)) == 0);
  });
}

TEST_CASE("expressions: errors are the same on all ranks and name both tensors") {
  on_ranks({1, 2, 4}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    using X = DistTensor<double, 3, place(d)>;
    X x(grid, {8, 2, 2}), y(grid, {8, 2, 3}), z;
    const auto told = [&](const auto& f) { return test::all_throw<usage_error>(world, f); };
    CHECK(told([&] { z = x + y; }).find("extents 8x2x2 and 8x2x3; they must be equal") != std::string::npos);
    CHECK(told([&] { y = 2 * x; }).find("extents 8x2x3 and 8x2x2") != std::string::npos);
    if (world.size() == 2) {
      X uneven(grid, {8, 2, 2}, {Partition::from_sizes({3, 5}), Partition(2), Partition(2)});
      const std::string text = told([&] { z = x + uneven; });
      CHECK(text.find("blocks of dim d: 4,4 and 3,5; assign one to a tensor with the other's blocks first") !=
            std::string::npos);
    }
    CHECK(
        told([&] { z = shift<d>(x, 1) + shift<d>(x, 1, Padding::periodic); })
            .find("dim d of one tensor is shifted with several kinds of padding; assign one of the shifts to a tensor "
                  "first") != std::string::npos);
    for (const Padding mode : {Padding::reflect, Padding::replicate})
      CHECK(
          told([&] { z = shift<d>(2 * shift<d>(x, 1, mode), -1, mode); })
              .find("a shift along dim d inside another with Padding::reflect or Padding::replicate; assign the inner "
                    "one to a tensor first") != std::string::npos);
    CHECK(told([&] { z = shift<h>(x, -2, Padding::reflect); })
              .find("dim h of extent 2 is shifted by 2 with Padding::reflect; shift by at most extent - 1, or use "
                    "Padding::replicate") != std::string::npos);
  });
}
