// Losses: values by hand, derivatives by differences, one global divisor on every grid.
#include "net/networks.hpp"

#include <tessera/train/loss.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

TEST_CASE("loss: by hand, replicas count once, on every grid") {
  const std::vector<double> y{1, 2, -3, 0.5, 4, 4}, t{0, 4, -3, 0, 1, 5};
  // Differences 1, -2, 0, 0.5, 3, -1.
  const std::vector<double> squared{2. / 6, -4. / 6, 0, 1. / 6, 1, -2. / 6},
      absolute{1. / 6, -1. / 6, 0, 1. / 6, 1. / 6, -1. / 6};
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      for (const Layout& layout : {whole_samples, place(n, rep, rep, rep), place(rep, n, rep, w), replicated(4)}) {
        const Map<5> map(layout, grid.shape(), {{3, 1, 1, 1, 2}});
        Tensor<double, 5> ty(grid, map), tt(grid, map), dy(grid, map);
        scatter(ty, y);
        scatter(tt, t);
        CHECK(loss_and_gradient(mean_squared_error{}, ty, tt, &dy).resolve() == doctest::Approx(15.25 / 6));
        CHECK(distance(gather(dy), squared) < 1e-15);
        CHECK(loss_and_gradient(mean_absolute_error{}, ty, tt, &dy).resolve() == doctest::Approx(7.5 / 6));
        CHECK(distance(gather(dy), absolute) < 1e-15);
        CHECK(loss_and_gradient(mean_absolute_error{}, ty, tt, static_cast<Tensor<double, 5>*>(nullptr)).resolve() ==
              doctest::Approx(7.5 / 6));
      }
    });
  });
}

TEST_CASE("loss: the gradient is the derivative of the global mean") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size(), 1});
    const Map<5> map(place(n, d), grid.shape(), {{5, 2, 3, 1, 1}});
    Tensor<double, 5> y(grid, map), t(grid, map), dy(grid, map);
    fill(y, [](const Index<5>& i) { return wave(i); });
    fill(t, [](const Index<5>& i) { return wave(i, 1); });
    const auto check = [&](auto loss) {
      loss_and_gradient(loss, y, t, &dy).resolve();
      const std::vector<double> gradient = gather(dy), values = gather(y);
      for (std::size_t k = 0; k < values.size(); ++k) {
        const auto moved = [&](double by) {
          std::vector<double> v = values;
          v[k] += by;
          Tensor<double, 5> m(grid, map);
          scatter(m, v);
          return loss_and_gradient(loss, m, t, static_cast<Tensor<double, 5>*>(nullptr)).resolve();
        };
        CHECK(std::abs((moved(1e-5) - moved(-1e-5)) / 2e-5 - gradient[k]) < 1e-9);
      }
    };
    check(mean_squared_error{});
    check(mean_absolute_error{});
    check(huber{.delta = 0.4});
    check(binary_cross_entropy{.positive_weight = 3});
    check(2.0 * mean_squared_error{} + 0.5 * huber{});
  });
}

TEST_CASE("loss: a target that lies otherwise is refused") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size(), 1});
    const Tensor<double, 5> y(grid, Map<5>(place(n, d), grid.shape(), {{4, 2, 1, 1, 1}})),
        t(grid, Map<5>(place(d, n), grid.shape(), {{4, 2, 1, 1, 1}}));
    const std::string told = all_throw<usage_error>(
        c, [&] { loss_and_gradient(mean_squared_error{}, y, t, static_cast<Tensor<double, 5>*>(nullptr)); });
    CHECK(told.find("place(n,d)") != told.npos);
    CHECK(told.find("make_target()") != told.npos);
  });
}

TEST_CASE("loss: Huber and binary cross-entropy as PyTorch has them") {
  // y = (3 * torch.sin(torch.arange(48.).double())).reshape(2, 3, 2, 2, 2), b = (torch.arange(48) % 5 / 4), shaped
  // alike; l = torch.nn.functional.{binary_cross_entropy_with_logits, huber_loss, smooth_l1_loss}(y, b, ...);
  // l.backward(); y.grad.flatten()[[0, 8, 16, 47]]; PyTorch 2.
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size()});
    Tensor<double, 5> y(grid, Map<5>(place(n, d), grid.shape(), {{2, 3, 2, 2, 2}})), t(grid, y.map()),
        dy(grid, y.map());
    std::vector<double> all, targets;
    for (int k = 0; k < 48; ++k) all.push_back(3 * std::sin(double(k))), targets.push_back(k % 5 / 4.);
    scatter(y, all);
    scatter(t, targets);
    const auto known = [&](const auto& loss, double value, const std::vector<double>& gradient) {
      CHECK(std::abs(loss_and_gradient(loss, y, t, &dy).resolve() - value) < 1e-14);
      const auto g = gather(dy);
      CHECK(distance(std::vector<double>{g[0], g[8], g[16], g[47]}, gradient) < 1e-14);
    };
    known(binary_cross_entropy{}, 1.1119304150122904,
          {0.010416666666666666, 0.004189809000173658, 0.0009701002917827847, 0.0019090164941020296});
    known(binary_cross_entropy{.positive_weight = 3}, 2.122073783700106,
          {0.010416666666666666, 0.0026620225004341433, -0.006357349562325823, -0.006598633678462608});
    known(huber{.delta = 0.7}, 1.0714567752436848,
          {0, 0.014583333333333332, -0.014583333333333332, -0.002693346495090167});
    known(huber{}, 1.4089386200797884, {0, 0.020833333333333332, -0.020833333333333332, -0.002693346495090167});
  });
}

TEST_CASE("loss: binary cross-entropy of logits of any size, with labels as targets") {
  const AnyGrid grid(Communicator(), {1, 1});
  Tensor<float, 5> y(grid, Map<5>(place(n, d), grid.shape(), {{1, 1, 4, 1, 1}})), dy(grid, y.map());
  Tensor<std::uint8_t, 5> t(grid, y.map());
  scatter(y, {1000, -1000, 1000, -1000});
  scatter(t, {1, 0, 0, 1});
  CHECK(loss_and_gradient(binary_cross_entropy{}, y, t, &dy).resolve() == 500);
  CHECK(gather(dy) == std::vector<float>{0, 0, 0.25F, -0.25F});
}

TEST_CASE("loss: the gradient does not wait for the all-reduce") {
  // Rank 1 takes part in the all-reduce only after rank 0 has its gradient.
  on_ranks({2}, [](const Communicator& c) {
    const AnyGrid grid(c, {2});
    Tensor<double, 5> y(grid, Map<5>(place(n), grid.shape(), {{2, 3, 2, 1, 1}})), t(grid, y.map()), dy(grid, y.map());
    fill(y, [](const Index<5>&) { return 3; });
    grid.over(1);
    double go = 0;
    if (c.rank() == 1) c.irecv(0, 5, std::span<double>(&go, 1)).wait();
    LossSum sum = loss_and_gradient(0.5 * mean_squared_error{} + mean_absolute_error{}, y, t, &dy);
    if (c.rank() == 0) c.isend(1, 5, std::span<double>(&go, 1)).wait();
    CHECK(gather(dy)[0] == doctest::Approx(4. / 12));
    CHECK(sum.resolve() == doctest::Approx(7.5));
  });
}
