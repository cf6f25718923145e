// Optimizers and schedules against values worked out by hand.
#include <doctest/doctest.h>
#include <tessera/backend/cpu.hpp>
#include <tessera/train/optimizer.hpp>
#include <tessera/train/schedule.hpp>

using namespace tessera;

namespace {

/// The parameter after each step with the gradients given; its start is 1.
template <class T, class Backend, class Optimizer>
std::vector<double> walk_of(const Optimizer& o, const std::vector<double>& gradients, double factor = 1) {
  constexpr std::size_t count = Optimizer::moments.size();
  // 19 equal parameters: more than a vector register, and not a multiple of one.
  std::vector<T> p(19, T{1});
  std::array<std::vector<T>, count> kept;
  std::array<T*, count> moments;
  for (std::size_t i = 0; i < count; ++i) {
    kept[i].assign(p.size(), T{});
    moments[i] = kept[i].data();
  }
  std::vector<double> all;
  for (std::uint64_t step = 0; step < gradients.size(); ++step) {
    const std::vector<T> g(p.size(), static_cast<T>(gradients[step]));
    o.template update<Backend, T>(std::span<T>(p), std::span<const T>(g), moments, step, factor);
    for (const T& v : p) REQUIRE(v == p[0]);
    all.push_back(double(p[0]));
  }
  return all;
}

template <class Optimizer>
void check_walk(const Optimizer& o, const std::vector<double>& gradients, const std::vector<double>& want, double factor = 1) {
  const auto oracle = walk_of<double, reference>(o, gradients, factor);
  const auto in_double = walk_of<double, cpu>(o, gradients, factor);
  const auto in_float = walk_of<float, cpu>(o, gradients, factor);
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(oracle[i] == doctest::Approx(want[i]).epsilon(1e-9));
    CHECK(in_double[i] == doctest::Approx(want[i]).epsilon(1e-9));
    CHECK(in_float[i] == doctest::Approx(want[i]).epsilon(1e-6));
  }
}

} // namespace

TEST_CASE("sgd: with and without momentum") {
  check_walk(sgd{.rate = 0.1}, {0.5, 0.5, -2}, {0.95, 0.9, 1.1});
  // v = 0.5, 0.95, 1.355
  check_walk(sgd{.rate = 0.1, .momentum = 0.9}, {0.5, 0.5, 0.5}, {0.95, 0.855, 0.7195});
  check_walk(sgd{.rate = 0.1}, {0.5}, {0.975}, 0.5);
}

TEST_CASE("adam: the first step is the rate, later ones by hand") {
  // Step 1: m/c1 = 0.5, v/c2 = 0.25. Step 2 with g = 0: m = 0.045, c1 = 0.19; v = 0.00024975, c2 = 0.001999.
  const double second = 0.1 * (0.045 / 0.19) / std::sqrt(0.00024975 / 0.001999);
  check_walk(adam{.rate = 0.1, .epsilon = 0}, {0.5, 0}, {0.9, 0.9 - second});
  // A large epsilon outside the root: 0.5 / (0.5 + 0.5).
  check_walk(adam{.rate = 0.1, .epsilon = 0.5}, {0.5}, {0.95});
  check_walk(adam{.rate = 0.1, .epsilon = 0.5}, {0.5}, {0.9875}, 0.25);
  // Other betas: m = 0.8 * 0.2 - 0.2 = -0.04, c1 = 0.36; v = 0.99 * 0.01 + 0.01 = 0.0199, c2 = 0.0199.
  check_walk(adam{.rate = 1, .beta1 = 0.8, .beta2 = 0.99, .epsilon = 0}, {1, -1}, {0, 0.04 / 0.36});
}

TEST_CASE("schedules: ends, middle, warm-up, beyond the end") {
  for (const std::uint64_t step : {0, 5, 1000}) CHECK(constant().factor(step) == 1);

  const Schedule linear = linear_decay(10);
  CHECK(linear.factor(0) == 1);
  CHECK(linear.factor(5) == doctest::Approx(0.5));
  CHECK(linear.factor(9) == doctest::Approx(0.1));
  CHECK(linear.factor(10) == 0);
  CHECK(linear.factor(1000) == 0);
  CHECK(linear_decay(10, 0.2).factor(5) == doctest::Approx(0.6));
  CHECK(linear_decay(10, 0.2).factor(11) == doctest::Approx(0.2));

  CHECK(cosine(8).factor(0) == 1);
  CHECK(cosine(8).factor(2) == doctest::Approx(0.5 * (1 + std::sqrt(0.5))));
  CHECK(cosine(8).factor(4) == doctest::Approx(0.5));
  CHECK(cosine(8).factor(8) == doctest::Approx(0));
  CHECK(cosine(8, 0.1).factor(4) == doctest::Approx(0.55));
  CHECK(cosine(8, 0.1).factor(80) == doctest::Approx(0.1));

  const Schedule warm = linear_decay(12).warm_up(4);
  CHECK(warm.factor(0) == 0.25);
  CHECK(warm.factor(3) == 1);
  CHECK(warm.factor(4) == 1);
  CHECK(warm.factor(8) == doctest::Approx(0.5));
  CHECK(warm.factor(12) == 0);
  CHECK(constant().warm_up(2).factor(0) == 0.5);
  CHECK(constant().warm_up(2).factor(2) == 1);
  CHECK(cosine(4).warm_up(8).factor(7) == 1); // a warm-up longer than the schedule
}
