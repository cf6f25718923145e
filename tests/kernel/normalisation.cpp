// The passes of batch normalisation in float against the plain loops in double, on dense and on strided views.
#include "operands.hpp"

#include <tessera/kernel/normalisation.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation;
namespace reference = tessera::kernel::reference;

namespace {

std::vector<double> per_channel(long channels, Random& random) {
  std::vector<double> v(static_cast<std::size_t>(channels));
  for (double& x : v) x = static_cast<double>(static_cast<float>(random.real()));
  return v;
}
std::vector<float> narrow(const std::vector<double>& v) { return {v.begin(), v.end()}; }

bool near(const std::vector<double>& a, const std::vector<double>& b, double scale) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-6 * scale)) return false;
  return a.size() == b.size();
}

} // namespace

TEST_CASE("batch normalisation: sums, squares, scaling and the gradient on any strides") {
  constexpr std::uint64_t seed = 501;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 120; ++round) {
    const Extents<5> e{{random.in(0, 3), random.in(1, 37), random.in(1, 4), random.in(1, 4), random.in(1, 9)}};
    const Gaps gaps = round % 2 ? Gaps::everywhere : Gaps::none;
    const auto act = static_cast<Activation>(round % 3);
    const long channels = e[1];
    const double cells = static_cast<double>(std::max(1L, product(e) / channels));
    Block<float> x(e, gaps, random), dy(e, gaps, random), y(e, gaps, random), dx(e, gaps, random);
    x.randomise(random), dy.randomise(random);
    const auto x64 = converted<double>(x.read()), dy64 = converted<double>(dy.read());
    Block<double> y64(e), dx64(e);
    const auto mean = per_channel(channels, random), a = per_channel(channels, random),
               b = per_channel(channels, random), c = per_channel(channels, random);
    const auto mean32 = narrow(mean), a32 = narrow(a), b32 = narrow(b), c32 = narrow(c);
    std::vector<double> got(static_cast<std::size_t>(2 * channels), 7.0), want(got);

    kernel::channel_sums<float>(x.read(), got.data());
    reference::channel_sums<double>(x64.view, want.data());
    CHECK(near(got, want, cells));
    kernel::channel_squares<float>(x.read(), mean32.data(), got.data());
    reference::channel_squares<double>(x64.view, mean.data(), want.data());
    CHECK(near(got, want, 4 * cells));
    kernel::normalisation_sums<float>(x.read(), dy.read(), mean32.data(), got.data());
    reference::normalisation_sums<double>(x64.view, dy64.view, mean.data(), want.data());
    CHECK(near(got, want, 2 * cells));

    kernel::normalise<float>(x.read(), mean32.data(), a32.data(), b32.data(), act, 0.25, y.view);
    reference::normalise<double>(x64.view, mean.data(), a.data(), b.data(), act, 0.25, y64.view);
    kernel::normalisation_backward<float>(x.read(), dy.read(), mean32.data(), a32.data(), b32.data(), c32.data(),
                                          dx.view);
    reference::normalisation_backward<double>(x64.view, dy64.view, mean.data(), a.data(), b.data(), c.data(),
                                              dx64.view);
    bool right = true;
    for_each_index(whole(e), [&](const Index<5>& i) {
      right = right && std::abs(static_cast<double>(y.view[i]) - y64.view[i]) < 1e-6 &&
              std::abs(static_cast<double>(dx.view[i]) - dx64.view[i]) < 1e-6;
    });
    CHECK(right);
  }
}

TEST_CASE("batch normalisation: channels that are not contiguous, and unequal extents, are refused") {
  Block<float> x(Extents<5>{{1, 4, 2, 2, 2}}), y(x.view.extents), small(Extents<5>{{1, 4, 2, 2, 1}});
  const std::vector<float> ones(4, 1.F);
  std::vector<double> sums(8);
  View<const float, 5> turned = x.read();
  std::swap(turned.strides[1], turned.strides[4]);
  turned.extents = {{1, 2, 2, 2, 4}};
  CHECK_THROWS_WITH_AS(kernel::channel_sums<float>(turned, sums.data()), doctest::Contains("contiguous"), usage_error);
  CHECK_THROWS_AS(
      kernel::normalise<float>(x.read(), ones.data(), ones.data(), ones.data(), Activation::none, 0, small.view),
      usage_error);
  CHECK_THROWS_AS(kernel::normalisation_sums<float>(x.read(), small.read(), ones.data(), sums.data()), usage_error);
}
