// The layers that work on each cell: gelu, silu, softmax, and a function of the user's, by hand and on every grid.
#include "alone.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/layer/pointwise.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

struct Swish {
  template <class V> V value(V v) const { return v / (1 + std::exp(-v)); }
  template <class V> V derivative(V v) const {
    const V s = 1 / (1 + std::exp(-v));
    return s * (1 + v * (1 - s));
  }
};

/// What the layer gives on the whole tensors, element by element or cell by cell.
struct Case {
  LayerSpec spec;
  Computed<double> want;
};

const Extents<5> extents{{2, 3, 5, 4, 3}};

double phi(double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); }

Computed<double> by_element(const std::vector<double>& x, const std::vector<double>& dy, double (*f)(double)) {
  Computed<double> c{x, dy, {}, {}};
  for (std::size_t i = 0; i < x.size(); ++i) {
    c.y[i] = f(x[i]);
    c.dx[i] = dy[i] * (f(x[i] + 1e-6) - f(x[i] - 1e-6)) / 2e-6; // differences: to 1e-9
  }
  return c;
}
Computed<double> by_cell(const std::vector<double>& x, const std::vector<double>& dy) {
  Computed<double> c{x, dy, {}, {}};
  const std::size_t cells = 5 * 4 * 3;
  for (std::size_t at = 0; at < x.size(); ++at) {
    if (at / cells % 3 != 0) continue;
    double sum = 0, dot = 0;
    for (std::size_t k = 0; k < 3; ++k) sum += std::exp(x[at + k * cells]);
    for (std::size_t k = 0; k < 3; ++k) c.y[at + k * cells] = std::exp(x[at + k * cells]) / sum;
    for (std::size_t k = 0; k < 3; ++k) dot += c.y[at + k * cells] * dy[at + k * cells];
    for (std::size_t k = 0; k < 3; ++k) c.dx[at + k * cells] = c.y[at + k * cells] * (dy[at + k * cells] - dot);
  }
  return c;
}

template <class T, class Backend>
std::unique_ptr<Layer<T>> made(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& map) {
  const Box<5> box = map.box(grid.rank());
  if (spec.kind == LayerKind::softmax) return std::make_unique<SoftmaxLayer<T, Backend>>(box);
  if (spec.kind == LayerKind::pointwise) return std::make_unique<PointwiseLayer<T, Backend>>(spec, box);
  return std::make_unique<UserLayer<T, Backend, Pointwise<Swish>>>(pointwise(Swish{}), grid, map, map, Extents<5>{});
}

template <class T, class Backend> void check_on_grids(double tolerance) {
  Random random(71);
  std::vector<double> x = random_numbers(random, product(extents)), dy = random_numbers(random, product(extents));
  for (double& v : x) v *= 3;
  const auto silu_of = [](double v) { return v / (1 + std::exp(-v)); };
  const Case cases[] = {
      {gelu(), by_element(x, dy, [](double v) { return v * phi(v); })},
      {gelu(Gelu::tanh),
       by_element(x, dy,
                  [](double v) {
                    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
                  })},
      {silu(), by_element(x, dy, silu_of)},
      {LayerSpec{.kind = LayerKind::user, .function = kernel::Pointwise::custom}, by_element(x, dy, silu_of)},
      {softmax(), by_cell(x, dy)}};
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      for (const Layout& layout : {over_ndhw, place(n, d, d, rep)})
        for (const Case& one : cases) {
          const Map<5> map(layout, grid.shape(), extents);
          const auto layer = made<T, Backend>(one.spec, grid, map);
          Pass<T> pass;
          const auto before = c.counters();
          layer->forward(pass, *std::make_unique<Tensor<T, 5>>(grid, map), *std::make_unique<Tensor<T, 5>>(grid, map));
          CHECK(c.counters() == before); // nothing moves
          const auto got = through<T>(*layer, pass, grid, map, map, x, dy, c.size() % 2);
          check_equal(text(one.spec.name(), " on ", grid.shape(), " as ", layout.str()), got, one.want, tolerance);
        }
    });
  });
}

} // namespace

TEST_CASE("pointwise layers and softmax: plain loops in double, on every grid") {
  check_on_grids<double, reference>(1e-8);
}
TEST_CASE("pointwise layers and softmax: cpu backend, on every grid") {
  check_on_grids<double, cpu>(1e-8);
  check_on_grids<float, cpu>(2e-6);
}
TEST_CASE("softmax layer: by hand, along channels only") {
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  const Map<5> map(over_ndhw, grid.shape(), {{1, 2, 1, 1, 2}});
  SoftmaxLayer<double, reference> layer(map.box(0));
  Pass<double> pass;
  // Logical order: channel 0 of both cells, then channel 1. The cells are (0, log 3) and (0, 0).
  const auto got = through<double>(layer, pass, grid, map, map, {0, 0, std::log(3.0), 0}, {4, 1, 8, 3});
  check_equal("softmax", got, {{0.25, 0.5, 0.75, 0.5}, {0.25 * (4 - 7), -0.5, 0.75 * (8 - 7), 0.5}, {}, {}}, 1e-15);
}
