// Weight updates: one step worked out by hand, then many against the formulas of the paper in double.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>
#include <tessera/kernel/optimizer.hpp>

using namespace tessera;
using kernel::adam, kernel::AdamOptions, kernel::sgd;

TEST_CASE("the first Adam step is rate * sign(g) by hand, the second as the paper says") {
  // g = 4: m = 0.4, v = 0.016; corrected 4 and 16; p = 1 - 0.5 * 4 / (4 + 0) = 0.5.
  // g = 2: m = 0.56, v = 0.019984; corrected 0.56/0.19 and 0.019984/0.001999: p = 0.5 - 0.5 * 2.947368 / 3.161803.
  double p[] = {1}, g[] = {4}, m[] = {0}, v[] = {0};
  const AdamOptions o{.rate = 0.5, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 0};
  adam<double>(p, g, m, v, o, 1);
  CHECK(p[0] == doctest::Approx(0.5).epsilon(1e-13));
  g[0] = 2;
  adam<double>(p, g, m, v, o, 2);
  CHECK(m[0] == doctest::Approx(0.56).epsilon(1e-13));
  CHECK(v[0] == doctest::Approx(0.019984).epsilon(1e-13));
  CHECK(p[0] == doctest::Approx(0.5 - 0.5 * (0.56 / 0.19) / std::sqrt(0.019984 / 0.001999)).epsilon(1e-12));
}

TEST_CASE("epsilon stands outside the square root") {
  double p[] = {0}, g[] = {1}, m[] = {0}, v[] = {0};
  adam<double>(p, g, m, v, {.rate = 1, .epsilon = 1}, 1);
  CHECK(p[0] == doctest::Approx(-0.5).epsilon(1e-13));
}

TEST_CASE("float Adam follows the formulas in double over many steps, gradients of any size") {
  constexpr std::uint64_t seed = 501;
  INFO("seed ", seed);
  test::Random random(seed);
  constexpr std::size_t count = 1003;
  std::vector<float> p(count), g(count), m(count), v(count);
  std::vector<double> p64(count), m64(count), v64(count);
  const AdamOptions o{.rate = 1e-3, .gradient_scale = 0.25};
  for (std::uint64_t t = 1; t <= 20; ++t) {
    for (std::size_t i = 0; i < count; ++i)
      g[i] = static_cast<float>(random.real() * std::pow(10.0, static_cast<double>(i % 13) - 8));
    adam<float>(p, g, m, v, o, t);
    for (std::size_t i = 0; i < count; ++i) {
      const double gradient = 0.25 * static_cast<double>(g[i]);
      m64[i] = 0.9 * m64[i] + 0.1 * gradient;
      v64[i] = 0.999 * v64[i] + 0.001 * gradient * gradient;
      const double m_hat = m64[i] / (1 - std::pow(0.9, double(t))), v_hat = v64[i] / (1 - std::pow(0.999, double(t)));
      p64[i] -= 1e-3 * m_hat / (std::sqrt(v_hat) + 1e-8);
    }
  }
  double worst = 0;
  for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, std::abs(static_cast<double>(p[i]) - p64[i]));
  CHECK(worst < 2e-7); // parameters of size 0.02, steps of 1e-3
}

TEST_CASE("the vectorised square root is right to a unit in the last place") {
  test::Random random(502);
  for (int round = 0; round < 20000; ++round) {
    const auto x = static_cast<float>(std::pow(10.0, 37.5 * random.real()));
    const double want = std::sqrt(static_cast<double>(x)), got = static_cast<double>(kernel::detail::square_root(x));
    if (!(std::abs(got - want) <= 1.2e-7 * want)) FAIL_CHECK("square root of ", x, ": ", got);
  }
  CHECK(kernel::detail::square_root(0.F) == 0.F);
  CHECK(kernel::detail::square_root(1.F) == 1.F);
  CHECK(kernel::detail::square_root(4.F) == 2.F);
  CHECK(kernel::detail::square_root(std::numeric_limits<float>::infinity()) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(kernel::detail::square_root(std::numeric_limits<float>::quiet_NaN())));
  CHECK(kernel::detail::square_root(1e-42F) < 1e-19F);
}

TEST_CASE("SGD with momentum by hand, and gradients scaled") {
  double p[] = {1, 1}, v[] = {0, 2};
  const double g[] = {2, -4};
  sgd<double>(p, g, v, {.rate = 0.5, .momentum = 0.5, .gradient_scale = 0.5});
  CHECK(v[0] == 1);
  CHECK(v[1] == -1);
  CHECK(p[0] == 0.5);
  CHECK(p[1] == 1.5);
  sgd<double>(p, g, v, {.rate = 1});
  CHECK(p[0] == -1.5);
}

TEST_CASE("arrays of unequal length and step 0 are refused") {
  std::vector<float> p(3), g(2), m(3);
  CHECK_THROWS_AS(sgd<float>(p, g, m, {}), usage_error);
  CHECK_THROWS_AS(adam<float>(p, g, m, m, {}, 1), usage_error);
  CHECK_THROWS_AS(adam<float>(p, p, m, m, {}, 0), usage_error);
}
