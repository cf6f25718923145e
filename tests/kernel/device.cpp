// Kernels of devices one by one, on the emulated device, against the plain loops of the host.
#include <array>
#include <doctest/doctest.h>
#include <tessera/backend/emulated.hpp>
#include <tessera/backend/reference.hpp>
#include <tessera/kernel/optimizer.hpp>

using namespace tessera;

namespace {

using Space = emulated_device;

/// A block of values, here and there.
template <class T> struct Both {
  Extents<5> e;
  std::vector<T> here;
  Buffer<T, Space> memory;
  template <class F> Both(const Extents<5>& extents, const F& f) : e(extents), memory(std::size_t(product(extents))) {
    for (long i = 0; i < product(e); ++i) here.push_back(static_cast<T>(f(i)));
    write_from_host<Space>(memory.data(), here.data(), here.size());
  }
  View<T, 5> on_host() { return {here.data(), e}; }
  View<T, 5> on_device() { return {memory.data(), e}; }
  View<const T, 5> read() const { return {here.data(), e}; }
  View<const T, 5> read_there() const { return {memory.data(), e}; }
  std::vector<T> there() const { return read_back<Space>(std::span(memory.data(), memory.size())); }
};
double wave(long i) { return std::sin(0.7 * double(i)) + 0.1 * double(i % 5); }
double none(long) { return -99; }

/// max |a - b| / max(1, |b|)
template <class A, class B> double distance(const A& a, const B& b) {
  double most = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(double(a[i]) - double(b[i])) / std::max(1.0, std::abs(double(b[i]))));
  return most;
}

} // namespace

TEST_CASE("device: quotient and remainder below and above 32 bits") {
  for (const long by : {1L, 3L, 1000L, (1L << 31) + 7, (1L << 33) + 1})
    for (const long i : {0L, 2L, 999'999L, (1L << 32) - 1, 1L << 32, (1L << 40) + 12345}) {
      long rest = i;
      CHECK(device::divide(rest, by) == i / by);
      CHECK(rest == i % by);
    }
}

TEST_CASE("device: element numbers of a dense block run through it in memory order") {
  const Extents<5> e{{2, 3, 4, 5, 6}};
  const Index<5> strides = dense_strides(e);
  for (long i = 0; i < product(e); ++i) {
    const Index<5> at = kernel::device::index_of(i, e);
    long o = 0;
    for (int k = 0; k < 5; ++k) {
      REQUIRE((at[k] >= 0 && at[k] < e[k]));
      o += at[k] * strides[k];
    }
    REQUIRE(o == i);
  }
}

TEST_CASE("device: sums of many cells and of few, of many channels and of one, of part of a block") {
  for (const Extents<5>& e :
       {Extents<5>{{2, 3, 20, 30, 25}}, {{1, 1, 64, 64, 32}}, {{1, 700, 2, 1, 3}}, {{1, 5, 1, 1, 1}}}) {
    const Both<double> x(e, wave), g(e, [](long i) { return wave(3 * i + 1); });
    const auto channels = std::size_t(e[1]);
    std::vector<double> mean(channels), want(2 * channels), got(2 * channels);
    for (std::size_t c = 0; c < channels; ++c) mean[c] = 0.1 * double(c % 7);
    const auto compare = [&](const auto& f) {
      std::ranges::fill(want, 0), std::ranges::fill(got, 0);
      f(reference(), x.read(), g.read(), want.data());
      f(emulated(), x.read_there(), g.read_there(), got.data());
      CHECK(distance(got, want) < 1e-12);
    };
    compare([](auto b, auto v, auto, double* s) { b.channel_sums(v, s); });
    compare([&](auto b, auto v, auto, double* s) { b.channel_squares(v, mean.data(), s); });
    compare([&](auto b, auto v, auto dy, double* s) { b.normalisation_sums(v, dy, mean.data(), s); });
    const Box<5> part{{{0, 0, 0, 0, 0}}, {{1, e[1], (e[2] + 1) / 2, (e[3] + 1) / 2, e[4]}}};
    compare([&](auto b, auto v, auto, double* s) { b.channel_sums(v.box(part), s); });
    compare([](auto b, auto v, auto, double* s) { b.channel_sums(v.box({}), s); }); // of nothing
  }
}

TEST_CASE("device: dropout has the host's mask, bit by bit, wherever the block lies") {
  const Extents<5> e{{2, 3, 4, 3, 5}}, global{{4, 3, 9, 6, 7}};
  Both<float> x(e, wave), y(e, none);
  const Index<5> origin{{1, 0, 5, 2, 1}};
  reference::dropout<float>(x.read(), y.on_host(), origin, global, 0.6, 7, 3, 11);
  emulated::dropout<float>(x.read_there(), y.on_device(), origin, global, 0.6, 7, 3, 11);
  CHECK(y.there() == y.here);
  CHECK_THROWS_AS(emulated::dropout<float>(x.read_there(), y.on_device(), origin, global, 0, 7, 3, 11), usage_error);
}

TEST_CASE("device: the maximum of equal values goes to the first cell, averages divide by global windows") {
  kernel::Pooling p{.kind = kernel::Pool::max, .n = 1, .c = 2, .in = {{5, 4, 4}}, .out = {{3, 2, 2}}, .k = {{3, 3, 3}}};
  p.stride = {{2, 2, 2}}, p.padding = {{1, 1, 1}}, p.global = p.in;
  Both<double> x({{1, 2, 5, 4, 4}}, [](long i) { return i / 2 % 3; }), dy({{1, 2, 3, 2, 2}}, wave), y(dy.e, none),
      dx(x.e, none);
  for (const auto kind : {kernel::Pool::max, kernel::Pool::average})
    for (const bool counted : {true, false}) {
      p.kind = kind, p.count_padding = counted;
      reference::pool_forward<double>(p, x.read(), y.on_host());
      emulated::pool_forward<double>(p, x.read_there(), y.on_device());
      CHECK(distance(y.there(), y.here) < 1e-14);
      reference::pool_backward<double>(p, x.read(), dy.read(), dx.on_host(), kernel::Activation::leaky_relu, 0.1);
      emulated::pool_backward<double>(p, x.read_there(), dy.read_there(), dx.on_device(),
                                      kernel::Activation::leaky_relu, 0.1);
      CHECK(distance(dx.there(), dx.here) < 1e-14);
    }
  p.in_origin = {{2, 0, 0}}, p.global[0] = 9; // now its windows begin before the block
  CHECK_THROWS_WITH_AS(emulated::pool_forward<double>(p, x.read_there(), y.on_device()),
                       doctest::Contains("give it its halo"), usage_error);
}

TEST_CASE("device: sgd and adam over several steps") {
  const Extents<5> e{{1000, 1, 1, 1, 1}};
  Both<double> p(e, wave), g(e, [](long i) { return wave(i + 5); }), m(e, [](long) { return 0; }),
      v(e, [](long) { return 0; });
  const auto here = [](auto& b) { return std::span(b.here); };
  const auto there = [](auto& b) { return std::span(b.memory.data(), b.memory.size()); };
  for (std::uint64_t t = 1; t <= 4; ++t) {
    reference::adam<double>(here(p), here(g), here(m), here(v), 1e-2, 0.9, 0.99, 1e-8, t);
    emulated::adam<double>(there(p), there(g), there(m), there(v), 1e-2, 0.9, 0.99, 1e-8, t);
    reference::sgd<double>(here(p), here(g), here(m), 1e-2, 0.9);
    emulated::sgd<double>(there(p), there(g), there(m), 1e-2, 0.9);
  }
  CHECK(distance(p.there(), p.here) < 1e-13);
  CHECK(distance(m.there(), m.here) < 1e-13);
  CHECK(distance(v.there(), v.here) < 1e-13);
}

TEST_CASE("device: gradients that are added to what is there") {
  kernel::Conv c{
      .n = 2, .ci = 3, .co = 2, .in = {{4, 4, 3}}, .out = {{2, 2, 2}}, .k = {{3, 2, 2}}, .stride = {{2, 2, 1}}};
  c.below = {{1, 0, 0}};
  Both<double> x(kernel::x_extents(c), wave), dy(kernel::y_extents(c), wave), dw(kernel::w_extents(c), wave),
      db({{2, 1, 1, 1, 1}}, wave);
  reference::Convolution<double>(c).backward_weights(x.read(), dy.read(), dw.on_host(), db.here.data(),
                                                     kernel::Gradient::accumulate);
  emulated::Convolution<double>(c).backward_weights(x.read_there(), dy.read_there(), dw.on_device(), db.memory.data(),
                                                    kernel::Gradient::accumulate);
  CHECK(distance(dw.there(), dw.here) < 1e-13);
  CHECK(distance(db.there(), db.here) < 1e-13);
  const kernel::Dense d{.n = 3, .ci = 5, .co = 4};
  Both<double> a({{3, 5, 1, 1, 1}}, wave), b({{3, 4, 1, 1, 1}}, wave), w({{4, 5, 1, 1, 1}}, wave),
      e({{4, 1, 1, 1, 1}}, wave);
  reference::Dense<double>(d).backward_weights(a.here.data(), b.here.data(), w.here.data(), e.here.data(),
                                               kernel::Gradient::accumulate);
  emulated::Dense<double>(d).backward_weights(a.memory.data(), b.memory.data(), w.memory.data(), e.memory.data(),
                                              kernel::Gradient::accumulate);
  CHECK(distance(w.there(), w.here) < 1e-13);
  CHECK(distance(e.there(), e.here) < 1e-13);
}
