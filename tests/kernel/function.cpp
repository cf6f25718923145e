// Activations and pointwise functions: PyTorch's values, the plain loops in double on any strides, the user's own.
#include "operands.hpp"

#include <tessera/kernel/function.hpp>
#include <tessera/kernel/pointwise.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation, kernel::Pointwise;

namespace {

// x = torch.tensor([-4, -1, -.25, 0, .5, 3], dtype=torch.float64, requires_grad=True); y = f(x); y.sum().backward()
constexpr double x_of[] = {-4, -1, -0.25, 0, 0.5, 3};
struct Values {
  double y[6], dx[6];
};
constexpr Values elu_07 = // F.elu(x, 0.7)
    {{-0.687179052777886, -0.44248439117999, -0.154839451850017, 0, 0.5, 3},
     {0.0128209472221139, 0.25751560882001, 0.545160548149983, 0.7, 1, 1}};
constexpr Values of_sigmoid = // torch.sigmoid(x)
    {{0.0179862099620916, 0.268941421369995, 0.437823499114202, 0.5, 0.622459331201855, 0.952574126822433},
     {0.0176627062132911, 0.196611933241482, 0.246134082737598, 0.25, 0.235003712201594, 0.045176659730912}};
constexpr Values of_tanh = // torch.tanh(x)
    {{-0.999329299739067, -0.761594155955765, -0.244918662403709, 0, 0.46211715726001, 0.99505475368673},
     {0.00134095068302592, 0.419974341614026, 0.940014848806378, 1, 0.786447732965927, 0.00986603716544017}};
constexpr Values of_gelu = // F.gelu(x)
    {{-0.00012668496733248, -0.158655253931457, -0.100323418579269, 0, 0.345731230637007, 2.99595030590511},
     {-0.000503649661226421, -0.0833154705876863, 0.304626645116364, 0.5, 0.867495124656163, 1.01194564720418}};
constexpr Values of_gelu_tanh = // F.gelu(x, approximate='tanh')
    {{-7.02459481922713e-05, -0.158808009391723, -0.100324649298315, 0, 0.345714009825144, 2.99636260791823},
     {-0.000335123197122187, -0.0829640838457825, 0.30464590484894, 0.5, 0.867369903534642, 1.01158416663097}};
constexpr Values of_silu = // F.silu(x)
    {{-0.0719448398483662, -0.268941421369995, -0.10945587477855, 0, 0.311229665600927, 2.8577223804673},
     {-0.0526646148910729, 0.0723294881285133, 0.376289978429802, 0.5, 0.739961187302652, 1.08810410601517}};

/// Six values repeated, so that both vectors and single elements are used.
template <class T> struct Line {
  Block<T> x, y, dy, dx;
  Line() : x(Extents<5>{{1, 1, 1, 1, 66}}), y(x.view.extents), dy(x.view.extents), dx(x.view.extents) {
    for (std::size_t i = 0; i < 66; ++i) x.memory[i] = static_cast<T>(x_of[i % 6]), dy.memory[i] = 2;
  }
  /// dy = 2 everywhere.
  bool is(const Values& v, const Block<T>& gradient, double tolerance) const {
    bool right = true;
    for (std::size_t i = 0; i < 66; ++i)
      right = right && std::abs(double(y.memory[i]) - v.y[i % 6]) < tolerance &&
              std::abs(double(gradient.memory[i]) - 2 * v.dx[i % 6]) < 2 * tolerance;
    return right;
  }
};

template <class T> void check_published(double tolerance) {
  const std::pair<Activation, Values> taken_in[] = {
      {Activation::elu, elu_07}, {Activation::sigmoid, of_sigmoid}, {Activation::tanh, of_tanh}};
  for (const auto& [kind, want] : taken_in) {
    const Activation act = kind;
    CAPTURE(act);
    Line<T> l;
    kernel::activation_forward<T>(act, 0.7, l.x.view, l.y.view);
    kernel::activation_backward<T>(act, 0.7, l.y.view, l.dy.view);
    CHECK(l.is(want, l.dy, tolerance));
    for (std::size_t i = 0; i < 6; ++i) { // the plain loops
      const T y = kernel::activate(act, 0.7, static_cast<T>(x_of[i]));
      CHECK(std::abs(double(y) - want.y[i]) < tolerance);
      CHECK(std::abs(double(kernel::activation_slope(act, 0.7, y)) - want.dx[i]) < tolerance);
    }
  }
  const std::pair<Pointwise, Values> alone[] = {
      {Pointwise::gelu, of_gelu}, {Pointwise::gelu_tanh, of_gelu_tanh}, {Pointwise::silu, of_silu}};
  for (const auto& [kind, want] : alone) {
    const Pointwise function = kind;
    CAPTURE(function);
    Line<T> l;
    kernel::pointwise_forward<T>(function, l.x.view, l.y.view);
    kernel::pointwise_backward<T>(function, l.x.view, l.dy.view, l.dx.view);
    CHECK(l.is(want, l.dx, tolerance));
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(std::abs(double(kernel::pointwise_value(function, static_cast<T>(x_of[i]))) - want.y[i]) < tolerance);
      CHECK(std::abs(double(kernel::pointwise_derivative(function, static_cast<T>(x_of[i]))) - want.dx[i]) < tolerance);
    }
  }
}

/// x^3, and the derivative of something else, so that a mix-up of the two shows.
struct Cube {
  template <class V> V value(V v) const { return v * v * v; }
  template <class V> V derivative(V v) const { return v + 5; }
};

} // namespace

TEST_CASE("pointwise functions and activations: PyTorch's values") {
  check_published<double>(1e-14);
  check_published<float>(3e-7);
}

TEST_CASE("pointwise functions and activations on any strides equal the plain loops in double") {
  constexpr std::uint64_t seed = 403;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 120; ++round) {
    const Extents<5> e{{random.in(0, 2), random.in(1, 37), random.in(1, 4), random.in(1, 4), random.in(1, 5)}};
    const Gaps gaps = round % 2 ? Gaps::everywhere : Gaps::none;
    const auto act = static_cast<Activation>(3 + round % 3);
    const auto function = static_cast<Pointwise>(1 + round % 3);
    Block<float> x(e, gaps, random), y(e, gaps, random), dy(e, gaps, random), dx(e, gaps, random), a(e, gaps, random),
        g(e, gaps, random);
    x.randomise(random), dy.randomise(random);
    for_each_index(whole(e), [&](const Index<5>& i) { x.view[i] *= 6; });
    copy_block(dy.read(), g.view);
    kernel::activation_forward<float>(act, 0.25, x.view, a.view);
    kernel::activation_backward<float>(act, 0.25, a.view, g.view);
    kernel::pointwise_forward<float>(function, x.view, y.view);
    kernel::pointwise_backward<float>(function, x.view, dy.view, dx.view);
    bool right = true;
    for_each_index(whole(e), [&](const Index<5>& i) {
      const double v = double(x.view[i]), d = double(dy.view[i]), out = kernel::activate(act, 0.25, v);
      const auto near = [&](float got, double want) {
        right = right && std::abs(double(got) - want) < 1e-6 * std::max(1.0, std::abs(want));
      };
      near(a.view[i], out);
      near(g.view[i], d * kernel::activation_slope(act, 0.25, out));
      near(y.view[i], kernel::pointwise_value(function, v));
      near(dx.view[i], d * kernel::pointwise_derivative(function, v));
    });
    CHECK(right);
    kernel::function_forward<float>(Cube{}, x.view, y.view);
    kernel::function_backward<float>(Cube{}, x.view, dy.view, dx.view);
    for_each_index(whole(e), [&](const Index<5>& i) {
      const float v = x.view[i];
      right = right && std::abs(y.view[i] - v * v * v) <= 1e-6F * std::abs(v * v * v) &&
              std::abs(dx.view[i] - dy.view[i] * (v + 5)) <= 1e-6F * std::abs(dy.view[i] * (v + 5));
    });
    CHECK(right);
  }
}

TEST_CASE("pointwise functions refuse unequal extents, channels with gaps, and functions without a name") {
  Block<float> x(Extents<5>{{1, 4, 2, 2, 2}}), y(x.view.extents), small(Extents<5>{{1, 4, 2, 2, 1}});
  CHECK_THROWS_AS(kernel::pointwise_forward<float>(Pointwise::silu, x.view, small.view), usage_error);
  CHECK_THROWS_AS(kernel::function_backward<float>(Cube{}, x.view, y.view, small.view), usage_error);
  View<const float, 5> turned = x.read();
  std::swap(turned.strides[1], turned.strides[4]);
  turned.extents = {{1, 2, 2, 2, 4}};
  Block<float> to(turned.extents);
  CHECK_THROWS_WITH_AS(kernel::pointwise_forward<float>(Pointwise::gelu, turned, to.view),
                       doctest::Contains("contiguous"), usage_error);
  CHECK_THROWS_AS(kernel::pointwise_forward<float>(Pointwise::custom, x.view, y.view), usage_error);
}
