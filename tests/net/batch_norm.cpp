// Batch normalisation inside networks: worked out by hand, its running statistics, and the same on every grid.
#include "networks.hpp"

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// A network that normalises, on n samples of a line of four cells.
NetworkDescription alone(BatchNorm how = {}) {
  return describe({batch_norm(how)}, {.c = 1, .d = 4, .h = 1, .w = 1}, over_ndhw);
}
double cell(const Index<5>& i) { return double(i[0]) * 10 + double(i[2]); }

} // namespace

TEST_CASE("batch norm: two samples of four cells by hand, in training and in inference, on every grid") {
  // Values 0..3 and 10..13: mean 6.5, squared deviations from it 2 * (5 + 4 * 25) = 210; N = 8.
  const double variance = 210.0 / 8, unbiased = 210.0 / 7;
  on_ranks({1, 2, 3, 4}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Oracle net(grid, alone({.epsilon = 1e-5, .momentum = 0.25}), {.batch = 2});
      net.parameters()[0] = 3, net.parameters()[1] = -1; // gamma, beta
      auto x = net.make_input();
      fill(x, cell);
      const auto& y = net.forward(x, Mode::training);
      bool right = true;
      for_each_index(whole(y.box().extents()), [&](const Index<5>& i) {
        const double want = 3 * (cell(i + y.box().lo) - 6.5) / std::sqrt(variance + 1e-5) - 1;
        right = right && std::abs(y.view()[i] - want) < 1e-12;
      });
      CHECK_MESSAGE(right, grid.shape().str());
      CHECK(net.state()[0] == doctest::Approx(0.25 * 6.5).epsilon(1e-14));
      CHECK(net.state()[1] == doctest::Approx(0.75 + 0.25 * unbiased).epsilon(1e-14));

      const auto before = c.counters();
      const auto& z = net.forward(x, Mode::inference);
      CHECK(c.counters() == before); // the running statistics are everywhere
      right = true;
      for_each_index(whole(z.box().extents()), [&](const Index<5>& i) {
        const double want = 3 * (cell(i + z.box().lo) - 0.25 * 6.5) / std::sqrt(0.75 + 0.25 * unbiased + 1e-5) - 1;
        right = right && std::abs(z.view()[i] - want) < 1e-12;
      });
      CHECK_MESSAGE(right, grid.shape().str());
    });
  });
}

TEST_CASE("batch norm: a small spread on top of a large mean keeps its digits in float") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    Product net(AnyGrid(c, {1, c.size(), 1, 1}), describe({batch_norm()}, {.c = 1, .d = 64, .h = 8, .w = 8}, over_ndhw),
                {});
    auto x = net.make_input();
    fill(x, [](const Index<5>& i) { return 4096.0 + (i[4] % 2 == 0 ? 0.25 : -0.25); }); // exact in float
    const auto& y = net.forward(x, Mode::training);
    bool right = true;
    for_each_index(whole(y.box().extents()), [&](const Index<5>& i) {
      const double want = (i[4] + y.box().lo[4]) % 2 == 0 ? 1 : -1; // a variance of 1/16, less epsilon
      right = right && std::abs(double(y.view()[i]) - want) < 1e-4; // epsilon / variance / 2 is 8e-5
    });
    CHECK(right);
  });
}

TEST_CASE("batch norm: one value per channel has no variance, and that is said on every rank") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    Oracle net(AnyGrid(c, {1, c.size(), 1, 1}),
               describe({max_pool(4), batch_norm()}, {.c = 2, .d = 4, .h = 4, .w = 4}, over_ndhw), {.batch = 1});
    auto x = net.make_input();
    const std::string said = all_throw<usage_error>(c, [&] { net.forward(x, Mode::training); });
    CHECK(said.find("one value per channel") != std::string::npos);
    CHECK_NOTHROW(net.forward(x, Mode::inference));
  });
}
