// exp, tanh and their kin: float against double over their whole ranges, at the ends, and the same in vectors and
// alone.
#include <doctest/doctest.h>
#include <limits>
#include <tessera/kernel/math.hpp>
#include <vector>

using namespace tessera::kernel;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(), no_number = std::numeric_limits<float>::quiet_NaN();
constexpr double ulp = 0x1p-23;

/// The largest error of f over [low, high] against g: relative to |g| + scale. Elements go through vectors, and through
/// numbers as well, which must give the same up to the rounding of a multiply-add.
template <class F, class G> double error(float low, float high, double scale, const F& f, const G& g) {
  constexpr std::size_t many = 200'003; // no multiple of the vector length
  std::vector<float> x(many), y(many);
  for (std::size_t i = 0; i < many; ++i) x[i] = low + (high - low) * (static_cast<float>(i) / (many - 1));
  map_elements(y.data(), long(many), f, x.data());
  double worst = 0;
  for (std::size_t i = 0; i < many; ++i) {
    const double want = g(static_cast<double>(x[i])), size = std::abs(want) + scale;
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - want) / size);
    worst = std::max(worst, std::abs(static_cast<double>(f(x[i])) - want) / size);
  }
  return worst;
}

} // namespace

TEST_CASE("math: float equals double to a few units in the last place") {
  const auto e = [](auto v) { return exp(v); };
  CHECK(error(-87.3F, 88.7F, 0, e, [](double v) { return std::exp(v); }) < ulp);
  CHECK(error(-0.01F, 0.01F, 0, e, [](double v) { return std::exp(v); }) < ulp);
  const auto m = [](auto v) { return exp_minus_1(v); };
  CHECK(error(-100, 0, 1e-30, m, [](double v) { return std::expm1(v); }) < ulp);
  CHECK(error(-1, 0, 1e-30, m, [](double v) { return std::expm1(v); }) < ulp);
  CHECK(error(-1e-4F, 0, 1e-30, m, [](double v) { return std::expm1(v); }) < ulp);
  const auto t = [](auto v) { return tanh(v); };
  CHECK(error(-12, 12, 1e-30, t, [](double v) { return std::tanh(v); }) < 2 * ulp);
  CHECK(error(-1e-3F, 1e-3F, 1e-30, t, [](double v) { return std::tanh(v); }) < 2 * ulp);
  const auto s = [](auto v) { return sigmoid(v); };
  CHECK(error(-80, 30, 0, s, [](double v) { return 1 / (1 + std::exp(-v)); }) < 2 * ulp);
  const auto rest = [](auto v) { return Logistic(v).rest; };
  CHECK(error(-30, 80, 0, rest, [](double v) { return 1 / (1 + std::exp(v)); }) < 2 * ulp);
  CHECK(error(
            -80, 30, 0, [](auto v) { return Logistic(v).value; }, [](double v) { return 1 / (1 + std::exp(-v)); }) <
        2 * ulp);
  // The bell's argument has a rounding error that grows with its square; absolutely it stays small.
  const auto area = [](auto v) { return normal_distribution(v).area; };
  const auto density = [](auto v) { return normal_distribution(v).density; };
  CHECK(error(-12, 12, 1, area, [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); }) < 2 * ulp);
  CHECK(error(-3, 3, 0, area, [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); }) < 8 * ulp);
  CHECK(error(-12, 12, 1, density, [](double v) { return std::exp(-v * v / 2) / std::sqrt(2 * M_PI); }) < ulp);
}

TEST_CASE("math: at the ends of the range, and for what is no number") {
  CHECK(exp(0.F) == 1);
  CHECK(exp(-inf) == 0);
  CHECK(exp(-88.F) == 0);
  CHECK(exp(inf) == inf);
  CHECK(exp(89.F) == inf);
  CHECK(std::isnan(exp(no_number)));
  CHECK(exp_minus_1(0.F) == 0);
  CHECK(exp_minus_1(-inf) == -1);
  CHECK(tanh(inf) == 1);
  CHECK(tanh(-inf) == -1);
  CHECK(std::isnan(tanh(no_number)));
  CHECK(sigmoid(inf) == 1);
  CHECK(sigmoid(-inf) == 0);
  CHECK(normal_distribution(inf).area == 1);
  CHECK(normal_distribution(-inf).area == 0);
  CHECK(std::isnan(sigmoid(no_number)));
}
