// Transposed convolution by hand: published lengths and values, what it moves, and that it is an adjoint.
#include "alone.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {
std::vector<double> ones(long n) { return std::vector<double>(std::size_t(n), 1.0); }

Alone ones_along_depth(const LayerSpec& spec, long depth) {
  Alone a{spec, {}, {{1, 1, depth, 1, 1}}, {}, {}, {}, {}};
  a.x = ones(depth), a.dy = ones(product(a.out())), a.w = ones(product(a.weights()));
  return a;
}
constexpr Stencil depth3 = window(3, 1, 1).strided(2, 1, 1).pad(Dim::d, 1, 1);
} // namespace

TEST_CASE("transposed: kernel 3, stride 2, padding 1, output padding 1 on five ones") {
  const Alone a = ones_along_depth(conv_transpose(1, depth3, {{1, 0, 0}}), 5);
  on_ranks([&](const Communicator& c) {
    const auto got = on_grid<double, reference>(AnyGrid(c, {1, c.size(), 1, 1}), a,
                                                {Map<5>(over_ndhw, {4, {1, c.size(), 1, 1}}, a.in)});
    CHECK(got.y == std::vector<double>{1, 2, 1, 2, 1, 2, 1, 2, 1, 1});
    CHECK(got.dx == std::vector<double>{2, 3, 3, 3, 3});
    CHECK(got.dw == std::vector<double>{4, 5, 5});
  });
}

TEST_CASE("transposed: equal to the adjoint of the matching convolution, whatever the grid") {
  // <conv(y'), x> = <y', conv_transpose(x)> with one set of weights.
  Random random(11);
  const Stencil s = window(4, 3, 2).strided(2, 1, 3).pad(Dim::d, 1, 2).pad(Dim::h, 2, 0).dilated(1, 2, 1);
  Alone forth = alone(random, conv_transpose(3, s, {{1, 0, 2}}), {{2, 4, 5, 6, 3}});
  Alone back = alone(random, conv(4, s), forth.out());
  REQUIRE(back.out() == forth.in);
  back.w = forth.w;
  const std::vector<double> y = by_definition(forth).y, x = by_definition(back).y;
  double left = 0, right = 0;
  for (std::size_t i = 0; i < x.size(); ++i) left += x[i] * forth.x[i];
  for (std::size_t i = 0; i < y.size(); ++i) right += y[i] * back.x[i];
  CHECK(std::abs(left - right) < 1e-10 * std::abs(left));
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      check_equal(grid.shape().str(),
                  on_grid<double, reference>(grid, forth, {Map<5>(over_ndhw, grid.shape(), forth.in)}),
                  by_definition(forth), 1e-10);
    });
  });
}

TEST_CASE("transposed: windows side by side move nothing, overlapping ones a plane to the neighbour that needs it") {
  Random random(12);
  const Alone apart = alone(random, up(2), {{1, 3, 8, 4, 4}});
  const Alone over = alone(random, conv_transpose(2, window(3).strided(2).pad(1), {{1, 1, 1}}), {{1, 3, 8, 4, 4}});
  on_ranks({2, 4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    const Map<5> map(over_ndhw, grid.shape(), apart.in);
    CHECK(on_grid<double, reference>(grid, apart, {map}).traffic.forward == Traffic{});
    // Output 2q-1 of a block's first input q belongs to the block below: inputs travel down only.
    const std::uint64_t plane = 3 * 4 * 4 * sizeof(double);
    const Traffic t = on_grid<double, reference>(grid, over, {map}).traffic.forward;
    CHECK(t == (c.rank() > 0 ? Traffic{1, plane} : Traffic{}));
  });
}
