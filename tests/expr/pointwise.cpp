// Pointwise expressions: values, conversions, one pass over memory, no allocation, vectors over channels, pending sums.
#include "whole.hpp"

#include <atomic>
#include <cmath>
#include <tessera/expr/evaluate.hpp>

using namespace tessera;
using namespace tessera::names;
using test::numbers, test::on_ranks, test::Whole;

namespace {

template <class T, class E> std::vector<T> values(const std::vector<T>& from, const E& assign) {
  const Grid<1> grid(Communicator(), {1});
  DistTensor<T, 1, place(rep)> x(grid, {{long(from.size())}}), y;
  scatter(x, from);
  assign(x, y);
  return gather(y);
}

} // namespace

TEST_CASE("pointwise: functions equal the standard library's") {
  const std::vector<double> in{0.25, 1, 2.5, 9};
  const auto check = [&](const auto& assign, const auto& want) {
    const auto out = values<double>(in, assign);
    for (std::size_t i = 0; i < in.size(); ++i) CHECK(out[i] == doctest::Approx(want(in[i])).epsilon(1e-15));
  };
  check([](auto& x, auto& y) { y = exp(x); }, [](double v) { return std::exp(v); });
  check([](auto& x, auto& y) { y = log(x); }, [](double v) { return std::log(v); });
  check([](auto& x, auto& y) { y = log1p(x); }, [](double v) { return std::log1p(v); });
  check([](auto& x, auto& y) { y = sqrt(x); }, [](double v) { return std::sqrt(v); });
  check([](auto& x, auto& y) { y = tanh(-x); }, [](double v) { return std::tanh(-v); });
  check([](auto& x, auto& y) { y = sigmoid(x); }, [](double v) { return 1 / (1 + std::exp(-v)); });
  check([](auto& x, auto& y) { y = abs(1 - x); }, [](double v) { return std::abs(1 - v); });
  check([](auto& x, auto& y) { y = pow(x, 1.5) + pow(2, x); },
        [](double v) { return std::pow(v, 1.5) + std::pow(2, v); });
  check([](auto& x, auto& y) { y = max(x, 2) - min(1, x) / x; },
        [](double v) { return std::max(v, 2.0) - std::min(1.0, v) / v; });
  check([](auto& x, auto& y) { y = map([](double a, double b) { return a < b ? -1.0 : a; }, x, 2); },
        [](double v) { return v < 2 ? -1.0 : v; });
}

TEST_CASE("pointwise: rectifiers by hand; a NaN stays one") {
  const std::vector<float> in{-2, 0, 3, std::nanf("")};
  const auto r = values<float>(in, [](auto& x, auto& y) { y = relu(x); });
  CHECK(r[0] == 0);
  CHECK(r[1] == 0);
  CHECK(r[2] == 3);
  CHECK(std::isnan(r[3]));
  const auto l = values<float>(in, [](auto& x, auto& y) { y = leaky_relu(x, 0.5f); });
  CHECK(l[0] == -1);
  CHECK(l[2] == 3);
  CHECK(std::isnan(l[3]));
  static_assert(
      std::is_same_v<decltype(leaky_relu(std::declval<DistTensor<float, 1, place(rep)>&>(), 0.01))::value_type, float>);
}

TEST_CASE("pointwise: computed in the types of C++, converted when assigned") {
  // 1 + 2^-30 exists in double only; the difference survives if the sum runs in double.
  const auto f = values<float>({1.0F}, [](auto& x, auto& y) { y = (x + 0x1p-30 - x) * 0x1p30; });
  CHECK(f[0] == 1.0F);
  const auto g = values<float>({1.0F}, [](auto& x, auto& y) { y = (x + 0x1p-30F - x) * 0x1p30F; });
  CHECK(g[0] == 0.0F);
  const auto i = values<int>({7, -7}, [](auto& x, auto& y) { y = x / 2; });
  CHECK(i == std::vector<int>{3, -3});
  const auto j = values<int>({7, -7}, [](auto& x, auto& y) { y = x / 2.0; });
  CHECK(j == std::vector<int>{3, -3});
  const auto s = values<std::int16_t>({300}, [](auto& x, auto& y) { y = x * x / 300; }); // 90000 in int
  CHECK(s == std::vector<std::int16_t>{300});
  const auto e = values<int>({1}, [](auto& x, auto& y) { y = 1000 * exp(x); });
  CHECK(e == std::vector<int>{2718});
}

TEST_CASE("pointwise: a chain is one pass: each element read once, written once, nothing allocated") {
  on_ranks({1, 2, 3}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<float, 5, place(d)> x(grid, {2, 3, 5, 4, 4}), y(grid, {2, 3, 5, 4, 4});
    fill(x, [](const Index<5>& i) { return i[4]; });
    long calls = 0;
    const auto spy = [&](float v) {
      ++calls;
      return v;
    };
    y = 2 * map(spy, x) + 1;
    CHECK(calls == x.box().volume());
    world.barrier();
    const auto before = allocation_counter().allocations.load();
    world.barrier();
    const float* const at = y.data();
    for (int k = 0; k < 3; ++k) y = leaky_relu(y * 0.5f - exp(x) / (1 + x), 0.1f) + map(spy, y);
    world.barrier();
    CHECK(allocation_counter().allocations.load() == before);
    CHECK(calls == 4 * x.box().volume());
    CHECK(y.data() == at);
  });
}

TEST_CASE("pointwise: a vector over channels, on ranks 5, 4 and 2, every grid, in place and alone") {
  on_ranks([](const Communicator& world) {
    for (const auto& s : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(s));
      DistTensor<double, 1, place(rep, rep, rep)> bias(grid, {{5}});
      fill(bias, [](const Index<1>& i) { return double(10 * i[0] + 1); });
      const auto check = [&]<int N, Layout L>(const Extents<N>& e, int channel) {
        DistTensor<double, N, L> x(grid, e), y;
        const auto a = numbers(e);
        const Whole<N> b{e, [channel](const Index<N>& i) { return double(10 * i[channel] + 1); }};
        test::set(x, a);
        y = x + bias;
        CHECK(test::difference(y, a + b) == 0);
        y = bias * 2 - y;
        CHECK(test::difference(y, b + -1.0 * a) == 0);
      };
      check.template operator()<5, place(n, h, w)>({{2, 5, 3, 3, 4}}, 1);
      check.template operator()<5, place(d, c, w)>({{1, 5, 3, 2, 2}}, 1);
      check.template operator()<4, place(d, h, c)>({{5, 3, 4, 2}}, 0);
      check.template operator()<2, place(n, c, rep)>({{4, 5}}, 1);
      DistTensor<double, 1, place(rep, rep, rep)> twice;
      twice = bias + bias;
      CHECK(test::difference(twice, Whole<1>{{{5}}, [](const Index<1>& i) { return double(20 * i[0] + 2); }}) == 0);
      DistTensor<double, 1, place(rep, rep, rep)> wrong(grid, {{4}});
      DistTensor<double, 2, place(n, c, rep)> x(grid, {2, 5});
      CHECK(test::all_throw<usage_error>(world, [&] {
              x = x + wrong;
            }).find("a vector of 4 elements meets a tensor of 5") != std::string::npos);
    }
  });
}

TEST_CASE("pointwise: addends are added and scaled before they are added up") {
  on_ranks({1, 2, 4}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 2, place(sum)> a(grid, {2, 3}), b(grid, {2, 3}), c_;
    fill(a, [&](const Index<2>& i) { return double(i[1] + world.rank()); });
    fill(b, [](const Index<2>& i) { return double(i[0]); });
    c_ = 2 * a - b / 4 + -a;
    DistTensor<double, 2, place(rep)> resolved(grid, {2, 3});
    resolved = c_;
    const int p = world.size();
    CHECK(test::difference(resolved, Whole<2>{{{2, 3}}, [p](const Index<2>& i) {
                                                return double(p) * double(i[1]) + double(p * (p - 1)) / 2 -
                                                       double(p) * double(i[0]) / 4;
                                              }}) == 0);
  });
}

TEST_CASE("pointwise: temporaries live as long as the expression; targets may start empty") {
  const Grid<1> grid(Communicator(), {1});
  using X = DistTensor<double, 3, place(d)>;
  const auto ones = [&] {
    X x(grid, {2, 2, 2});
    fill(x, [](const Index<3>&) { return 1.0; });
    return x;
  };
  const auto e = 3 * ones() + shift<d>(ones(), 1);
  X y, z(grid, {0, 2, 2}), empty;
  y = e;
  CHECK(gather(y) == std::vector<double>{4, 4, 4, 4, 3, 3, 3, 3});
  empty = z + shift<d>(z, 1) + 1;
  CHECK(empty.extents() == Extents<3>{{0, 2, 2}});
  y = -y;
  CHECK(gather(y)[0] == -4);
}
