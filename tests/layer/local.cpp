// The layers without neighbours: dropout, activation, flatten, dense, and `to`.
#include "alone.hpp"

#include <tessera/backend/reference.hpp>
#include <tessera/layer/local.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr Layout samples = place(n, n, n, n);

template <class T> std::vector<double> in_double(const std::vector<T>& v) { return {v.begin(), v.end()}; }

Map<5> balanced(const AnyGrid& grid, const Layout& layout, const Extents<5>& e) { return {layout, grid.shape(), e}; }

/// Numbers 1, 2, ... in logical order.
std::vector<double> counted(const Extents<5>& e) {
  std::vector<double> v(std::size_t(product(e)));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = double(i + 1);
  return v;
}

} // namespace

TEST_CASE("dropout: the same mask bit by bit on every grid; another for each sample, seed, layer and step") {
  const Extents<5> e{{2, 4, 8, 8, 8}};
  const LayerSpec spec = dropout(0.5);
  const std::vector<double> x = counted(e), dy(x.size(), 1.0);
  const auto pass_of = [](std::uint64_t seed, int layer, std::uint64_t step, Mode mode = Mode::training) {
    Pass<float> p;
    p.seed = seed, p.layer = layer, p.step = step, p.mode = mode;
    return p;
  };
  const auto run = [&](const AnyGrid& grid, Pass<float> pass) {
    const Map<5> map = balanced(grid, over_ndhw, e);
    DropoutLayer<float, reference> layer(spec, grid, map);
    return through<float>(layer, pass, grid, map, map, x, dy);
  };
  const AnyGrid alone(Communicator(), {1, 1, 1, 1});
  const Computed<float> one = run(alone, pass_of(7, 3, 11));

  const std::size_t sample = x.size() / 2;
  long kept = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE((one.dx[i] == 0 || one.dx[i] == 2)); // 1 / keep
    REQUIRE(one.y[i] == one.dx[i] * float(x[i]));
    kept += one.dx[i] != 0;
  }
  CHECK(std::abs(kept - 2048) < 5 * 32); // five standard deviations of a binomial of 4096
  CHECK(std::vector(one.dx.begin(), one.dx.begin() + long(sample)) !=
        std::vector(one.dx.begin() + long(sample), one.dx.end()));
  for (const auto& other : {pass_of(8, 3, 11), pass_of(7, 4, 11), pass_of(7, 3, 12)}) {
    const auto another = run(alone, other);
    long equal = 0;
    for (std::size_t i = 0; i < x.size(); ++i) equal += another.dx[i] == one.dx[i];
    CHECK(std::abs(equal - 2048) < 5 * 32);
  }
  const auto inference = run(alone, pass_of(7, 3, 11, Mode::inference));
  CHECK(in_double(inference.y) == x);
  CHECK(in_double(inference.dx) == dy);

  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      const auto got = run(grid, pass_of(7, 3, 11));
      CHECK(got.y == one.y);
      CHECK(got.dx == one.dx);
    });
  });
}

TEST_CASE("dropout: the mask of a sample does not depend on how many follow it") {
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  const auto mask = [&](long batch) {
    const Map<5> map = balanced(grid, over_ndhw, {{batch, 3, 4, 4, 5}});
    DropoutLayer<float, reference> layer(dropout(0.7), grid, map);
    Pass<float> pass;
    const std::vector<double> ones(std::size_t(product(map.extents())), 1.0);
    return through<float>(layer, pass, grid, map, map, ones, ones).y;
  };
  const auto one = mask(1), three = mask(3);
  CHECK(std::equal(one.begin(), one.end(), three.begin()));
}

TEST_CASE("activation: leaky relu and relu by hand") {
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  const Map<5> map = balanced(grid, over_ndhw, {{1, 1, 1, 1, 4}});
  Pass<double> pass;
  const std::vector<double> x{-2, -0.0, 0.5, 3}, dy{10, 20, 20, 20};
  ActivationLayer<double, reference> leaky(leaky_relu(0.25), map.box(0)), plain(relu(), map.box(0));
  const auto of_leaky = through<double>(leaky, pass, grid, map, map, x, dy);
  CHECK(of_leaky.y == std::vector<double>{-0.5, -0.0, 0.5, 3});
  CHECK(of_leaky.dx == std::vector<double>{2.5, 5, 20, 20});
  const auto of_plain = through<double>(plain, pass, grid, map, map, x, dy);
  CHECK(of_plain.y == std::vector<double>{0, 0, 0.5, 3});
  CHECK(of_plain.dx == std::vector<double>{0, 0, 20, 20});
}

TEST_CASE("flatten: logical order within each sample, and back, whoever holds the samples") {
  const Extents<5> e{{3, 2, 3, 4, 5}}, flat{{3, 120, 1, 1, 1}};
  const std::vector<double> x = counted(e);
  const auto check = [&](const AnyGrid& grid) {
    FlattenLayer<double, reference> layer(balanced(grid, samples, e).box(grid.rank()));
    Pass<double> pass;
    const auto got =
        through<double>(layer, pass, grid, balanced(grid, samples, e), balanced(grid, samples, flat), x, x);
    CHECK(got.y == x); // both in logical order
    CHECK(got.dx == x);
  };
  on_ranks([&](const Communicator& c) { on_every_grid(c, check); });
}

TEST_CASE("dense: by hand, and equal on every grid, with ranks that hold no sample") {
  SUBCASE("two inputs, two outputs") {
    const AnyGrid grid(Communicator(), {1, 1, 1, 1});
    const Map<5> map = balanced(grid, samples, {{2, 2, 1, 1, 1}});
    DenseLayer<double, reference> layer(dense(2), {kernel::Activation::leaky_relu, 0.5}, grid, map);
    const std::vector<double> w{1, 2, 3, 4}, b{10, -20};
    std::vector<double> dw(4), db(2);
    Pass<double> pass;
    int ready = 0;
    pass.weights = w, pass.biases = b, pass.weight_gradients = dw, pass.bias_gradients = db;
    pass.gradients_ready = [&] { ++ready; };
    pass.poke = [] {};
    const auto got = through<double>(layer, pass, grid, map, map, {1, 2, -1, 1}, {1, 1, 2, 4});
    // x = (1,2): W x + b = (15, -9); x = (-1,1): (11, -19). The slope 0.5 halves what is negative.
    CHECK(got.y == std::vector<double>{15, -4.5, 11, -9.5});
    // dy becomes (1, 0.5), (2, 2).
    CHECK(got.dx == std::vector<double>{2.5, 4, 8, 12});
    CHECK(dw == std::vector<double>{1 - 2, 2 + 2, 0.5 - 2, 1 + 2});
    CHECK(db == std::vector<double>{3, 2.5});
    CHECK(ready == 1);
  }
  SUBCASE("grids") {
    const Extents<5> in{{5, 7, 1, 1, 1}}, out{{5, 3, 1, 1, 1}};
    Random random(31);
    const auto x = random_numbers(random, 35), dy = random_numbers(random, 15), w = random_numbers(random, 21);
    Computed<double> want{std::vector<double>(15), std::vector<double>(35), std::vector<double>(21),
                          std::vector<double>(3)};
    for (std::size_t s = 0; s < 5; ++s)
      for (std::size_t o = 0; o < 3; ++o) {
        want.db[o] += dy[s * 3 + o];
        for (std::size_t i = 0; i < 7; ++i) {
          want.y[s * 3 + o] += w[o * 7 + i] * x[s * 7 + i];
          want.dx[s * 7 + i] += w[o * 7 + i] * dy[s * 3 + o];
          want.dw[o * 7 + i] += x[s * 7 + i] * dy[s * 3 + o];
        }
      }
    on_ranks([&](const Communicator& c) {
      on_every_grid(c, [&](const AnyGrid& grid) {
        DenseLayer<double, reference> layer(dense(3), {}, grid, balanced(grid, samples, in));
        const std::vector<double> none(3);
        std::vector<double> dw(21, std::nan("")), db(3, std::nan(""));
        Pass<double> pass;
        pass.weights = w, pass.biases = none, pass.weight_gradients = dw, pass.bias_gradients = db;
        pass.gradients_ready = pass.poke = [] {};
        auto got = through<double>(layer, pass, grid, balanced(grid, samples, in), balanced(grid, samples, out), x, dy);
        c.iall_reduce(std::span<double>(dw)).wait();
        c.iall_reduce(std::span<double>(db)).wait();
        got.dw = dw, got.db = db;
        check_equal(text("dense on ", grid.shape()), got, want, 1e-12);
      });
    });
  }
}

TEST_CASE("to: activations move there and gradients back, between any two layouts") {
  const Extents<5> e{{3, 2, 5, 4, 3}};
  Random random(41);
  const auto x = random_numbers(random, product(e)), dy = random_numbers(random, product(e));
  constexpr Layout layouts[] = {over_ndhw, samples, place(n, rep, rep, rep), place(w, h, d, n), place(rep, d, d, rep)};
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      for (const Layout& from : layouts)
        for (const Layout& there : layouts) {
          const Map<5> in = balanced(grid, from, e), out = balanced(grid, there, e);
          RedistributeLayer<double, reference> layer(grid, in, out);
          Pass<double> pass;
          const auto got = through<double>(layer, pass, grid, in, out, x, dy, c.size() % 2);
          CHECK_MESSAGE(got.y == x, from.str(), " -> ", there.str(), " on ", grid.shape().str());
          CHECK_MESSAGE(got.dx == dy, from.str(), " -> ", there.str(), " on ", grid.shape().str());
        }
    });
  });
}
