// A layer of one's own in a small network, on any number of ranks:   mpirun -n 4 sharpen [steps = 100]
//
// The network learns to undo a blur. First the layer is checked. The exit status is not 0 if it does not learn.
#include <cstdio>
#include <cstdlib>
#include <tessera/tessera.hpp>

using namespace tessera;
using namespace tessera::names;

/// y = x + a (x - mean of the 6 neighbours). Outside stands the mirror image of the field.
struct Sharpen {
  constexpr Stencil stencil() const { return window(3).same().padded_with(Padding::reflect); }
  constexpr Extents<5> parameters(int) const { return {{1, 1, 1, 1, 1}}; }

  /// Calls f(cell of x, factor) for the cells in x - mean of the neighbours, for output q.
  template <class F> static void detail_of(Index<5> q, const F& f) {
    for (int k = 2; k < 5; ++k) ++q[k]; // y(q) reads x from q on: the centre of its window is one further
    f(q, 1.0);
    for (int k = 2; k < 5; ++k)
      for (const long step : {-1L, 1L}) {
        Index<5> neighbour = q;
        neighbour[k] += step;
        f(neighbour, -1.0 / 6);
      }
  }
  template <class T> void forward(const Local&, View<const T, 5> x, View<const T, 5> a, View<T, 5> y) const {
    for_each_index(whole(y.extents), [&](const Index<5>& q) {
      y[q] = x[{{q[0], q[1], q[2] + 1, q[3] + 1, q[4] + 1}}];
      detail_of(q, [&](const Index<5>& i, double factor) { y[q] += a.data[0] * static_cast<T>(factor) * x[i]; });
    });
  }
  template <class T>
  void backward(const Local&, View<const T, 5> x, View<const T, 5> a, View<const T, 5> dy, View<T, 5> dx,
                View<T, 5> da) const {
    for_each_index(whole(dy.extents), [&](const Index<5>& q) {
      dx[{{q[0], q[1], q[2] + 1, q[3] + 1, q[4] + 1}}] += dy[q];
      detail_of(q, [&](const Index<5>& i, double factor) {
        dx[i] += a.data[0] * static_cast<T>(factor) * dy[q];
        da.data[0] += static_cast<T>(factor) * x[i] * dy[q];
      });
    });
  }
};

struct Model {
  static constexpr Input input = {.c = 1, .d = 16, .h = 16, .w = 16};
  static constexpr Layout layout = place(n, d, h, w);
  static constexpr auto net = seq(conv(4), leaky_relu(0.1), Sharpen{}, conv(1));
};

int main(int argc, char** argv) {
  double first = 0, last = 0;
  const int status = run(argc, argv, [&](Environment& env) {
    check::layer(env.world(), Sharpen{}); // throws where the layer is wrong
    const Grid<4> grid(env.world(), {1, fit, 1, 1});
    Network<Model, float, reference> model(grid, {.batch = 2});
    Trainer trainer(model, adam{.rate = 0.01}, mean_squared_error{});
    auto x = model.make_input(), t = model.make_target();
    const auto wave = [](const Index<5>& i, double length) {
      return std::cos((6.0 + double(i[0])) / length * double(i[2])) * std::sin(7 / length * double(i[3] + i[4]));
    };
    fill(t, [&](const Index<5>& i) { return wave(i, 10) + wave(i, 4); });
    fill(x, [&](const Index<5>& i) { return wave(i, 10) + 0.4 * wave(i, 4); }); // short waves lose more
    for (int step = 0, steps = argc > 1 ? std::atoi(argv[1]) : 100; step < steps; ++step)
      (step == 0 ? first : last) = trainer.step(x, t);
    if (grid.rank() == 0) std::printf("loss %.5f -> %.5f\n", first, last);
  });
  return status != 0 ? status : last < first / 10 ? 0 : 1;
}
