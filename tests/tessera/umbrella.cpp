// The one header that includes all: a program with tensors, a network, training and a checkpoint.
#include <tessera/tessera.hpp>

#include "support/ranks.hpp"

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

struct Model {
  static constexpr Input input = {.c = 2, .d = 8, .h = 8, .w = 8};
  static constexpr Layout layout = place(n, d);
  static constexpr auto net = seq(conv(4), leaky_relu(0.01), max_pool(2), to(place(n, n)), flatten(), dense(2));
};

} // namespace

TEST_CASE("tessera.hpp: tensors move between layouts") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const Grid<2> grid(c, {1, fit});
    DistTensor<float, 5, place(n, d)> x(grid, {{2, 3, 4, 5, 6}});
    fill(x, [](const Index<5>& i) { return i[0] + 10 * i[1] + 100 * i[2]; });
    DistTensor<float, 5, place(w, n)> z(grid, {{2, 3, 4, 5, 6}});
    z = x;
    CHECK(gather(z) == gather(x));
  });
}

TEST_CASE("tessera.hpp: an equation in space steps forward") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const Grid<1> grid(c, {fit});
    DistTensor<double, 3, place(d)> u(grid, {{8, 2, 2}});
    fill(u, [](const Index<3>& i) { return i[0] == 3 ? 1.0 : 0.0; });
    u = u + 0.25 * (shift<d>(u, +1) + shift<d>(u, -1) - 2 * u);
    const auto all = gather(u);
    CHECK(all[2 * 4] == 0.25);
    CHECK(all[3 * 4] == 0.5);
    CHECK(all[4 * 4] == 0.25);
    CHECK(all[5 * 4] == 0);
  });
}

TEST_CASE("tessera.hpp: a network trains, is saved and goes on") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const Grid<2> grid(c, {1, fit});
#if TESSERA_WITH_ONEDNN
    using Backend = cpu;
#else
    using Backend = reference;
#endif
    Network<Model, float, Backend> model(grid, {.batch = 2, .seed = 3});
    Trainer trainer(model, adam{.rate = 1e-2}, mean_squared_error{}, cosine(40));
    auto x = model.make_input(), t = model.make_target();
    fill(x, [](const Index<5>& i) { return 0.1 * double((i[0] * 7 + i[1] * 5 + i[2] * 3 + i[3] + i[4]) % 11); });
    fill(t, [](const Index<5>& i) { return double(i[0]) - 0.5 * double(i[1]); });
    const double first = trainer.step(x, t);
    for (int s = 1; s < 30; ++s) trainer.step(x, t);
    CHECK(trainer.evaluate(x, t) < 0.1 * first);
#if TESSERA_WITH_HDF5
    const std::string path = text("umbrella-", c.size(), ".h5");
    save(trainer, path, {{"epoch", std::int64_t{30}}});
    const double want = trainer.step(x, t);
    Network<Model, float, Backend> again(grid, {.batch = 2, .seed = 3});
    Trainer second(again, adam{.rate = 1e-2}, mean_squared_error{}, cosine(40));
    CHECK(std::get<std::int64_t>(resume(second, path).at("epoch")) == 30);
    CHECK(second.step(x, t) == want);
    c.barrier();
    if (c.rank() == 0) std::remove(path.c_str());
#endif
  });
}
