// The universe generator: physics against numbers worked out elsewhere, fields against plain loops and hand-made waves,
// and the same counts on any number of ranks.
#include "cosmoflow/universe_file.hpp"
#include "support/ranks.hpp"

#include <doctest/doctest.h>
#include <tessera/comm/agree.hpp>

using namespace cosmology;
using tessera::test::all_throw;
using tessera::test::on_ranks;

namespace {

constexpr double pi = std::numbers::pi;

doctest::Approx near(double value, double relative) { return doctest::Approx(value).epsilon(relative).scale(0); }

/// All planes on every rank: [x][y][z] of what `slab` holds of this rank's planes.
template <class T> std::vector<T> gathered(const Communicator& comm, std::span<const T> slab) {
  std::vector<T> all;
  for (const auto& part : comm.all_gather(slab)) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<std::int16_t> counts_of(const Communicator& comm, long width, std::uint64_t seed, std::uint32_t index) {
  Universe u(comm, width);
  const Draw drawn = draw(seed, index, 0.1);
  u.draw_density(LinearPower(drawn.physical), 4.0, seed, index);
  u.displace();
  return gathered(comm, u.count(drawn.physical.omega_m));
}

std::vector<double> density_of(const Communicator& comm, Universe& u) {
  const auto plane = static_cast<std::size_t>(u.width() * u.width());
  std::vector<double> mine;
  u.density([&](long, const double* p) { mine.insert(mine.end(), p, p + plane); });
  return gathered(comm, std::span<const double>(mine));
}

struct Moments {
  double mean = 0, variance = 0;
};
template <class T> Moments moments(std::span<const T> values, std::size_t from = 0, std::size_t step = 1) {
  double n = 0, sum = 0, squares = 0;
  for (std::size_t i = from; i < values.size(); i += step) {
    n += 1;
    sum += static_cast<double>(values[i]);
  }
  for (std::size_t i = from; i < values.size(); i += step) {
    const double d = static_cast<double>(values[i]) - sum / n;
    squares += d * d;
  }
  return {sum / n, squares / n};
}

} // namespace

// ---- physics -------------------------------------------------------------------------------------------------------

TEST_CASE("cosmology: transfer function, spectrum and growth have the values of an independent implementation") {
  // Worked out with numpy from the same papers' formulas.
  struct Row {
    Parameters p;
    std::array<double, 5> transfer; // at k = 1e-4, 0.01, 0.1, 1, 10
    std::array<double, 4> power;    // at k = 1e-3, 0.01, 0.1, 1
    std::array<double, 4> first, second;
  };
  const Row rows[] = {{{0.3, 0.8, 0.96, 70},
                       {0.9998993856, 0.786200194, 0.1351762489, 0.004747077375, 9.075065907e-05},
                       {3631.270516, 20798.74043, 5607.528934, 63.07007723},
                       {1, 0.7747213576, 0.5012430424, 0.319288914},
                       {-0.4321949713, -0.258172705, -0.1077811043, -0.04370183252}},
                      {{0.27, 0.88, 0.9, 77},
                       {0.9998973729, 0.7834272399, 0.128893959, 0.004443863214, 8.443971531e-05},
                       {6596.456111, 32684.64716, 7027.67375, 66.35411026},
                       {1, 0.7844817949, 0.5122154783, 0.3271928589},
                       {-0.4325135242, -0.2648353337, -0.1125675744, -0.04589406347}},
                      {{0.33, 0.72, 1.05, 63},
                       {0.9998973729, 0.7844564063, 0.1377084137, 0.004871471463, 9.335304698e-05},
                       {1786.838322, 12538.87774, 4335.527953, 60.87533516},
                       {1, 0.7658982424, 0.4916282535, 0.312435064},
                       {-0.4319070073, -0.2522294274, -0.1036735325, -0.04184442449}}};
  for (const Row& r : rows) {
    const LinearPower power(r.p);
    for (int i = 0; i < 5; ++i)
      CHECK(transfer(std::array{1e-4, 0.01, 0.1, 1.0, 10.0}[static_cast<std::size_t>(i)], r.p) ==
            near(r.transfer[static_cast<std::size_t>(i)], 1e-8));
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(power(std::array{1e-3, 0.01, 0.1, 1.0}[i]) == near(r.power[i], 1e-8));
      CHECK(growth(r.p.omega_m, redshifts[i]) == near(r.first[i], 1e-8));
      CHECK(second_growth(r.p.omega_m, redshifts[i]) == near(r.second[i], 1e-8));
    }
  }
  CHECK(growth(0.3, 0.5) == near(0.7747, 1e-4));
  CHECK(growth(0.3, 1.5) == near(0.5012, 1e-4));
  CHECK(growth(0.3, 3.0) == near(0.3193, 1e-4));
}

TEST_CASE("cosmology: growth in a universe of matter alone is the scale factor") {
  for (double z : {0.5, 1.5, 3.0, 9.0}) {
    CHECK(growth(1.0, z) == near(1 / (1 + z), 1e-12));
    CHECK(second_growth(1.0, z) == near(-3.0 / 7 / ((1 + z) * (1 + z)), 1e-12));
  }
}

TEST_CASE("cosmology: the spectrum gives back sigma_8") {
  for (const Parameters p : {mean, Parameters{0.27, 0.88, 0.9, 77}, Parameters{0.33, 0.72, 1.05, 63}}) {
    const LinearPower power(p);
    // Another rule in another variable than the code: Simpson in k.
    const int steps = 400000;
    const double top = 40, h = top / steps;
    double sum = 0;
    for (int i = 1; i <= steps; ++i) {
      const double k = i * h, x = 8 * k, w = 3 * (std::sin(x) / x - std::cos(x)) / (x * x);
      sum += (i == steps ? 1 : i % 2 ? 4 : 2) * power(k) * w * w * k * k;
    }
    CHECK(std::sqrt(sum * h / 3 / (2 * pi * pi)) == near(p.sigma_8, 1e-4));
  }
}

// ---- randomness ----------------------------------------------------------------------------------------------------

TEST_CASE("cosmology: parameters are uniform, independent, and follow from the numbers in the file") {
  constexpr std::uint32_t draws = 4096;
  std::array<std::vector<double>, 4> u;
  for (std::uint32_t i = 0; i < draws; ++i) {
    const Draw d = draw(20, i, 0.1);
    for (std::size_t k = 0; k < 4; ++k) {
      const auto value = static_cast<double>(d.unit[k]);
      u[k].push_back(value);
      CHECK(std::abs(value) <= 1);
      CHECK(d.physical.values()[k] ==
            doctest::Approx(mean.values()[k] * (1 + 0.1 * value)).epsilon(1e-15)); // fused or not
    }
  }
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < a; ++b) { // correlation: standard error 1/sqrt(draws)
      double product = 0;
      for (std::size_t i = 0; i < draws; ++i) product += u[a][i] * u[b][i];
      CHECK(std::abs(3 * product / draws) < 4 / std::sqrt(draws));
    }
    std::sort(u[a].begin(), u[a].end());
    double distance = 0; // Kolmogorov-Smirnov; 1.95/sqrt(n) is exceeded once in a thousand
    for (std::size_t i = 0; i < draws; ++i)
      distance = std::max(distance, std::abs((u[a][i] + 1) / 2 - (static_cast<double>(i) + 0.5) / draws));
    CHECK(distance < 1.95 / std::sqrt(draws));
  }
  CHECK(draw(20, 7, 0.1).unit == draw(20, 7, 0.2).unit);
  CHECK(draw(20, 7, 0.1).unit != draw(21, 7, 0.1).unit);
  CHECK(draw(20, 7, 0.0).physical.values() == mean.values());
  CHECK_THROWS_AS(draw(20, 7, 0.6), tessera::usage_error);
  CHECK_THROWS_AS(draw(20, 7, -0.1), tessera::usage_error);
}

TEST_CASE("cosmology: white noise is normal and uncorrelated") {
  const PhiloxKey key = sequence(3, 1, Purpose::noise), another = sequence(3, 2, Purpose::noise);
  std::vector<double> v;
  constexpr std::uint64_t pairs = 1 << 19;
  for (std::uint64_t i = 0; i < pairs; ++i)
    for (double x : white_noise(key, i)) v.push_back(x);
  const auto n = static_cast<double>(v.size());
  double third = 0, fourth = 0, neighbour = 0, other = 0, beyond = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    third += v[i] * v[i] * v[i];
    fourth += v[i] * v[i] * v[i] * v[i];
    neighbour += v[i] * v[(i + 1) % v.size()];
    other += v[i] * white_noise(another, i / 2)[i % 2]; // another universe
    beyond += std::abs(v[i]) > 3 ? 1 : 0;
  }
  const auto [average, variance] = moments(std::span<const double>(v));
  // Standard errors of n normal numbers: 1, sqrt 2, sqrt 15, sqrt 96, 1, 1, and that of a rare event, over sqrt n.
  const double unit = 4 / std::sqrt(n), rare = std::erfc(3 / std::sqrt(2.0));
  CHECK(std::abs(average) < unit);
  CHECK(std::abs(variance - 1) < unit * std::sqrt(2.0));
  CHECK(std::abs(third / n) < unit * std::sqrt(15.0));
  CHECK(std::abs(fourth / n - 3) < unit * std::sqrt(96.0));
  CHECK(std::abs(neighbour / n) < unit);
  CHECK(std::abs(other / n) < unit);
  CHECK(std::abs(beyond / n - rare) < unit * std::sqrt(rare));
}

// ---- transform -----------------------------------------------------------------------------------------------------

TEST_CASE("cosmology: the slab transform is the discrete Fourier transform, on any number of ranks") {
  for (const long n : {8L, 10L}) {
    const long k = n / 2 + 1;
    auto value = [n](long x, long y, long z) {
      return std::sin(static_cast<double>((x * n + y) * n + z + 1) * 12.9898) * 43;
    };
    // Plain loops, one dim after the other.
    std::vector<Complex> f(static_cast<std::size_t>(n * n * n));
    auto at = [n](long x, long y, long z) { return static_cast<std::size_t>((x * n + y) * n + z); };
    for (long x = 0; x < n; ++x)
      for (long y = 0; y < n; ++y)
        for (long z = 0; z < n; ++z) f[at(x, y, z)] = value(x, y, z);
    for (int dim = 0; dim < 3; ++dim) {
      auto g = f;
      for (long x = 0; x < n; ++x)
        for (long y = 0; y < n; ++y)
          for (long z = 0; z < n; ++z) {
            Complex sum = 0;
            const long mine = dim == 0 ? x : dim == 1 ? y : z;
            for (long j = 0; j < n; ++j)
              sum += f[dim == 0   ? at(j, y, z)
                       : dim == 1 ? at(x, j, z)
                                  : at(x, y, j)] *
                     std::polar(1.0, -2 * pi * static_cast<double>(mine * j) / static_cast<double>(n));
            g[at(x, y, z)] = sum;
          }
      f = g;
    }
    on_ranks({1, 2, 3, 4, 12}, [&](const Communicator& comm) {
      SlabFft fft(comm, n);
      std::vector<Complex> spectrum(fft.spectrum_size());
      fft.forward(
          [&](long x, double* plane) {
            for (long i = 0; i < n * n; ++i) plane[i] = value(x, i / n, i % n);
          },
          spectrum.data());
      double worst = 0;
      for (long y = fft.mine().lo; y < fft.mine().hi; ++y)
        for (long x = 0; x < n; ++x)
          for (long z = 0; z < k; ++z)
            worst = std::max(worst, std::abs(spectrum[static_cast<std::size_t>(((y - fft.mine().lo) * n + x) * k + z)] -
                                             f[at(x, y, z)]));
      CHECK(worst < 1e-9);
      worst = 0;
      fft.backward(
          spectrum.data(), [](long, long, Complex*) {},
          [&](long x, const double* plane) {
            for (long i = 0; i < n * n; ++i)
              worst = std::max(worst, std::abs(plane[i] / static_cast<double>(n * n * n) - value(x, i / n, i % n)));
          });
      CHECK(worst < 1e-12);
    });
  }
}

// ---- fields --------------------------------------------------------------------------------------------------------

TEST_CASE("cosmology: the Gaussian field has the spectrum it was made from") {
  constexpr long n = 64;
  constexpr double cell = 4, side = n * cell, fundamental = 2 * pi / side;
  constexpr int fields = 4, bins = 12;
  const LinearPower power(mean);
  const Communicator self;
  Universe u(self, n);
  SlabFft fft(self, n);
  std::vector<Complex> spectrum(fft.spectrum_size());
  // Bins equal in ln k from the first wave to the Nyquist one, as |m| in units of the fundamental.
  const double first = 0.999, last = n / 2;
  std::array<double, bins> measured{}, wanted{}, modes{};
  double in_balls = 0;
  for (int s = 0; s < fields; ++s) {
    u.draw_density(power, cell, 100, static_cast<std::uint32_t>(s));
    const auto field = density_of(self, u);
    fft.forward([&](long x, double* plane) { std::copy_n(field.data() + x * n * n, n * n, plane); }, spectrum.data());
    double variance = 0;
    std::size_t i = 0;
    for (long y = 0; y < n; ++y)
      for (long x = 0; x < n; ++x)
        for (long z = 0; z <= n / 2; ++z, ++i) {
          const long kx = x <= n / 2 ? x : x - n, ky = y <= n / 2 ? y : y - n, square = kx * kx + ky * ky + z * z;
          if (square == 0) {
            CHECK(std::abs(spectrum[i]) < 1e-6);
            continue;
          }
          const double weight = z == 0 || z == n / 2 ? 1 : 2; // the other half of the modes is their conjugate
          const double m = std::sqrt(static_cast<double>(square)), k = m * fundamental;
          const double p = std::norm(spectrum[i]) * side * side * side / std::pow(n, 6);
          const double w = top_hat(8 * k);
          variance += weight * p * w * w / (side * side * side);
          const auto bin = static_cast<long>(std::floor(std::log(m / first) / std::log(last / first) * bins));
          if (bin < 0 || bin >= bins) continue;
          measured[static_cast<std::size_t>(bin)] += weight * p;
          wanted[static_cast<std::size_t>(bin)] += weight * power(k);
          modes[static_cast<std::size_t>(bin)] += weight;
        }
    in_balls += std::sqrt(variance) / fields;
  }
  double chi2 = 0, ratio = 0, all = 0;
  for (std::size_t b = 0; b < bins; ++b) {
    const double r = measured[b] / wanted[b] - 1;
    chi2 += r * r * modes[b] / 2; // a power averaged over m modes has the relative variance 2/m
    ratio += r * modes[b];
    all += modes[b];
  }
  ratio /= all;
  MESSAGE("chi2 ", chi2, " for ", bins, " bins; mean ratio - 1 = ", ratio, " +- ", std::sqrt(2 / all), "; sigma_8 ",
          in_balls);
  CHECK(chi2 > 2.2); // the range that 12 degrees of freedom leave once in 500
  CHECK(chi2 < 32.9);
  CHECK(std::abs(ratio) < 3 * std::sqrt(2 / all));
  CHECK(in_balls == near(0.8, 0.02));
}

TEST_CASE("cosmology: one plane wave is displaced to first order only") {
  constexpr long n = 32;
  struct Wave {
    long x, y, z;
  };
  for (const Wave m : {Wave{1, 0, 0}, Wave{0, 3, 0}, Wave{0, 0, 2}, Wave{2, -1, 3}})
    on_ranks({1, 3}, [&](const Communicator& comm) {
      Universe u(comm, n);
      const double amplitude = 0.7, scale = 2 * pi / n;
      auto phase = [&](long x, long y, long z) {
        return scale * static_cast<double>(m.x * x + m.y * y + m.z * z) + 0.3;
      };
      u.set_density([&](long x, double* plane) {
        for (long i = 0; i < n * n; ++i) plane[i] = amplitude * std::cos(phase(x, i / n, i % n));
      });
      u.displace();
      // lap phi = a cos(kq + c) has phi = -a cos(kq + c) / k^2, and psi1 = -grad phi = -a k/k^2 sin(kq + c).
      const double k2 = scale * scale * static_cast<double>(m.x * m.x + m.y * m.y + m.z * m.z);
      for (int axis = 0; axis < 3; ++axis) {
        const double k = scale * static_cast<double>(axis == 0 ? m.x : axis == 1 ? m.y : m.z);
        const auto first = u.displacement(1, axis), second = u.displacement(2, axis);
        double worst = 0, spurious = 0;
        std::size_t i = 0;
        for (long x = u.planes().lo; x < u.planes().hi; ++x)
          for (long y = 0; y < n; ++y)
            for (long z = 0; z < n; ++z, ++i) {
              worst = std::max(worst,
                               std::abs(static_cast<double>(first[i]) + amplitude * k / k2 * std::sin(phase(x, y, z))));
              spurious = std::max(spurious, std::abs(static_cast<double>(second[i])));
            }
        CHECK(worst < 1e-6); // stored as float, up to a few cells
        CHECK(spurious < 1e-12);
      }
    });
}

TEST_CASE("cosmology: two crossed plane waves have the second-order displacement worked out by hand") {
  // density a cos(kx) + b cos(ly): phi,xx phi,yy = a b cos(kx) cos(ly), so phi2 = -a b cos(kx) cos(ly) / (k^2 + l^2).
  constexpr long n = 32;
  const double a = 0.5, b = 0.8, k = 2 * pi / n * 2, l = 2 * pi / n * 3, c = a * b / (k * k + l * l);
  for (const auto& [p, q] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}, std::pair{2, 0}})
    on_ranks({1, 2}, [&, p = p, q = q](const Communicator& comm) {
      Universe u(comm, n);
      auto along = [](int axis, long x, long y, long z) {
        return static_cast<double>(axis == 0 ? x : axis == 1 ? y : z);
      };
      u.set_density([&](long x, double* plane) {
        for (long i = 0; i < n * n; ++i)
          plane[i] = a * std::cos(k * along(p, x, i / n, i % n)) + b * std::cos(l * along(q, x, i / n, i % n));
      });
      u.displace();
      for (int axis = 0; axis < 3; ++axis) {
        const auto second = u.displacement(2, axis);
        double worst = 0;
        std::size_t i = 0;
        for (long x = u.planes().lo; x < u.planes().hi; ++x)
          for (long y = 0; y < n; ++y)
            for (long z = 0; z < n; ++z, ++i) {
              const double s = k * along(p, x, y, z), t = l * along(q, x, y, z);
              const double want = axis == p   ? c * k * std::sin(s) * std::cos(t)
                                  : axis == q ? c * l * std::cos(s) * std::sin(t)
                                              : 0;
              worst = std::max(worst, std::abs(static_cast<double>(second[i]) - want));
            }
        CHECK(worst < 1e-6);
      }
    });
}

TEST_CASE("cosmology: the Nyquist wave displaces nothing") {
  constexpr long n = 16;
  Universe u(Communicator(), n);
  u.set_density([&](long x, double* plane) {
    for (long i = 0; i < n * n; ++i) plane[i] = (x + i / n + i) % 2 ? -1 : 1;
  });
  u.displace();
  for (int axis = 0; axis < 3; ++axis)
    for (const float v : u.displacement(1, axis)) REQUIRE(std::abs(v) < 1e-12f);
}

// ---- counts --------------------------------------------------------------------------------------------------------

TEST_CASE("cosmology: without density every cell keeps its particle") {
  on_ranks({1, 2, 3, 4}, [](const Communicator& comm) {
    Universe u(comm, 8);
    u.set_density([](long, double* plane) { std::fill_n(plane, 64, 0.0); });
    u.displace();
    for (const std::int16_t c : u.count(0.3)) CHECK(c == 1);
  });
}

TEST_CASE("cosmology: a strong wave moves particles over many cells and slabs, as plain loops say") {
  constexpr long n = 16;
  const double amplitude = 27.3, k = 2 * pi / n; // moves by up to 70 cells: four times around
  std::vector<int> want(n * redshifts.size());
  for (std::size_t r = 0; r < redshifts.size(); ++r)
    for (long x = 0; x < n; ++x) {
      const double to = static_cast<double>(x) + 0.5 -
                        growth(0.3, redshifts[r]) * amplitude / k * std::sin(k * static_cast<double>(x) + 0.4);
      ++want[static_cast<std::size_t>(((static_cast<long>(std::floor(to)) % n) + n) % n) * redshifts.size() + r];
    }
  on_ranks({1, 2, 3, 4, 8}, [&](const Communicator& comm) {
    Universe u(comm, n);
    u.set_density([&](long x, double* plane) {
      std::fill_n(plane, n * n, amplitude * std::cos(k * static_cast<double>(x) + 0.4));
    });
    u.displace();
    const auto counts = gathered(comm, u.count(0.3));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::size_t x = i / (n * n * redshifts.size()), r = i % redshifts.size();
      if (counts[i] != want[x * redshifts.size() + r]) {
        CHECK(counts[i] == want[x * redshifts.size() + r]);
        return;
      }
    }
  });
}

TEST_CASE("cosmology: counts add up, and grow clumpier with time as an independent implementation says") {
  constexpr long n = 64;
  constexpr int universes = 8;
  // Mean and standard deviation over 200 universes at the mean parameters, cells of 4 Mpc/h, worked out with numpy.
  constexpr std::array<std::array<double, 2>, 4> variance{
      {{2.4888, 0.0344}, {2.0840, 0.0267}, {1.1605, 0.0134}, {0.5738, 0.0215}}};
  constexpr std::array<std::array<double, 2>, 4> empty{
      {{0.4744, 0.0014}, {0.4278, 0.0014}, {0.3264, 0.0017}, {0.2140, 0.0067}}};
  std::array<double, 4> v{}, e{};
  Universe u(Communicator(), n);
  for (std::uint32_t s = 0; s < universes; ++s) {
    u.draw_density(LinearPower(mean), 4.0, 77, s);
    u.displace();
    const auto counts = u.count(mean.omega_m);
    double before = 1e9;
    for (std::size_t r = 0; r < 4; ++r) {
      long sum = 0, none = 0;
      for (std::size_t i = r; i < counts.size(); i += 4) {
        sum += counts[i];
        none += counts[i] == 0 ? 1 : 0;
      }
      CHECK(sum == n * n * n);
      const double now = moments(counts, r, 4).variance;
      CHECK(now < before);
      before = now;
      v[r] += now / universes;
      e[r] += static_cast<double>(none) / (n * n * n) / universes;
    }
  }
  for (std::size_t r = 0; r < 4; ++r) {
    const double error = 4 * std::sqrt(1.0 / universes + 1.0 / 200);
    CHECK(std::abs(v[r] - variance[r][0]) < error * variance[r][1]);
    CHECK(std::abs(e[r] - empty[r][0]) < error * empty[r][1]);
  }
}

TEST_CASE("cosmology: the counts are bitwise equal on any number of ranks") {
  struct Size {
    long width;
    std::uint32_t index;
  };
  for (const Size s : {Size{8, 0}, Size{16, 1}, Size{18, 2}, Size{32, 3}}) { // 18: uneven slabs; 8 on 12: empty ones
    const auto alone = counts_of(Communicator(), s.width, 5, s.index);
    on_ranks({1, 2, 3, 4, 6, 8, 12}, [&](const Communicator& comm) {
      CHECK(counts_of(comm, s.width, 5, s.index) == alone);
      // Both ways to share the work: together, and in groups with a universe each.
      const Communicator group = comm.split(comm.rank() % 2);
      CHECK(counts_of(group, s.width, 5, s.index) == alone);
    });
    CHECK(counts_of(Communicator(), s.width, 5, s.index + 1) != alone);
    CHECK(counts_of(Communicator(), s.width, 6, s.index) != alone);
  }
}

TEST_CASE("cosmology: the same recipe gives the same universe as ever") {
  std::uint64_t hash = 14695981039346656037u; // FNV-1a
  for (const std::int16_t c : counts_of(Communicator(), 16, 5, 1))
    hash = (hash ^ static_cast<std::uint64_t>(c)) * 1099511628211u;
  INFO("other counts than before: raise generator_version, then renew this number");
  CHECK(hash == 0xae839c6264bfe507);
  CHECK(generator_version == 1);
}

TEST_CASE("cosmology: a used universe gives what a new one gives") {
  Universe u(Communicator(), 16);
  for (std::uint32_t index : {4u, 9u, 4u}) {
    const Draw drawn = draw(5, index, 0.1);
    u.draw_density(LinearPower(drawn.physical), 4.0, 5, index);
    u.displace();
    const auto counts = u.count(drawn.physical.omega_m);
    CHECK(std::vector<std::int16_t>(counts.begin(), counts.end()) == counts_of(Communicator(), 16, 5, index));
  }
}

TEST_CASE("cosmology: a cell that cannot hold its particles is an error on every rank") {
  on_ranks({1, 3}, [](const Communicator& comm) {
    Universe u(comm, 16);
    u.draw_density(LinearPower(mean), 4.0, 1, 0);
    u.displace();
    const auto told = all_throw<tessera::usage_error>(comm, [&] { u.count(0.3, 5); });
    CHECK(told.find("more than 5 particles") != told.npos);
    CHECK(u.count(0.3).size() == static_cast<std::size_t>(u.planes().size() * 16 * 16 * 4));
  });
}

TEST_CASE("cosmology: widths that make no universe are refused") {
  for (const long width : {-2L, 0L, 6L, 9L, 33L, 1026L})
    CHECK_THROWS_AS(Universe(Communicator(), width), tessera::usage_error);
}

// ---- files ---------------------------------------------------------------------------------------------------------

namespace {

namespace fs = std::filesystem;

/// A directory of this rank's own that goes when it goes.
struct TemporaryDirectory {
  fs::path path;
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "tessera_universes_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw tessera::io_error("cannot make a temporary directory");
    path = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

/// What the program does for one universe; rank 0's failure becomes everyone's.
void make_file(const Communicator& comm, const fs::path& dir, const Recipe& recipe, long index) {
  Universe u(comm, recipe.width);
  const auto seed = static_cast<std::uint64_t>(recipe.seed);
  const auto number = static_cast<std::uint32_t>(index);
  const Draw drawn = draw(seed, number, recipe.range);
  u.draw_density(LinearPower(drawn.physical), recipe.cell, seed, number);
  u.displace();
  const auto counts = u.count(drawn.physical.omega_m);
  std::string failure;
  try {
    write_universe(comm, dir, recipe, index, drawn, u, counts);
  } catch (const tessera::io_error& e) { failure = e.what(); }
  tessera::agree(comm, failure);
}

std::string refusal(const fs::path& dir, const Recipe& recipe, long index) {
  try {
    have_universe(dir, recipe, index);
  } catch (const tessera::error& e) { return e.what(); }
  return "";
}

} // namespace

TEST_CASE("cosmology: files in both orders and types hold the published layout, however many ranks made them") {
  const Recipe recipe{.width = 40, .cell = 3.5, .seed = 11, .range = 0.2}; // slabs of more planes than pass at once
  const long n = recipe.width;
  on_ranks({1, 2, 3}, [&](const Communicator& comm) {
    const TemporaryDirectory dir; // only rank 0's is written to
    for (const Order order : {Order::channel_last, Order::channel_first})
      for (const auto type : {tessera::io::ElementType::i16, tessera::io::ElementType::f32}) {
        Recipe r = recipe;
        r.order = order;
        r.type = type;
        const long index = 2 * static_cast<long>(order) + (type == tessera::io::ElementType::f32 ? 1 : 0) + 1000000;
        make_file(comm, dir.path, r, index);
        if (comm.rank() > 0) continue;
        CHECK(have_universe(dir.path, r, index));
        const tessera::io::Hdf5Reader file(universe_path(dir.path, index).string());
        const auto full = file.info("full");
        CHECK(full.type == type);
        CHECK(full.shape() == (order == Order::channel_last ? "40x40x40x4" : "4x40x40x40"));
        CHECK(file.read_strings("namePar") == std::vector<std::string>{"Omega_m", "sigma_8", "N_spec", "H_0"});
        CHECK(file.read<float>("redshifts") == std::vector<float>{0, 0.5, 1.5, 3});
        const Draw drawn = draw(11, static_cast<std::uint32_t>(index), 0.2);
        CHECK(file.read<float>("unitPar") == std::vector<float>(drawn.unit.begin(), drawn.unit.end()));
        for (std::size_t k = 0; k < 4; ++k)
          CHECK(file.read<double>("physPar")[k] == near(drawn.physical.values()[k], 1e-7));

        Universe u(Communicator(), n);
        u.draw_density(LinearPower(drawn.physical), 3.5, 11, static_cast<std::uint32_t>(index));
        u.displace();
        const auto want = u.count(drawn.physical.omega_m);
        const auto found = file.read<float>("full");
        long wrong = 0;
        for (long cell = 0; cell < n * n * n; ++cell)
          for (long c = 0; c < 4; ++c) {
            const auto there = order == Order::channel_last ? cell * 4 + c : c * n * n * n + cell;
            const auto here = static_cast<float>(want[static_cast<std::size_t>(cell * 4 + c)]);
            wrong += found[static_cast<std::size_t>(there)] == here ? 0 : 1;
          }
        CHECK(wrong == 0);
      }
    CHECK(std::distance(fs::directory_iterator(dir.path), {}) == (comm.rank() == 0 ? 4 : 0));
  });
}

TEST_CASE("cosmology: a set is resumed only with the options it was made with") {
  const TemporaryDirectory dir;
  const Recipe recipe{.width = 8, .cell = 4, .seed = 3, .range = 0.1};
  CHECK_FALSE(have_universe(dir.path, recipe, 5));
  make_file(Communicator(), dir.path, recipe, 5);
  CHECK(have_universe(dir.path, recipe, 5));
  CHECK_FALSE(have_universe(dir.path, recipe, 6));

  auto other = recipe;
  other.cell = 2;
  other.seed = 4;
  const auto told = refusal(dir.path, other, 5);
  CHECK(told.find("universe_000005.hdf5") != told.npos);
  CHECK(told.find("cell is 4, not 2, seed is 3, not 4;") != told.npos);
  other = recipe;
  other.order = Order::channel_first;
  CHECK(refusal(dir.path, other, 5).find("order is channel-last, not channel-first;") != std::string::npos);
  other = recipe;
  other.type = tessera::io::ElementType::f32;
  CHECK(refusal(dir.path, other, 5).find("type is int16, not float32;") != std::string::npos);
  other = recipe;
  other.range = 0.2;
  CHECK(refusal(dir.path, other, 5).find("range is 0.1, not 0.2;") != std::string::npos);

  // What an interrupted run leaves does not count, and is replaced.
  std::fclose(std::fopen((dir.path / "universe_000006.hdf5.part").c_str(), "w"));
  CHECK_FALSE(have_universe(dir.path, recipe, 6));
  make_file(Communicator(), dir.path, recipe, 6);
  CHECK_FALSE(fs::exists(dir.path / "universe_000006.hdf5.part"));
  CHECK(have_universe(dir.path, recipe, 6));

  // A file cut short, and one that is something else.
  fs::resize_file(universe_path(dir.path, 6), fs::file_size(universe_path(dir.path, 6)) / 2);
  CHECK(refusal(dir.path, recipe, 6).find("universe_000006.hdf5") != std::string::npos);
  CHECK(refusal(dir.path, recipe, 6).find("delete it") != std::string::npos);
  fs::copy_file(universe_path(dir.path, 5), universe_path(dir.path, 7));
  CHECK(refusal(dir.path, recipe, 7).find("index is 5, not 7") != std::string::npos);
}

TEST_CASE("cosmology: a directory that cannot be written to is an error on every rank") {
  on_ranks({1, 3}, [](const Communicator& comm) {
    const auto told = all_throw<tessera::io_error>(
        comm, [&] { make_file(comm, "/nonexistent/tessera", {.width = 8, .cell = 4, .seed = 1, .range = 0.1}, 0); });
    CHECK(told.find("/nonexistent/tessera/universe_000000.hdf5") != told.npos);
  });
}
