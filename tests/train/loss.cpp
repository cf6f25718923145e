// Losses: values by hand, derivatives by differences, one global divisor on every grid.
#include "net/networks.hpp"

#include <tessera/train/loss.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

TEST_CASE("loss: by hand, replicas count once, on every grid") {
  const std::vector<double> y{1, 2, -3, 0.5, 4, 4}, t{0, 4, -3, 0, 1, 5};
  // Differences 1, -2, 0, 0.5, 3, -1.
  const std::vector<double> squared{2. / 6, -4. / 6, 0, 1. / 6, 1, -2. / 6}, absolute{1. / 6, -1. / 6, 0, 1. / 6, 1. / 6, -1. / 6};
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
