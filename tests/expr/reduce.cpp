// Reductions: global, replicas once, addends added up, the same on all ranks.
#include "whole.hpp"

#include <cmath>
#include <limits>
#include <tessera/expr/reduce.hpp>

using namespace tessera;
using namespace tessera::names;
using test::numbers, test::on_ranks, test::Whole;

namespace {

/// Whole numbers: every order of summation gives the same.
struct Want {
  double sum = 0, squares = 0, with = 0, most = -1e300, least = 1e300;
};
template <int N> Want want_of(const Whole<N>& a, const Whole<N>& b) {
  Want x;
  for_each_index(whole(a.extents), [&](const Index<N>& i) {
    const double v = a.inside(i);
    x.sum += v, x.squares += v * v, x.with += v * b.inside(i);
    x.most = std::max(x.most, v), x.least = std::min(x.least, v);
  });
  return x;
}

} // namespace

TEST_CASE("reductions: any layout, any grid, empty ranks, replicas") {
  on_ranks([](const Communicator& world) {
    for (const auto& s : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(s));
      const auto check = [&]<class T, Layout L>() {
        const Extents<5> e{{2, 3, 3, 2, 5}};
        DistTensor<T, 5, L> x(grid, e), y(grid, e);
        const auto a = numbers(e), b = numbers(e, 5);
        test::set(x, a);
        test::set(y, b);
        const Want want = want_of(a, b);
        CHECK(double(sum_of(x)) == want.sum);
        CHECK(double(sum_of(2 * x + 1)) == 2 * want.sum + 180);
        CHECK(mean_of(x) == want.sum / 180);
        CHECK(double(dot(x, y)) == want.with);
        CHECK(norm2(x) == std::sqrt(want.squares));
        CHECK(double(max_of(x)) == want.most);
        CHECK(double(min_of(x)) == want.least);
        CHECK(double(max_of(abs(x - x))) == 0);
        const Want moved = want_of(a.shifted(4, 1), b);
        CHECK(double(sum_of(shift<w>(x, 1))) == moved.sum);
        CHECK(double(dot(shift<w>(x, 1), y)) == moved.with);
      };
      check.template operator()<double, place(n, d, w)>();
      check.template operator()<float, place(rep, w, rep)>();
      check.template operator()<int, place(rep, rep, c)>();
      check.template operator()<double, place(rep, rep, rep)>();
    }
  });
}

TEST_CASE("reductions: a pending sum is added up") {
  on_ranks({1, 2, 4}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 1, place(sum)> x(grid, {{3}});
    fill(x, [](const Index<1>& i) { return double(i[0] + 1); });
    CHECK(sum_of(x) == 6 * world.size());
    CHECK(mean_of(2 * x) == 4 * world.size());
  });
}

TEST_CASE("reductions: floats add up in double; the bits do not depend on the rank") {
  on_ranks({1, 2, 3}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<float, 3, place(d)> x(grid, {64, 64, 64});
    fill(x, [](const Index<3>&) { return 0.1F; });
    const double sum = sum_of(x);
    CHECK(sum == doctest::Approx(262144 * double(0.1F)).epsilon(1e-14));
    for (const auto& other : world.all_gather(std::span<const double>(&sum, 1))) CHECK(other[0] == sum);
    static_assert(std::is_same_v<decltype(sum_of(x)), double> && std::is_same_v<decltype(max_of(x)), float>);
  });
}

TEST_CASE("reductions: a NaN on one rank is the extreme on all; no elements, no extreme") {
  on_ranks({1, 2, 3}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 3, place(d)> x(grid, {3, 2, 2}), none(grid, {0, 2, 2});
    fill(x, [](const Index<3>& i) { return i == Index<3>{{0, 1, 0}} ? std::nan("") : double(i[0]); });
    CHECK(std::isnan(max_of(x)));
    CHECK(std::isnan(min_of(x)));
    CHECK(sum_of(none) == 0);
    CHECK(test::all_throw<usage_error>(world, [&] { (void)max_of(none); }).find("no extreme") != std::string::npos);
    CHECK(test::all_throw<usage_error>(world, [&] { (void)mean_of(none); }).find("no elements") != std::string::npos);
  });
}
