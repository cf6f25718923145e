// cosmoflow/cosmology.hpp: the physics of a flat LCDM universe: transfer function, power spectrum, growth. No I/O.
//
// Lengths are in Mpc/h, wave numbers k in h/Mpc, power in (Mpc/h)^3. Amplitudes refer to redshift 0, where D = 1.
// Sources: Eisenstein & Hu 1998 (ApJ 496, 605), transfer function without wiggles; Carroll, Press & Turner 1992
// (ARA&A 30, 499), growth; Bouchet et al. 1995 (A&A 296, 575), growth of the second order.
//
// May know: the standard library, tessera/base, tessera/kernel/random.hpp.
// Example: cosmology::LinearPower p(cosmology::mean);  p(0.1);  cosmology::growth(0.3, 1.5);
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <tessera/base/error.hpp>
#include <tessera/kernel/random.hpp>

namespace cosmology {

/// The four numbers that a network has to recover. `h0` in km/s/Mpc.
struct Parameters {
  double omega_m, sigma_8, n_s, h0;

  std::array<double, 4> values() const { return {omega_m, sigma_8, n_s, h0}; }
  double h() const { return h0 / 100; }
};

inline constexpr Parameters mean{.omega_m = 0.3, .sigma_8 = 0.8, .n_s = 0.96, .h0 = 70.0};
inline constexpr std::array<std::string_view, 4> names{"Omega_m", "sigma_8", "N_spec", "H_0"};
inline constexpr std::array<double, 4> redshifts{0.0, 0.5, 1.5, 3.0}; // one channel of a universe each
inline constexpr double omega_b = 0.045;                              // baryons, fixed
inline constexpr double t_cmb = 2.7255;                               // K, Fixsen 2009

/// Transfer function without wiggles, Eisenstein & Hu 1998 eqs 26 and 28-31; 1 for k -> 0. `k` in h/Mpc, > 0.
inline double transfer(double k, const Parameters& p) {
  const double theta = t_cmb / 2.7, om = p.omega_m * p.h() * p.h(), ob = omega_b * p.h() * p.h();
  const double fb = omega_b / p.omega_m;
  const double sound = 44.5 * std::log(9.83 / om) / std::sqrt(1 + 10 * std::pow(ob, 0.75)); // horizon, in Mpc
  const double alpha = 1 - 0.328 * std::log(431 * om) * fb + 0.38 * std::log(22.3 * om) * fb * fb;
  const double gamma = p.omega_m * p.h() * (alpha + (1 - alpha) / (1 + std::pow(0.43 * k * p.h() * sound, 4)));
  const double q = k * theta * theta / gamma;
  const double l = std::log(2 * std::numbers::e + 1.8 * q);
  return l / (l + (14.2 + 731 / (1 + 62.5 * q)) * q * q);
}

/// Fourier transform of a ball of radius 1 and volume 1, at x = k R.
inline double top_hat(double x) {
  return x < 1e-3 ? 1 - x * x / 10 : 3 * (std::sin(x) - x * std::cos(x)) / (x * x * x);
}

/// The linear power spectrum today: A k^n_s T(k)^2 with A such that the variance in balls of 8 Mpc/h is sigma_8^2.
class LinearPower {
public:
  explicit LinearPower(const Parameters& p) : p_(p) {
    const double sigma = sigma_in_balls(8);
    amplitude_ = p.sigma_8 * p.sigma_8 / (sigma * sigma);
  }

  double operator()(double k) const {
    const double t = transfer(k, p_);
    return amplitude_ * std::pow(k, p_.n_s) * t * t;
  }

  /// Standard deviation of the density smoothed with a ball of `radius`; trapezoids in ln k over 1e-5..50 h/Mpc.
  double sigma_in_balls(double radius) const {
    constexpr int steps = 4095;
    const double from = std::log(1e-5), step = (std::log(50.0) - from) / steps;
    double sum = 0;
    for (int i = 0; i <= steps; ++i) {
      const double k = std::exp(from + i * step), w = top_hat(k * radius);
      sum += (i == 0 || i == steps ? 0.5 : 1.0) * (*this)(k)*w * w * k * k * k;
    }
    return std::sqrt(sum * step / (2 * std::numbers::pi * std::numbers::pi));
  }

  const Parameters& parameters() const { return p_; }

private:
  Parameters p_;
  double amplitude_ = 1;
};

/// Omega_m at redshift z.
inline double matter_fraction(double omega_m, double z) {
  const double matter = omega_m * std::pow(1 + z, 3);
  return matter / (matter + 1 - omega_m);
}

/// Linear growth D(z) with D(0) = 1, Carroll, Press & Turner 1992 eq 29.
inline double growth(double omega_m, double z) {
  auto unscaled = [omega_m](double redshift) {
    const double m = matter_fraction(omega_m, redshift), l = 1 - m;
    return 2.5 * m / (std::pow(m, 4.0 / 7) - l + (1 + m / 2) * (1 + l / 70)) / (1 + redshift);
  };
  return unscaled(z) / unscaled(0);
}

/// Growth of the second order displacement: -3/7 D^2 Omega_m(z)^(-1/143).
inline double second_growth(double omega_m, double z) {
  const double d = growth(omega_m, z);
  return -3.0 / 7 * d * d * std::pow(matter_fraction(omega_m, z), -1.0 / 143);
}

// ---- randomness: a pure function of (seed, universe, purpose, position), so the same on any number of ranks

using tessera::kernel::PhiloxKey;

enum class Purpose : std::uint64_t { parameters = 0, noise = 1 };

/// The key of one sequence of random words.
constexpr PhiloxKey sequence(std::uint64_t seed, std::uint32_t universe, Purpose purpose) {
  return tessera::kernel::random_key(seed, universe, static_cast<std::uint64_t>(purpose));
}

/// Two independent standard normal numbers (Box & Muller 1958) of the sequence `key`, from 53 random bits each.
inline std::array<double, 2> white_noise(const PhiloxKey& key, std::uint64_t pair) {
  const auto words = tessera::kernel::random_words(key, pair);
  auto fraction = [](std::uint32_t high, std::uint32_t low) { // in [0, 1)
    return static_cast<double>((static_cast<std::uint64_t>(high) << 32 | low) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(1 - fraction(words[0], words[1])));
  const double angle = 2 * std::numbers::pi * fraction(words[2], words[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// What a universe is made of: four numbers uniform in [-1, 1], and the parameters mean * (1 + range * u).
struct Draw {
  std::array<float, 4> unit;
  Parameters physical;
};

/// The parameters of universe `index`. They follow exactly from the rounded numbers that the file holds.
/// usage_error unless 0 <= range <= 0.5, where the fitting formulas hold.
inline Draw draw(std::uint64_t seed, std::uint32_t index, double range) {
  TESSERA_REQUIRE(range >= 0 && range <= 0.5, "universe: a relative parameter range of ", range,
                  "; give one between 0 and 0.5");
  const auto words = tessera::kernel::random_words(sequence(seed, index, Purpose::parameters), 0);
  Draw d{};
  std::array<double, 4> value = mean.values();
  // Multiples of 2^-24: exact in float, so no compiler can round them otherwise (g++ 12 vectorises the way through
  // float and double without the rounding to float).
  for (std::size_t i = 0; i < 4; ++i) {
    const double u = (static_cast<double>(words[i] >> 8) + 0.5) * 0x1p-23 - 1;
    d.unit[i] = static_cast<float>(u);
    value[i] *= 1 + range * u;
  }
  d.physical = {value[0], value[1], value[2], value[3]};
  return d;
}

} // namespace cosmology
