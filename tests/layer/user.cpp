// Layers written by users: no communication in them, and equal on every grid to what they are on one rank.
#include "alone.hpp"

#include <tessera/backend/reference.hpp>
#include <tessera/layer/user.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// y[q] = a0 x[first cell of the window] + a1 x[last cell] + a2 q: uses the corners of the halo, weights, and where it
/// is.
struct Corners {
  Stencil s = window(3).same();
  constexpr Stencil stencil() const { return s; }
  constexpr Extents<5> parameters(int) const { return {{1, 1, 1, 1, 3}}; }

  Index<5> cell(const Index<5>& q, int tap) const {
    Index<5> i = q;
    for (int k = 0; k < 3; ++k) i[2 + k] = q[2 + k] * s[k].stride + tap * (s[k].k - 1) * s[k].dilation;
    return i;
  }
  static double place_of(const Local& l, const Index<5>& q) {
    const Index<5> g = q + l.out.lo;
    return double(g[2] + 2 * g[3] - g[4]);
  }
  template <class T> void forward(const Local& l, View<const T, 5> x, View<const T, 5> a, View<T, 5> y) const {
    for_each_index(whole(y.extents), [&](const Index<5>& q) {
      y[q] = a(0, 0, 0, 0, 0) * x[cell(q, 0)] + a(0, 0, 0, 0, 1) * x[cell(q, 1)] + a(0, 0, 0, 0, 2) * place_of(l, q);
    });
  }
  template <class T>
  void backward(const Local& l, View<const T, 5> x, View<const T, 5> a, View<const T, 5> dy, View<T, 5> dx,
                View<T, 5> da) const {
    for_each_index(whole(dy.extents), [&](const Index<5>& q) {
      dx[cell(q, 0)] += a(0, 0, 0, 0, 0) * dy[q];
      dx[cell(q, 1)] += a(0, 0, 0, 0, 1) * dy[q];
      da(0, 0, 0, 0, 0) += dy[q] * x[cell(q, 0)];
      da(0, 0, 0, 0, 1) += dy[q] * x[cell(q, 1)];
      da(0, 0, 0, 0, 2) += dy[q] * place_of(l, q);
    });
  }
};
static_assert(LocalLayer<Corners>);

const std::vector<double> weights{0.5, -2, 0.25};

Computed<double> run(const AnyGrid& grid, const Corners& layer, const Map<5>& in, const std::vector<double>& x,
                     const std::vector<double>& dy, long margin) {
  const Map<5> out = output_map(in, layer.stencil(), in.extents()[1]);
  UserLayer<double, reference, Corners> l(layer, grid, in, out, layer.parameters(1));
  std::vector<double> da(3, std::nan(""));
  Pass<double> pass;
  int ready = 0;
  pass.weights = weights, pass.weight_gradients = da;
  pass.gradients_ready = [&] { ++ready; };
  pass.poke = [] {};
  auto got = through<double>(l, pass, grid, in, out, x, dy, margin);
  CHECK(ready == 1);
  grid.over(out.layout().mask(Placement::Kind::split)).iall_reduce(std::span<double>(da)).wait();
  got.dw = da;
  return got;
}

} // namespace

TEST_CASE("a user's layer: by hand") {
  // Window 3 along w, padding 1 on each side: cells q-1 and q+1.
  const Corners layer{window(1, 1, 3).pad(w, 1, 1)};
  const AnyGrid grid(Communicator(), {1});
  const auto got =
      run(grid, layer, Map<5>(place(w), grid.shape(), {{1, 1, 1, 1, 4}}), {1, 2, 3, 4}, {1, 10, 100, 1000}, 0);
  CHECK(got.y == std::vector<double>{-4, 0.5 - 6 - 0.25, 1 - 8 - 0.5, 1.5 - 0.75});
  CHECK(got.dx == std::vector<double>{5, -2 + 50, -20 + 500, -200});
  CHECK(got.dw == std::vector<double>{10 + 200 + 3000, 2 + 30 + 400, -(10 + 200 + 3000.0)});
}

TEST_CASE("a user's layer: equal to one rank on every grid, whatever its windows") {
  const Extents<5> in{{2, 2, 7, 6, 5}};
  const Stencil stencils[] = {
      window(3).same(),
      window(3).same().periodic(),
      window(2).pad(0, 1).strided(2),
      window(3).dilated(2).pad(2),
      window(1, 5, 3).pad(1, 3).strided(1, 2, 3),
      window(5).same().padded_with(Padding::reflect),
      window(5, 2, 3).pad(4).padded_with(Padding::replicate).padded_with(d, Padding::reflect, Padding::zeros),
      window(3).same().padded_with(h, Padding::zeros, Padding::replicate)};
  for (const Stencil& s : stencils) {
    const Index<3> o = s.output({{in[2], in[3], in[4]}});
    Random random(51);
    const auto x = random_numbers(random, product(in)), dy = random_numbers(random, 4 * product(o));
    const AnyGrid alone(Communicator(), {1, 1, 1, 1});
    const Computed<double> want = run(alone, {s}, Map<5>(over_ndhw, alone.shape(), in), x, dy, 0);
    on_ranks([&](const Communicator& c) {
      on_every_grid(c, [&](const AnyGrid& grid) {
        check_equal(text("kernel ", s.kernel(), " on ", grid.shape()),
                    run(grid, {s}, Map<5>(over_ndhw, grid.shape(), in), x, dy, c.size() % 2), want, 1e-11);
      });
    });
  }
}
