// The operations of the cpu backend against those of the reference backend, and how weights start.
#include "support/sweep.hpp"

#include <doctest/doctest.h>
#include <tessera/backend/cpu.hpp>

using namespace tessera;
using namespace tessera::test;

namespace {

/// A block of random numbers, and what an operation makes of a part of it that is not dense.
template <class T> struct Field {
  Extents<5> e{{2, 5, 4, 3, 6}};
  std::vector<T> v;
  explicit Field(std::uint64_t seed) : v(std::size_t(product(e))) {
    Random random(seed);
    for (T& x : v) x = static_cast<T>(random.real());
  }
  View<T, 5> part() { return View<T, 5>(v.data(), e).box({{{0, 0, 1, 0, 1}}, {{2, 5, 4, 2, 5}}}); }
};

template <class T> double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

/// f(backend, x, y) writes to y; both backends must give the same, and touch the same elements.
template <class T, class F> void check_equal(const F& f) {
  Field<T> x(1), expected(2), got(2);
  f(reference{}, x, expected);
  f(cpu{}, x, got);
  CHECK(distance(got.v, expected.v) <= 4 * double(std::numeric_limits<T>::epsilon()));
}

struct Parabola {
  template <class V> V value(V v) const { return v * v; }
  template <class V> V derivative(V v) const { return 2 * v; }
};

template <class T> void check_all() {
  using kernel::Activation;
  for (const auto& [kind, slope] :
       {std::pair{Activation::none, 0.0}, {Activation::relu, 0.0}, {Activation::leaky_relu, 0.1}, {Activation::elu, 0.7},
        {Activation::sigmoid, 0.0}, {Activation::tanh, 0.0}}) {
    check_equal<T>([&, k = kind, s = slope](auto b, Field<T>& x, Field<T>& y) {
      decltype(b)::template activation_forward<T>(k, s, View<const T, 5>(x.part()), y.part());
    });
    check_equal<T>([&, k = kind, s = slope](auto b, Field<T>& x, Field<T>& y) {
      decltype(b)::template activation_backward<T>(k, s, View<const T, 5>(x.part()), y.part());
    });
    for (const bool biased : {false, true})
      check_equal<T>([&, k = kind, s = slope](auto b, Field<T>& x, Field<T>& y) {
        decltype(b)::template fill_channels<T>(y.part(), biased ? x.v.data() : nullptr, k, s);
      });
  }
  for (const auto function : {kernel::Pointwise::gelu, kernel::Pointwise::gelu_tanh, kernel::Pointwise::silu}) {
    check_equal<T>([&](auto b, Field<T>& x, Field<T>& y) {
      decltype(b)::template pointwise_forward<T>(function, View<const T, 5>(x.part()), y.part());
    });
    check_equal<T>([&](auto b, Field<T>& x, Field<T>& y) { // the gradient takes the place of what is to be multiplied
      decltype(b)::template pointwise_backward<T>(function, View<const T, 5>(x.part()), View<const T, 5>(y.part()),
                                                  y.part());
    });
  }
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template function_forward<T>(Parabola{}, View<const T, 5>(x.part()), y.part());
  });
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template function_backward<T>(Parabola{}, View<const T, 5>(x.part()), View<const T, 5>(y.part()),
                                               y.part());
  });
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template softmax<T>(View<const T, 5>(x.part()), y.part());
  });
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template softmax_backward<T>(View<const T, 5>(x.part()), View<const T, 5>(y.part()), y.part());
  });
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template sum_channels<T>(View<const T, 5>(x.part()), y.v.data());
    for (T& v : y.v) v /= 16; // sums of 48 numbers
  });
  check_equal<T>([](auto b, Field<T>& x, Field<T>& y) {
    decltype(b)::template dropout<T>(View<const T, 5>(x.part()), y.part(), {{0, 0, 1, 0, 1}}, {{2, 5, 4, 3, 6}}, 0.5, 1, 2, 3);
  });
}

std::vector<double> started(Init how, const Extents<5>& e, std::uint64_t seed, std::uint64_t layer) {
  std::vector<double> w(std::size_t(product(e)));
  cpu::initialise(w.data(), e, how, seed, layer);
  return w;
}

} // namespace

TEST_CASE("backend: cpu computes what reference computes, on blocks that are not dense") {
  check_all<float>();
  check_all<double>();
}

TEST_CASE("initial weights: distribution, bounds, and a sequence of their own for each seed and layer") {
  const Extents<5> e{{32, 16, 3, 3, 3}};
  const double cells = 27, n = double(product(e));
  const auto moments = [&](const std::vector<double>& w) {
    double sum = 0, squares = 0;
    for (const double v : w) sum += v, squares += v * v;
    return std::pair{sum / n, squares / n};
  };
  const auto glorot = started(Init::glorot_uniform, e, 1, 2);
  const double a = std::sqrt(6 / ((16 + 32) * cells));
  CHECK(std::ranges::all_of(glorot, [&](double v) { return std::abs(v) < a; }));
  CHECK(*std::ranges::max_element(glorot) > 0.999 * a);
  // Five standard deviations of the mean and of the variance of n numbers.
  CHECK(std::abs(moments(glorot).first) < 5 * a / std::sqrt(3 * n));
  CHECK(moments(glorot).second == doctest::Approx(a * a / 3).epsilon(5 * std::sqrt(0.8 / n)));

  const auto he = started(Init::he_normal, e, 1, 2);
  const double variance = 2 / (16 * cells);
  CHECK(std::abs(moments(he).first) < 5 * std::sqrt(variance / n));
  CHECK(moments(he).second == doctest::Approx(variance).epsilon(5 * std::sqrt(2 / n)));

  CHECK(started(Init::zeros, e, 1, 2) == std::vector<double>(glorot.size()));
  CHECK(started(Init::glorot_uniform, e, 1, 2) == glorot);
  CHECK(started(Init::glorot_uniform, e, 2, 2) != glorot);
  CHECK(started(Init::glorot_uniform, e, 1, 3) != glorot);
  // Element i in logical order takes random number i, however it is stored.
  const View<const double, 5> stored(glorot.data(), e);
  const auto flat = started(Init::glorot_uniform, {{1, 1, 1, 1, product(e)}}, 1, 2);
  CHECK(stored(3, 7, 1, 2, 0) / a == doctest::Approx(flat[std::size_t((((3 * 16 + 7) * 3 + 1) * 3 + 2) * 3)] /
                                                     std::sqrt(6 / (2 * n))));
}
