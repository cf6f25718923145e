// Activations and per-channel sums against element loops, on dense and on strided views.
#include "operands.hpp"

#include <tessera/kernel/pointwise.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation, kernel::Gradient;

TEST_CASE("activations forward and backward on any strides") {
  constexpr std::uint64_t seed = 401;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 120; ++round) {
    const Extents<5> e{{random.in(0, 2), random.in(1, 19), random.in(1, 4), random.in(1, 4), random.in(1, 5)}};
    const Gaps gaps = round % 2 ? Gaps::everywhere : Gaps::none;
    const auto act = static_cast<Activation>(round % 3);
    Block<float> x(e, gaps, random), y(e, gaps, random), dy(e, gaps, random), before(e);
    x.randomise(random);
    dy.randomise(random);
    copy_block(dy.read(), before.view);
    kernel::activation_forward<float>(act, 0.25, x.view, y.view);
    kernel::activation_backward<float>(act, 0.25, y.view, dy.view);
    bool right = true;
    for_each_index(whole(e), [&](const Index<5>& i) {
      const float v = x.view[i], low = act == Activation::none ? 1.F : act == Activation::relu ? 0.F : 0.25F;
      right = right && y.view[i] == (v > 0 ? v : low * v) && dy.view[i] == before.view[i] * (v > 0 ? 1.F : low);
    });
    CHECK(right);
  }
}

TEST_CASE("relu of infinities and of zero") {
  Block<float> x(Extents<5>{{1, 20, 1, 1, 1}}), y(x.view.extents), dy(x.view.extents);
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < 20; ++i) x.memory[i] = i % 3 == 0 ? -inf : i % 3 == 1 ? inf : 0;
  fill_block(dy.view, 1.F);
  kernel::activation_forward<float>(Activation::relu, 0, x.view, y.view);
  kernel::activation_backward<float>(Activation::relu, 0, y.view, dy.view);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(y.memory[i] == (i % 3 == 1 ? inf : 0));
    CHECK(dy.memory[i] == (i % 3 == 1 ? 1 : 0));
  }
}

TEST_CASE("per-channel operations and scaling") {
  Random random(402);
  const Extents<5> e{{2, 3, 2, 4, 5}};
  Block<double> y(e, Gaps::everywhere, random), g(e, Gaps::everywhere, random);
  const double bias[] = {-4, 0, 2};
  kernel::fill_channels<double>(y.view, bias, Activation::leaky_relu, 0.5);
  CHECK(y.view(1, 0, 1, 3, 4) == -2);
  CHECK(y.view(0, 2, 0, 0, 0) == 2);
  kernel::add_channels<double>(y.view, bias);
  CHECK(y.view(1, 0, 1, 3, 4) == -6);
  kernel::scale_block(y.view, 0.5);
  CHECK(y.view(1, 2, 1, 3, 4) == 2);
  kernel::fill_channels<double>(y.view, nullptr, Activation::none, 0);
  CHECK(y.view(1, 2, 1, 3, 4) == 0);
  for_each_index(whole(e), [&](const Index<5>& i) { g.view[i] = double(i[1] + 1); });
  double db[] = {1, 1, 1};
  kernel::sum_channels<double>(g.view, db, Gradient::accumulate);
  CHECK(db[2] == 241);
  kernel::sum_channels<double>(g.view, db, Gradient::overwrite);
  CHECK(db[0] == 80);
  CHECK(db[1] == 160);
}

TEST_CASE("activations of unequal extents are refused") {
  Block<float> x(Extents<5>{{1, 2, 2, 2, 2}}), y(Extents<5>{{1, 2, 2, 2, 1}});
  CHECK_THROWS_AS(kernel::activation_forward<float>(Activation::relu, 0, x.view, y.view), usage_error);
  CHECK_THROWS_AS(kernel::activation_backward<float>(Activation::relu, 0, x.view, y.view), usage_error);
}
