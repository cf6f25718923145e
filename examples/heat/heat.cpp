// The heat equation u_t = u_xx + u_yy + u_zz in the unit cube, zero on its surface, by explicit Euler steps, on any
// number of ranks:   mpirun -n 4 heat [points per side = 128] [steps = 200]
//
// A sine mode stays a sine mode: each step multiplies it by one number, which is known for the scheme and, nearly the
// same, for the equation. Both are checked; the exit status is not 0 if the result is wrong.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <tessera/comm/environment.hpp>
#include <tessera/expr/reduce.hpp>

using namespace tessera;
using namespace tessera::names;

/// The factorisation of the number of ranks that is closest to a cube; the first dims get the larger factors.
static std::array<int, 3> near_cube(int ranks) {
  std::array<int, 3> best{ranks, 1, 1};
  for (int a = 1; a <= ranks; ++a)
    for (int b = 1; ranks % a == 0 && b <= ranks / a; ++b)
      if (ranks / a % b == 0 && a + b + ranks / a / b <= best[0] + best[1] + best[2]) best = {a, b, ranks / a / b};
  return best;
}

static int heat(Environment& env, int argc, char** argv) {
  using std::numbers::pi;
  const long points = argc > 1 ? std::atol(argv[1]) : 128, steps = argc > 2 ? std::atol(argv[2]) : 200;
  TESSERA_REQUIRE(points >= 1 && steps >= 1, "heat: ", points, " points and ", steps,
                  " steps; usage: heat [points per side] [steps], both at least 1");
  const double width = 1.0 / double(points + 1); // from point to point; the surface is one beyond the last
  const double r = 0.15;                         // dt / width^2; stable up to 1/6
  const double time = double(steps) * r * width * width;

  const Grid<3> grid(env.world(), near_cube(env.world().size()));
  DistTensor<double, 3, place(d, h, w)> mode(grid, {points, points, points}), u;
  const auto wave = [&](long i) { return std::sin(pi * width * double(i + 1)); };
  fill(mode, [&](const Index<3>& i) { return wave(i[0]) * wave(i[1]) * wave(i[2]); });
  u = mode;

  env.world().barrier();
  const auto start = std::chrono::steady_clock::now();
  for (long step = 0; step < steps; ++step)
    u = u + r * (shift<d>(u, +1) + shift<d>(u, -1) + shift<h>(u, +1) + shift<h>(u, -1) + shift<w>(u, +1) +
                 shift<w>(u, -1) - 6 * u);
  env.world().barrier();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const double s = std::sin(pi * width / 2);
  const double scheme = std::pow(1 - 12 * r * s * s, double(steps)), equation = std::exp(-3 * pi * pi * time);
  const double scheme_error = max_of(abs(u - scheme * mode)), equation_error = max_of(abs(u - equation * mode));
  // Truncation: at most pi^4 width^2 / 4 * time from space, and the like from time, times the decay itself.
  const double allowed = 1e-13 + equation * time * std::pow(pi, 4) * width * width * (0.25 + 4.5 * r);
  if (env.world().rank() == 0)
    std::printf("%ld^3 points on a grid %s, %ld steps to t = %.3g, largest value %.6g\n"
                "error against the scheme's exact solution   %.2g\nerror against the equation's exact solution %.2g "
                "(allowed %.2g)\n%.3g million cell updates per second\n",
                points, grid.shape().str().c_str(), steps, time, scheme, scheme_error, equation_error, allowed,
                double(points * points * points) * double(steps) / seconds * 1e-6);
  return scheme_error < 1e-12 && equation_error <= allowed ? 0 : 1;
}

int main(int argc, char** argv) {
  return run(argc, argv, [&](Environment& env) { return heat(env, argc, argv); });
}
