// Upsampling: values by hand and published ones, the own kernels against the plain loops, adjoints. Maxima of blocks.
#include "operands.hpp"

#include <tessera/kernel/resample.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Interpolation, kernel::Upsampling;
namespace reference = tessera::kernel::reference;

namespace {

/// One channel of a volume d x h x 1.
Upsampling plane(long d, long h, long scale_d, long scale_h, Interpolation kind, bool align_corners) {
  Upsampling p{.kind = kind, .align_corners = align_corners, .n = 1, .c = 1};
  p.in = p.global = {{d, h, 1}};
  p.scale = {{scale_d, scale_h, 1}};
  p.out = {{d * scale_d, h * scale_h, 1}};
  return p;
}
std::vector<double> upsampled(const Upsampling& p, std::vector<double> x) {
  std::vector<double> y(std::size_t(product(p.out)));
  reference::upsampling<double>(p, View<double, 5>(x.data(), x_extents(p)), View<double, 5>(y.data(), y_extents(p)));
  return y;
}
void check_near(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-15 * std::max(1.0, want[i]));
}

/// A block of a larger volume: some outputs, the cells they are made of and perhaps more.
Upsampling random_upsampling(Random& random) {
  constexpr long channels[] = {1, 3, 16, 19};
  Upsampling p{.kind = random.one_in(3) ? Interpolation::nearest : Interpolation::trilinear,
               .align_corners = random.one_in(2),
               .n = random.in(0, 2),
               .c = channels[random.pick(0, 3)]};
  for (int i = 0; i < 3; ++i) {
    p.scale[i] = random.in(1, 4), p.global[i] = random.in(1, 5);
    p.out_origin[i] = random.in(0, p.global[i] * p.scale[i] - 1);
    p.out[i] = random.in(0, p.global[i] * p.scale[i] - p.out_origin[i]);
    long lo = 0, hi = p.global[i];
    if (p.out[i] > 0) {
      lo = random.in(0, kernel::blend_of(p, i, p.out_origin[i]).first);
      hi = random.in(kernel::blend_of(p, i, p.out_origin[i] + p.out[i] - 1).second + 1, p.global[i]);
    }
    p.in_origin[i] = lo, p.in[i] = hi - lo;
  }
  return p;
}

template <class T> void compare(const Upsampling& p, Random& random) {
  Block<T> x(kernel::x_extents(p), Gaps::everywhere, random), y(kernel::y_extents(p), Gaps::everywhere, random),
      dy(kernel::y_extents(p), Gaps::everywhere, random), dx(kernel::x_extents(p), Gaps::everywhere, random);
  x.randomise(random), dy.randomise(random);
  const auto x64 = converted<double>(x.read()), dy64 = converted<double>(dy.read());
  Block<double> y64(kernel::y_extents(p)), dx64(kernel::x_extents(p));
  reference::upsampling<double>(p, x64.view, y64.view);
  reference::upsampling_backward<double>(p, dy64.view, dx64.view);
  // <A x, y> = <x, A* y>
  CHECK(std::abs(dot(y64.read(), dy64.read()) - dot(x64.read(), dx64.read())) <= 1e-11);
  kernel::upsample_forward<T>(p, x.view, y.view);
  kernel::upsample_backward<T>(p, dy.view, dx.view);
  const double bound = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
  double worst = 0;
  const auto see = [&](double a, double b, double scale) {
    const double error = std::abs(a - b) / scale;
    worst = error <= worst ? worst : error;
  };
  for_each_index(whole(y.view.extents), [&](const Index<5>& i) { see(double(y.view[i]), y64.view[i], 1); });
  const double heard = double(8 * product(p.scale)); // outputs that hear a cell, at most
  for_each_index(whole(dx.view.extents), [&](const Index<5>& i) { see(double(dx.view[i]), dx64.view[i], heard); });
  CHECK(worst <= bound);
}

} // namespace

TEST_CASE("upsampling by hand") {
  check_near(upsampled(plane(2, 1, 3, 1, Interpolation::nearest, false), {1, 2}), {1, 1, 1, 2, 2, 2});
  // The interpolated points of scale 3 lie at -1/3, 0, 1/3, 2/3, 1, 4/3.
  check_near(upsampled(plane(2, 1, 3, 1, Interpolation::trilinear, false), {0, 3}), {0, 0, 1, 2, 3, 3});
  check_near(upsampled(plane(4, 1, 2, 1, Interpolation::trilinear, false), {1, 2, 3, 4}),
             {1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4});
  check_near(upsampled(plane(3, 1, 2, 1, Interpolation::trilinear, true), {0, 5, 10}), {0, 2, 4, 6, 8, 10});
  check_near(upsampled(plane(1, 1, 4, 1, Interpolation::trilinear, true), {7}), {7, 7, 7, 7});
  check_near(upsampled(plane(1, 1, 4, 1, Interpolation::trilinear, false), {7}), {7, 7, 7, 7});
  // The example in PyTorch's documentation of Upsample.
  check_near(upsampled(plane(2, 2, 2, 2, Interpolation::nearest, false), {1, 2, 3, 4}),
             {1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4});
  check_near(upsampled(plane(2, 2, 2, 2, Interpolation::trilinear, false), {1, 2, 3, 4}),
             {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4});
  const double t = 1.0 / 3;
  check_near(
      upsampled(plane(2, 2, 2, 2, Interpolation::trilinear, true), {1, 2, 3, 4}),
      {1, 1 + t, 1 + 2 * t, 2, 1 + 2 * t, 2, 2 + t, 2 + 2 * t, 2 + t, 2 + 2 * t, 3, 3 + t, 3, 3 + t, 3 + 2 * t, 4});
}

TEST_CASE("upsampling of random blocks equals the plain loops, forward and backward") {
  constexpr std::uint64_t seed = 401;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const Upsampling p = random_upsampling(random);
    INFO("round ", round, ": in ", p.in.str(), ", out ", p.out.str(), ", scale ", p.scale.str(), ", global ",
         p.global.str());
    compare<float>(p, random);
    compare<double>(p, random);
  }
}

TEST_CASE("upsampling refuses blocks without their halo, wrong extents and channels that are not contiguous") {
  Upsampling p = plane(4, 1, 2, 1, Interpolation::trilinear, false);
  p.c = 2;
  Block<float> x(kernel::x_extents(p)), y(kernel::y_extents(p));
  CHECK_NOTHROW(kernel::upsample_forward<float>(p, x.view, y.view));
  CHECK_THROWS_AS(kernel::upsample_forward<float>(p, y.view, y.view), usage_error);
  View<float, 5> spread = x.view;
  spread.strides[1] = 8;
  CHECK_THROWS_WITH_AS(kernel::upsample_forward<float>(p, spread, y.view), doctest::Contains("contiguous"),
                       usage_error);
  p.global[0] = 8, p.out_origin[0] = 4; // made of cells 1 to 6
  CHECK_THROWS_WITH_AS(kernel::upsample_forward<float>(p, x.view, y.view), doctest::Contains("halo"), usage_error);
  p.scale[0] = 0;
  CHECK_THROWS_WITH_AS(kernel::upsample_forward<float>(p, x.view, y.view), doctest::Contains("scale"), usage_error);
}

TEST_CASE("maxima of blocks: the own kernel and the plain loops give the same cells, the first of those that tie") {
  constexpr std::uint64_t seed = 402;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 100; ++round) {
    const Extents<5> e{{random.in(0, 3), random.in(1, 20), random.in(0, 4), random.in(1, 4), random.in(1, 4)}};
    const kernel::Triple origin{{random.in(0, 3), random.in(0, 3), random.in(0, 3)}}, global{{9, 8, 7}};
    Block<float> x(e, Gaps::everywhere, random), dx(e, Gaps::everywhere, random), back(e, Gaps::everywhere, random);
    for_each_index(whole(e), [&](const Index<5>& i) { x.view[i] = float(random.in(-2, 2)); });
    const auto count = std::size_t(e[0] * e[1]);
    std::vector<float> best(count), best2(count);
    std::vector<std::int64_t> where(count), where2(count);
    kernel::volume_maxima<float>(x.view, origin, global, best.data(), where.data());
    reference::volume_maxima<float>(x.view, origin, global, best2.data(), where2.data());
    CHECK(best == best2);
    CHECK(where == where2);
    Block<float> dy(Extents<5>{{e[0], e[1], 1, 1, 1}});
    dy.randomise(random);
    reference::volume_maxima_backward<float>(dy.view, where.data(), origin, global, dx.view);
    for (long n = 0; n < e[0]; ++n)
      for (long c = 0; c < e[1]; ++c) {
        const auto k = std::size_t(n * e[1] + c);
        std::int64_t first = kernel::no_cell;
        float most = -std::numeric_limits<float>::infinity(), given = 0;
        for (long d = e[2]; d-- > 0;) // from the back: the last one seen is the first in order
          for (long h = e[3]; h-- > 0;)
            for (long w = e[4]; w-- > 0;) {
              given += dx.view(n, c, d, h, w);
              if (x.view(n, c, d, h, w) < most) continue;
              most = x.view(n, c, d, h, w);
              first = ((d + origin[0]) * 8 + h + origin[1]) * 7 + w + origin[2];
            }
        CHECK(where[k] == first);
        CHECK(best[k] == most);
        CHECK(given == (e[2] == 0 ? 0.F : dy.view(n, c, 0, 0, 0)));
      }
    kernel::spread<float>(dy.view, 0.5, back.view);
    for_each_index(whole(e), [&](const Index<5>& i) {
      if (back.view[i] != 0.5F * dy.view(i[0], i[1], 0, 0, 0)) FAIL_CHECK("spread differs at ", i.str());
    });
  }
}
