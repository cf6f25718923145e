// Softmax by hand, against PyTorch, where exp alone would overflow, and against the plain loops in double on any
// strides.
#include "operands.hpp"

#include <tessera/kernel/softmax.hpp>

using namespace tessera;
using namespace tessera::test;
namespace reference = tessera::kernel::reference;

namespace {
/// One cell with these channels.
template <class T> Block<T> cell(std::initializer_list<double> values) {
  Block<T> b(Extents<5>{{1, long(values.size()), 1, 1, 1}});
  std::transform(values.begin(), values.end(), b.memory.begin(), [](double v) { return static_cast<T>(v); });
  return b;
}
template <class T> bool is(const Block<T>& b, std::initializer_list<double> want, double tolerance) {
  std::size_t i = 0;
  for (const double w : want)
    if (!(std::abs(double(b.memory[i++]) - w) <= tolerance)) return false;
  return true;
}

template <class T> void check_by_hand(double tolerance) {
  auto x = cell<T>({0, std::log(2.0), std::log(5.0)}), y = cell<T>({9, 9, 9}), dy = cell<T>({8, 0, 16}),
       dx = cell<T>({7, 7, 7});
  for (int way = 0; way < 2; ++way) {
    if (way == 0) {
      kernel::softmax<T>(x.view, y.view), kernel::softmax_backward<T>(y.view, dy.view, dx.view);
    } else {
      reference::softmax<T>(x.view, y.view), reference::softmax_backward<T>(y.view, dy.view, dx.view);
    }
    CHECK(is(y, {1. / 8, 2. / 8, 5. / 8}, tolerance));
    CHECK(is(dx, {-3. / 8, -22. / 8, 25. / 8}, 16 * tolerance)); // sum of y dy = 11
    fill_block(y.view, T{});
  }
}
} // namespace

TEST_CASE("softmax: by hand") {
  check_by_hand<double>(1e-15);
  check_by_hand<float>(2e-7);
}

TEST_CASE("softmax: PyTorch's values") {
  // x = torch.tensor([1, -2, .5, 3], dtype=torch.float64, requires_grad=True); y = torch.softmax(x, 0);
  // (y * torch.tensor([1., 2, -1, .5], dtype=torch.float64)).sum().backward()
  auto x = cell<double>({1, -2, 0.5, 3}), y = cell<double>({0, 0, 0, 0}), dy = cell<double>({1, 2, -1, 0.5}),
       dx = cell<double>({7, 7, 7, 7});
  kernel::softmax<double>(x.view, y.view);
  kernel::softmax_backward<double>(y.view, dy.view, dx.view);
  CHECK(is(y, {0.11055375036173921, 0.0055041471275836728, 0.067054239140611469, 0.81688786337006569}, 1e-15));
  CHECK(is(dx, {0.059372699582072266, 0.0084601397808609508, -0.098097115634788651, 0.030264276271855437}, 1e-15));
}

TEST_CASE("softmax: values whose exponentials no float holds") {
  auto x = cell<float>({1000, 999, -1000}), y = cell<float>({0, 0, 0});
  kernel::softmax<float>(x.view, y.view);
  const double e = std::exp(-1.0);
  CHECK(is(y, {1 / (1 + e), e / (1 + e), 0}, 1e-7));
  std::fill_n(x.memory.begin(), 3, -500.F);
  kernel::softmax<float>(x.view, y.view);
  CHECK(is(y, {1. / 3, 1. / 3, 1. / 3}, 1e-7));
}

TEST_CASE("softmax on any strides equals the plain loops in double") {
  constexpr std::uint64_t seed = 601;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 150; ++round) {
    const long channels = round % 3 == 0 ? random.in(1, 5) : round % 3 == 1 ? random.in(5, 40) : random.in(1000, 1100);
    const Extents<5> e{{random.in(0, 2), channels, random.in(1, 3), random.in(1, 4), random.in(1, 70)}};
    const Gaps gaps = round % 2 ? Gaps::everywhere : Gaps::none;
    Block<float> x(e, gaps, random), dy(e, gaps, random), y(e, gaps, random), dx(e, gaps, random);
    x.randomise(random), dy.randomise(random);
    for_each_index(whole(e), [&](const Index<5>& i) { x.view[i] *= 8; });
    const auto x64 = converted<double>(x.read()), dy64 = converted<double>(dy.read());
    Block<double> y64(e), dx64(e);
    kernel::softmax<float>(x.read(), y.view);
    kernel::softmax_backward<float>(y.read(), dy.read(), dx.view);
    reference::softmax<double>(x64.view, y64.view);
    reference::softmax_backward<double>(y64.view, dy64.view, dx64.view);
    bool right = true;
    for_each_index(whole(e), [&](const Index<5>& i) {
      right = right && std::abs(double(y.view[i]) - y64.view[i]) < 1e-6 &&
              std::abs(double(dx.view[i]) - dx64.view[i]) < 1e-6;
    });
    CHECK(right);
  }
}
