// Pointwise functions and softmax inside networks: the same on every grid, gradients against finite differences, which
// activation is computed with the layer before it, and a function of the user's that uses no memory of its own.
#include "networks.hpp"

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

struct Swish { // the user's: value and derivative, no more
  template <class V> V value(V v) const { return v / (1 + std::exp(-v)); }
  template <class V> V derivative(V v) const {
    const V s = 1 / (1 + std::exp(-v));
    return s * (1 + v * (1 - s));
  }
};
constexpr double square(double v) { return v * v; }
constexpr double twice(double v) { return 2 * v; }

struct Model {
  static constexpr Input input{.c = 2, .d = 7, .h = 5, .w = 6};
  static constexpr Layout layout = over_ndhw;
  static constexpr auto net =
      seq(conv(3).with_bias(0.1), elu(0.7), conv(4), gelu(), batch_norm(), tanh(),
          average_pool(window(3).pad(1).strided(2)), silu(), pointwise(Swish{}), conv(3), sigmoid(),
          max_pool(window(2).pad(0, 1)), pointwise<square, twice>(), gelu(Gelu::tanh), conv(3, window(1)), softmax(),
          conv(2), to(whole_samples), flatten(), dense(4), tanh(), dense(3), softmax());
};
struct Small {
  static constexpr Input input{.c = 2, .d = 8, .h = 4, .w = 4};
  static constexpr Layout layout = over_ndhw;
  static constexpr auto net = seq(pointwise(Swish{}), pointwise<square, twice>());
};
using Net = Network<Model, double, reference>;
using Fast = Network<Model, float, cpu>;

Grid<4> grid_of(const Communicator& c, const std::vector<int>& f) { return {c, {f[0], f[1], f[2], f[3]}}; }

double loss(Net& net, Net::Field& x) {
  const auto y = gather(net.forward(x, Mode::training));
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * wave({{long(i) / 3, long(i) % 3}}, 1);
  return sum;
}

} // namespace

static_assert(Model::net.layers[8].name() == std::string_view("pointwise"));
static_assert(Model::net.layers[1].name() == std::string_view("elu"));

TEST_CASE("pointwise functions in a network: equal on every grid, float close to double") {
  Net one(grid_of(Communicator(), {1, 1, 1, 1}), {.batch = 3});
  const Passed want = pass(one, 3);
  on_ranks([&](const Communicator& c) {
    for (const auto& f : factorisations(c.size(), 4)) {
      Net net(grid_of(c, f), {.batch = 3});
      const Passed got = pass(net, 3);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-11, net.grid().shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-11, net.grid().shape().str());
      Fast fast(grid_of(c, f), {.batch = 3});
      const Passed close = pass(fast, 3);
      CHECK_MESSAGE(distance(close.y, want.y) < 1e-5, net.grid().shape().str());
      CHECK_MESSAGE(distance(close.gradients, want.gradients) < 2e-5, net.grid().shape().str());
    }
  });
}

TEST_CASE("pointwise functions in a network: gradients equal finite differences") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    Net net(grid_of(c, {1, c.size(), 1, 1}), {.batch = 3});
    const std::vector<double> gradients = pass(net, 3).gradients;
    auto x = net.make_input();
    fill(x, [](const Index<5>& i) { return wave(i); });
    Random random(62);
    for (const ParameterInfo& p : net.plan().parameters())
      for (int k = 0; k < 4; ++k) {
        const auto at = p.offset + std::size_t(random.in(0, long(p.count) - 1));
        double& value = net.parameters()[at];
        const double before = value, step = 1e-6;
        value = before + step;
        const double above = loss(net, x);
        value = before - step;
        const double below = loss(net, x);
        value = before;
        const double slope = (above - below) / (2 * step);
        CHECK_MESSAGE(std::abs(slope - gradients[at]) < 1e-7 * std::max(1.0, std::abs(slope)), p.name, ": ",
                      gradients[at], ", differences give ", slope);
      }
  });
}

TEST_CASE("activations are computed with the layer before them, functions that need their input are not") {
  const auto fused = [](const LayerSpec& act) {
    const NetworkPlan plan(shape_of({1, 1, 1, 1}),
                           describe({conv(2), act, flatten(), dense(2), act, batch_norm(), act},
                                    {.c = 1, .d = 3, .h = 3, .w = 3}, whole_samples),
                           1);
    return plan.steps().size();
  };
  for (const LayerSpec& act : {relu(), leaky_relu(0.1), elu(), sigmoid(), tanh()}) CHECK(fused(act) == 4);
  for (const LayerSpec& act : {gelu(), gelu(Gelu::tanh), silu(), softmax()}) CHECK(fused(act) == 7);
}

TEST_CASE("a user's pointwise function takes no scratch memory and moves nothing") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    Network<Small, float, cpu> net(grid_of(c, {1, c.size(), 1, 1}), {.batch = 1});
    CHECK(net.plan().memory(c.rank(), sizeof(float), 0).scratch == 0);
    auto x = net.make_input();
    fill(x, [](const Index<5>& i) { return wave(i); });
    const auto before = c.counters();
    const auto& y = net.forward(x, Mode::training);
    fill(net.output_gradient(), [](const Index<5>&) { return 1; });
    net.backward(x);
    CHECK(c.counters() == before);
    bool right = true;
    for_each_index(whole(y.box().extents()), [&](const Index<5>& i) {
      const double v = double(static_cast<float>(wave(i + y.box().lo))), s = Swish{}.value(v);
      right = right && std::abs(double(y.view()[i]) - s * s) < 1e-6;
    });
    CHECK(right);
  });
}
