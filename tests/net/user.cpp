// A network with a layer of the user's own, with weights and without any communication in it.
#include "networks.hpp"

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// y[o] = sum over channels of a0[o] x[centre] + a1[o] x[the cell before it in depth and after it in width].
struct Slant {
  constexpr Stencil stencil() const { return window(3).same(); }
  constexpr int channels(int in) const { return in + 1; }
  constexpr Extents<5> parameters(int in) const { return {{in + 1, 1, 1, 1, 2}}; }

  static Index<5> cell(Index<5> q, long c, long dd, long dw) {
    q[1] = c, q[2] += 1 + dd, q[3] += 1, q[4] += 1 + dw;
    return q;
  }
  template <class T> void forward(const Local&, View<const T, 5> x, View<const T, 5> a, View<T, 5> y) const {
    for_each_index(whole(y.extents), [&](const Index<5>& q) {
      y[q] = T{};
      for (long c = 0; c < x.extents[1]; ++c)
        y[q] += a(q[1], 0, 0, 0, 0) * x[cell(q, c, 0, 0)] + a(q[1], 0, 0, 0, 1) * x[cell(q, c, -1, 1)];
    });
  }
  template <class T>
  void backward(const Local&, View<const T, 5> x, View<const T, 5> a, View<const T, 5> dy, View<T, 5> dx,
                View<T, 5> da) const {
    for_each_index(whole(dy.extents), [&](const Index<5>& q) {
      for (long c = 0; c < x.extents[1]; ++c) {
        const Index<5> here = cell(q, c, 0, 0), there = cell(q, c, -1, 1);
        dx[here] += a(q[1], 0, 0, 0, 0) * dy[q];
        dx[there] += a(q[1], 0, 0, 0, 1) * dy[q];
        da(q[1], 0, 0, 0, 0) += dy[q] * x[here];
        da(q[1], 0, 0, 0, 1) += dy[q] * x[there];
      }
    });
  }
};

struct Model {
  static constexpr Input input{.c = 2, .d = 6, .h = 5, .w = 6};
  static constexpr Layout layout = over_ndhw;
  static constexpr auto net = seq(Slant{}, leaky_relu(0.1), average_pool(window(3).pad(1).strided(2)), Slant{}, relu(),
                                  to(whole_samples), flatten(), dense(2));
};
using Net = Network<Model, double, reference>;
static_assert(Net::parameter_count == 3 * 2 + 4 * 2 + 2 * (4 * 27) + 2);

double loss(Net& net, Net::Field& x) {
  const auto y = gather(net.forward(x, Mode::training));
  double sum = 0;
  for (long s = 0; s < 3; ++s)
    for (long o = 0; o < 2; ++o) sum += y[std::size_t(2 * s + o)] * wave({{s, o}}, 1);
  return sum;
}

} // namespace

TEST_CASE("a user's layer in a network: equal on every grid, its gradients summed") {
  const Grid<4> alone(Communicator(), {1, 1, 1, 1});
  Net one(alone, {.batch = 3});
  const Passed want = pass(one, 3);
  on_ranks([&](const Communicator& c) {
    for (const auto& f : factorisations(c.size(), 4)) {
      Net net(Grid<4>(c, {f[0], f[1], f[2], f[3]}), {.batch = 3});
      const Passed got = pass(net, 3);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-12, net.grid().shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-12, net.grid().shape().str());
    }
  });
}

TEST_CASE("a user's layer in a network: gradients equal finite differences") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    Net net(Grid<4>(c, {1, c.size(), 1, 1}), {.batch = 3});
    const std::vector<double> gradients = pass(net, 3).gradients;
    auto x = net.make_input();
    fill(x, [](const Index<5>& i) { return wave(i); });
    for (std::size_t k = 0; k < 14; ++k) { // both layers' weights
      double& value = net.parameters()[k];
      const double before = value, step = 1e-6;
      value = before + step;
      const double above = loss(net, x);
      value = before - step;
      const double below = loss(net, x);
      value = before;
      CHECK(gradients[k] == doctest::Approx((above - below) / (2 * step)).epsilon(1e-6));
    }
  });
}
