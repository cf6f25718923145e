// train/schedule.hpp: learning-rate schedules: the factor on the optimizer's rate at each step. Values, no state.
//
// May know: the standard library.
// Example: Trainer t(model, adam{.rate = 1e-3}, mean_squared_error{}, cosine(1000).warm_up(50));
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace tessera {

struct Schedule {
  enum class Kind : int { constant, linear, cosine };
  Kind kind = Kind::constant;
  std::uint64_t steps = 0;   ///< over which the factor falls to `floor`, warm-up included
  double floor = 0;          ///< where it ends and stays
  std::uint64_t warming = 0; ///< steps over which it first rises from 1/warming to 1

  /// The same with a linear rise over the first `w` steps.
  constexpr Schedule warm_up(std::uint64_t w) const {
    Schedule s = *this;
    s.warming = w;
    return s;
  }
  /// The factor at step 0, 1, 2, ...
  double factor(std::uint64_t step) const {
    if (step < warming) return double(step + 1) / double(warming);
    if (kind == Kind::constant || steps <= warming) return 1;
    const double done = step >= steps ? 1.0 : double(step - warming) / double(steps - warming);
    const double left = kind == Kind::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
    return floor + (1 - floor) * left;
  }
};

constexpr Schedule constant() { return {}; }
/// Falls in a straight line from 1 to `floor` at step `steps`.
constexpr Schedule linear_decay(std::uint64_t steps, double floor = 0) {
  return {Schedule::Kind::linear, steps, floor, 0};
}
/// Falls along half a cosine from 1 to `floor` at step `steps` (Loshchilov and Hutter 2017, one cycle).
constexpr Schedule cosine(std::uint64_t steps, double floor = 0) { return {Schedule::Kind::cosine, steps, floor, 0}; }

} // namespace tessera
