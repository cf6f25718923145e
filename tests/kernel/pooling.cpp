// The pooling kernels in float and double against the plain loops in double: whole tensors and blocks of them.
#include "operands.hpp"

#include <tessera/kernel/pooling.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation, kernel::Pool, kernel::Pooling;
namespace reference = tessera::kernel::reference;

namespace {

/// A block of a larger tensor: some outputs, the cells they need and perhaps more, in periodic dims wrapped cells too.
Pooling random_pooling(Random& random) {
  constexpr long channels[] = {1, 3, 8, 17};
  Pooling p{.kind = random.one_in(2) ? Pool::max : Pool::average,
            .n = random.in(0, 2),
            .c = channels[random.pick(0, 3)],
            .count_padding = random.one_in(2)};
  for (int i = 0; i < 3; ++i) {
    p.k[i] = random.in(1, 5), p.stride[i] = random.in(1, 3), p.dilation[i] = random.in(1, 2);
    p.padding[i] = random.in(0, 2), p.global[i] = random.in(1, 9);
    const long reach = kernel::span(p.k[i], p.dilation[i]), above = random.in(0, 2);
    const long room = p.global[i] + p.padding[i] + above - reach;
    long all = room < 0 ? 0 : room / p.stride[i] + 1;
    if (random.one_in(3)) { // one more window, which reaches beyond the padding
      p.padding_above[i] = above;
      if (all * p.stride[i] < p.global[i] + p.padding[i]) ++all;
    }
    p.out_origin[i] = random.in(0, all);
    p.out[i] = random.in(0, all - p.out_origin[i]);
    long lo = p.out_origin[i] * p.stride[i] - p.padding[i];
    long hi = p.out[i] == 0 ? lo : lo + (p.out[i] - 1) * p.stride[i] + reach;
    lo -= random.in(0, 1);
    hi += random.in(0, 1);
    lo = std::clamp(lo, 0L, p.global[i]), hi = std::clamp(hi, lo, p.global[i]);
    p.in_origin[i] = lo, p.in[i] = hi - lo;
  }
  return p;
}

template <class T> void compare(const Pooling& p, Random& random) {
  Block<T> x(kernel::x_extents(p), Gaps::everywhere, random), y(kernel::y_extents(p), Gaps::everywhere, random),
      dy(kernel::y_extents(p), Gaps::everywhere, random), dx(kernel::x_extents(p), Gaps::everywhere, random);
  // Few different values, so that maxima tie.
  for_each_index(whole(x.view.extents), [&](const Index<5>& i) { x.view[i] = static_cast<T>(random.in(-3, 3)); });
  dy.randomise(random);
  const auto act = static_cast<Activation>(random.in(0, 2));
  const auto x64 = converted<double>(x.read()), dy64 = converted<double>(dy.read());
  Block<double> y64(kernel::y_extents(p)), dx64(kernel::x_extents(p));
  reference::pooling<double>(p, x64.view, y64.view);
  reference::pooling_backward<double>(p, x64.view, dy64.view, dx64.view, act, 0.25);
  kernel::pool_forward<T>(p, x.view, y.view);
  kernel::pool_backward<T>(p, x.view, dy.view, dx.view, act, 0.25);
  // Sums of at most 5^3 windows or cells of size 3 at most.
  const double bound = 64 * static_cast<double>(std::numeric_limits<T>::epsilon());
  double worst = 0;
  const auto see = [&](double a, double b) {
    const double error = std::abs(a - b);
    worst = error <= worst ? worst : error;
  };
  for_each_index(whole(y.view.extents), [&](const Index<5>& i) { see(double(y.view[i]), y64.view[i]); });
  for_each_index(whole(dx.view.extents), [&](const Index<5>& i) { see(double(dx.view[i]), dx64.view[i]); });
  CHECK(worst <= bound);
  if (p.kind == Pool::average) {
    kernel::pool_backward<T>(p, x.view, dy.view, x.view, act, 0.25); // the gradient may take the place of x
    worst = 0;
    for_each_index(whole(dx.view.extents), [&](const Index<5>& i) { see(double(x.view[i]), double(dx.view[i])); });
    CHECK(worst == 0);
  }
}

} // namespace

TEST_CASE("pooling of random blocks equals the plain loops, forward and backward with the activation fused") {
  constexpr std::uint64_t seed = 301;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 600; ++round) {
    const Pooling p = random_pooling(random);
    INFO("round ", round, ": in ", p.in.str(), ", out ", p.out.str(), ", kernel ", p.k.str(), ", stride ",
         p.stride.str(), ", dilation ", p.dilation.str());
    compare<float>(p, random);
    compare<double>(p, random);
  }
}

TEST_CASE("pooling in two blocks along depth adds up to pooling the whole") {
  Random random(302);
  for (const Pool kind : {Pool::average, Pool::max}) {
    const Pooling whole_p{.kind = kind,
                          .n = 1,
                          .c = 4,
                          .in = {{8, 8, 8}},
                          .out = {{4, 4, 4}},
                          .k = {{3, 3, 3}},
                          .stride = {{2, 2, 2}},
                          .padding = {{1, 1, 1}},
                          .global = {{8, 8, 8}},
                          .count_padding = false};
    Block<float> x(kernel::x_extents(whole_p)), y(kernel::y_extents(whole_p)), dy(kernel::y_extents(whole_p)),
        dx(kernel::x_extents(whole_p)), sum(kernel::x_extents(whole_p)), y2(kernel::y_extents(whole_p));
    x.randomise(random);
    dy.randomise(random);
    kernel::pool_forward<float>(whole_p, x.view, y.view);
    kernel::pool_backward<float>(whole_p, x.view, dy.view, dx.view, Activation::none, 0);
    for (long half = 0; half < 2; ++half) {
      Pooling p = whole_p;
      p.out[0] = 2, p.out_origin[0] = 2 * half;
      p.in_origin[0] = half == 0 ? 0 : 3, p.in[0] = half == 0 ? 4 : 5; // the upper half needs plane 3 of the lower one
      const Box<5> in{{{0, 0, p.in_origin[0], 0, 0}}, {{1, 4, p.in_origin[0] + p.in[0], 8, 8}}};
      const Box<5> out{{{0, 0, 2 * half, 0, 0}}, {{1, 4, 2 * half + 2, 4, 4}}};
      kernel::pool_forward<float>(p, x.view.box(in), y2.view.box(out));
      Block<float> part(kernel::x_extents(p));
      kernel::pool_backward<float>(p, x.view.box(in), dy.view.box(out), part.view, Activation::none, 0);
      add_block(part.read(), sum.view.box(in));
    }
    CHECK(y.memory == y2.memory);
    double worst = 0;
    for (std::size_t i = 0; i < dx.memory.size(); ++i)
      worst = std::max(worst, double(std::abs(dx.memory[i] - sum.memory[i])));
    CHECK(worst <= 1e-6);
  }
}

TEST_CASE("pooling refuses blocks without their halo, wrong extents, and channels that are not contiguous") {
  Pooling p{.n = 1,
            .c = 2,
            .in = {{4, 4, 4}},
            .out = {{2, 2, 2}},
            .k = {{2, 2, 2}},
            .stride = {{2, 2, 2}},
            .global = {{4, 4, 4}}};
  Block<float> x(kernel::x_extents(p)), y(kernel::y_extents(p));
  CHECK_NOTHROW(kernel::pool_forward<float>(p, x.view, y.view));
  CHECK_THROWS_AS(kernel::pool_forward<float>(p, y.view, y.view), usage_error);
  View<float, 5> spread = x.view;
  spread.strides[1] = 2;
  CHECK_THROWS_AS(kernel::pool_forward<float>(p, spread, y.view), usage_error);
  p.out_origin[0] = 1;
  p.global[0] = 8;
  CHECK_THROWS_WITH_AS(kernel::pool_forward<float>(p, x.view, y.view), doctest::Contains("halo"), usage_error);
}
