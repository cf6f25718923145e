// The plain-loop kernels: values worked out by hand, adjoints by dot products, gradients by finite differences.
#include "operands.hpp"

#include <tessera/kernel/reference.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation, kernel::Conv, kernel::Gradient, kernel::Pool, kernel::Pooling;
namespace reference = tessera::kernel::reference;

namespace {

constexpr kernel::Triple cube(long n) { return {{n, n, n}}; }

Conv same_convolution(long extent, long k) {
  return {.n = 1,
          .ci = 1,
          .co = 1,
          .in = cube(extent),
          .out = cube(extent),
          .k = cube(k),
          .below = cube(k / 2),
          .above = cube(k / 2)};
}

} // namespace

TEST_CASE("reference convolution: all ones, 3^3 kernel, 6^3 input: interior 27, face 18, edge 12, corner 8") {
  const Conv p = same_convolution(6, 3);
  Block<double> x(kernel::x_extents(p)), w(kernel::w_extents(p)), y(kernel::y_extents(p));
  fill_block(x.view, 1.0);
  fill_block(w.view, 1.0);
  reference::convolution<double>(p, x.view, w.view, nullptr, y.view);
  for_each_index(whole(y.view.extents), [&](const Index<5>& i) {
    int borders = 0;
    for (int k = 2; k < 5; ++k) borders += i[k] == 0 || i[k] == 5;
    constexpr double want[] = {27, 18, 12, 8};
    CHECK(y.view[i] == want[borders]);
  });
}

TEST_CASE("reference convolution: gradients of a 3x1x1 kernel of ones, depth 6: dx 2,3,3,3,3,2; dw 5,6,5; db 6") {
  Conv p{.n = 1, .ci = 1, .co = 1, .in = {{6, 1, 1}}, .out = {{6, 1, 1}}, .k = {{3, 1, 1}}};
  p.below = p.above = {{1, 0, 0}};
  Block<double> x(kernel::x_extents(p)), w(kernel::w_extents(p)), dy(kernel::y_extents(p)), dx(kernel::x_extents(p)),
      dw(kernel::w_extents(p));
  for (Block<double>* b : {&x, &w, &dy}) fill_block(b->view, 1.0);
  double db = 0;
  reference::convolution_backward_data<double>(p, dy.view, w.view, dx.view);
  reference::convolution_backward_weights<double>(p, x.view, dy.view, dw.view, &db, Gradient::overwrite);
  CHECK(std::vector<double>(dx.memory.begin(), dx.memory.begin() + 6) == std::vector<double>{2, 3, 3, 3, 3, 2});
  CHECK(std::vector<double>(dw.memory.begin(), dw.memory.begin() + 3) == std::vector<double>{5, 6, 5});
  CHECK(db == 6);
  reference::convolution_backward_weights<double>(p, x.view, dy.view, dw.view, &db, Gradient::accumulate);
  CHECK(dw.memory[1] == 12);
  CHECK(db == 12);
}

TEST_CASE("reference convolution: stride, dilation and one-sided padding by hand") {
  // Windows at -1, 1, 3 read cells start and start+2: y = x[1], x[1]+10*x[3], x[3]+10*x[5].
  Conv p{.n = 1,
         .ci = 1,
         .co = 1,
         .in = {{6, 1, 1}},
         .out = {{3, 1, 1}},
         .k = {{2, 1, 1}},
         .stride = {{2, 1, 1}},
         .dilation = {{2, 1, 1}},
         .below = {{1, 0, 0}}};
  Block<double> x(kernel::x_extents(p)), w(kernel::w_extents(p)), y(kernel::y_extents(p));
  for (std::size_t i = 0; i < 6; ++i) x.memory[i] = static_cast<double>(i);
  w.memory[0] = 1, w.memory[1] = 10;
  reference::convolution<double>(p, x.view, w.view, nullptr, y.view);
  CHECK(y.memory[0] == 10);
  CHECK(y.memory[1] == 31);
  CHECK(y.memory[2] == 53);
}

TEST_CASE("reference convolution: <conv(x), y> = <x, conv*(y)> = <w, dw(x, y)> for random problems") {
  constexpr std::uint64_t seed = 101;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    Conv p = random_convolution(random, Unread::all);
    p.act = Activation::none;
    INFO(p.str());
    Block<double> x(kernel::x_extents(p), Gaps::everywhere, random), w(kernel::w_extents(p)),
        y(kernel::y_extents(p), Gaps::everywhere, random), dy(kernel::y_extents(p), Gaps::everywhere, random),
        dx(kernel::x_extents(p), Gaps::everywhere, random), dw(kernel::w_extents(p));
    for (Block<double>* b : {&x, &w, &dy}) b->randomise(random);
    reference::convolution<double>(p, x.view, w.view, nullptr, y.view);
    reference::convolution_backward_data<double>(p, dy.view, w.view, dx.view);
    reference::convolution_backward_weights<double>(p, x.view, dy.view, dw.view, nullptr, Gradient::overwrite);
    const double forward = dot(y.read(), dy.read());
    const double scale = 1e-12 * (1 + std::sqrt(dot(y.read(), y.read()) * dot(dy.read(), dy.read())));
    CHECK(std::abs(forward - dot(x.read(), dx.read())) <= scale);
    CHECK(std::abs(forward - dot(w.read(), dw.read())) <= scale);
  }
}

TEST_CASE("reference pooling: maximum of all -5 is -5, average with padding counted or not") {
  Pooling p{.kind = Pool::max,
            .n = 1,
            .c = 1,
            .in = {{9, 1, 1}},
            .out = {{5, 1, 1}},
            .k = {{3, 1, 1}},
            .stride = {{2, 1, 1}},
            .padding = {{1, 0, 0}},
            .global = {{9, 1, 1}}};
  Block<double> x(kernel::x_extents(p)), y(kernel::y_extents(p));
  fill_block(x.view, -5.0);
  reference::pooling<double>(p, x.view, y.view);
  for (std::size_t i = 0; i < 5; ++i) CHECK(y.memory[i] == -5);
  p.kind = Pool::average;
  reference::pooling<double>(p, x.view, y.view);
  CHECK(y.memory[0] == doctest::Approx(-10.0 / 3).epsilon(1e-15));
  CHECK(y.memory[1] == doctest::Approx(-5).epsilon(1e-15));
  p.count_padding = false;
  reference::pooling<double>(p, x.view, y.view);
  for (std::size_t i = 0; i < 5; ++i) CHECK(y.memory[i] == -5);
}

TEST_CASE("reference pooling: the gradient of a tie goes to the first cell in d,h,w order, and takes act' along") {
  Pooling p{.kind = Pool::max,
            .n = 1,
            .c = 1,
            .in = {{2, 2, 2}},
            .out = {{1, 1, 1}},
            .k = {{2, 2, 2}},
            .stride = {{2, 2, 2}},
            .global = {{2, 2, 2}}};
  Block<double> x(kernel::x_extents(p)), dy(kernel::y_extents(p)), dx(kernel::x_extents(p));
  x.memory = {-3, -1, -1, -4, -1, -2, -5, -1, 0};
  dy.memory[0] = 8;
  reference::pooling_backward<double>(p, x.view, dy.view, dx.view, Activation::leaky_relu, 0.5);
  CHECK(std::vector<double>(dx.memory.begin(), dx.memory.begin() + 8) == std::vector<double>{0, 4, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("reference pooling: an average of a block equals that part of the whole") {
  // Cells 0..7, windows of 3 at stride 2, padding 1; the second block holds cells 3..7 and the outputs 2 and 3.
  Pooling p{.n = 1,
            .c = 1,
            .in = {{5, 1, 1}},
            .out = {{2, 1, 1}},
            .k = {{3, 1, 1}},
            .stride = {{2, 1, 1}},
            .padding = {{1, 0, 0}},
            .in_origin = {{3, 0, 0}},
            .out_origin = {{2, 0, 0}},
            .global = {{8, 1, 1}}};
  Block<double> x(kernel::x_extents(p)), y(kernel::y_extents(p));
  x.memory = {3, 4, 5, 6, 7, 0};
  reference::pooling<double>(p, x.view, y.view);
  CHECK(y.memory[0] == 4);
  CHECK(y.memory[1] == 6);
}

TEST_CASE("reference pooling: average is linear, so <A x, y> = <x, A* y>") {
  constexpr std::uint64_t seed = 102;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 40; ++round) {
    Pooling p{.n = random.in(0, 2), .c = random.in(1, 3), .count_padding = random.one_in(2)};
    for (int i = 0; i < 3; ++i) {
      p.k[i] = random.in(1, 3), p.stride[i] = random.in(1, 3), p.dilation[i] = random.in(1, 2);
      p.padding[i] = random.in(0, 2), p.global[i] = p.in[i] = random.in(1, 7);
      const long room = p.in[i] + 2 * p.padding[i] - kernel::span(p.k[i], p.dilation[i]);
      p.out[i] = room < 0 ? 0 : room / p.stride[i] + 1;
    }
    Block<double> x(kernel::x_extents(p), Gaps::everywhere, random), y(kernel::y_extents(p), Gaps::everywhere, random),
        dy(kernel::y_extents(p), Gaps::everywhere, random), dx(kernel::x_extents(p), Gaps::everywhere, random);
    x.randomise(random);
    dy.randomise(random);
    reference::pooling<double>(p, x.view, y.view);
    reference::pooling_backward<double>(p, x.view, dy.view, dx.view, Activation::none, 0);
    CHECK(std::abs(dot(y.read(), dy.read()) - dot(x.read(), dx.read())) <=
          1e-12 * (1 + double(product(dy.view.extents))));
  }
}

TEST_CASE("reference kernels: gradients agree with finite differences") {
  constexpr std::uint64_t seed = 103;
  INFO("seed ", seed);
  Random random(seed);
  const double step = 1e-6;
  SUBCASE("maximum pooling with overlapping windows") {
    const Pooling p{.kind = Pool::max,
                    .n = 1,
                    .c = 2,
                    .in = {{5, 4, 5}},
                    .out = {{3, 2, 3}},
                    .k = {{3, 3, 3}},
                    .stride = {{2, 2, 2}},
                    .padding = {{1, 1, 1}},
                    .global = {{5, 4, 5}}};
    Block<double> x(kernel::x_extents(p)), y(kernel::y_extents(p)), dy(kernel::y_extents(p)), dx(kernel::x_extents(p));
    x.randomise(random);
    dy.randomise(random);
    reference::pooling_backward<double>(p, x.view, dy.view, dx.view, Activation::none, 0);
    for (std::size_t i = 0; i + 1 < x.memory.size(); ++i) {
      double side[2];
      for (int s = 0; s < 2; ++s) {
        const double before = x.memory[i];
        x.memory[i] += s ? step : -step;
        reference::pooling<double>(p, x.view, y.view);
        side[s] = dot(y.read(), dy.read());
        x.memory[i] = before;
      }
      CHECK(std::abs((side[1] - side[0]) / (2 * step) - dx.memory[i]) < 1e-8);
    }
  }
  SUBCASE("convolution weights") {
    const Conv p{.n = 2,
                 .ci = 2,
                 .co = 3,
                 .in = {{4, 3, 5}},
                 .out = {{2, 3, 2}},
                 .k = {{3, 2, 3}},
                 .stride = {{2, 1, 2}},
                 .below = {{1, 0, 0}},
                 .above = {{0, 1, 0}}};
    Block<double> x(kernel::x_extents(p)), w(kernel::w_extents(p)), y(kernel::y_extents(p)), dy(kernel::y_extents(p)),
        dw(kernel::w_extents(p));
    for (Block<double>* b : {&x, &w, &dy}) b->randomise(random);
    reference::convolution_backward_weights<double>(p, x.view, dy.view, dw.view, nullptr, Gradient::overwrite);
    for (std::size_t i = 0; i + 1 < w.memory.size(); ++i) {
      double side[2];
      for (int s = 0; s < 2; ++s) {
        const double before = w.memory[i];
        w.memory[i] += s ? step : -step;
        reference::convolution<double>(p, x.view, w.view, nullptr, y.view);
        side[s] = dot(y.read(), dy.read());
        w.memory[i] = before;
      }
      CHECK(std::abs((side[1] - side[0]) / (2 * step) - dw.memory[i]) < 1e-8);
    }
  }
}

TEST_CASE("reference dense layer: a 2 x 3 example by hand") {
  const kernel::Dense p{.n = 1, .ci = 3, .co = 2, .act = Activation::leaky_relu, .slope = 0.5};
  const double x[] = {1, 2, 3}, w[] = {1, 0, -1, 2, 1, 0}, b[] = {-2, 1}, dy[] = {1, 10};
  double y[2], dx[3], dw[6], db[2];
  reference::dense<double>(p, x, w, b, y);
  CHECK(y[0] == -2); // 0.5 * (1 - 3 - 2)
  CHECK(y[1] == 5);
  reference::dense_backward_data<double>(p, dy, w, dx);
  CHECK(dx[0] == 21);
  CHECK(dx[1] == 10);
  CHECK(dx[2] == -1);
  reference::dense_backward_weights<double>(p, x, dy, dw, db, Gradient::overwrite);
  CHECK(dw[2] == 3);
  CHECK(dw[4] == 20);
  CHECK(db[1] == 10);
}

TEST_CASE("problems that make no sense are refused") {
  Conv p = same_convolution(4, 3);
  CHECK_NOTHROW(kernel::check_problem(p));
  p.out[1] = 5;
  CHECK_THROWS_AS(kernel::check_problem(p), usage_error);
  p = same_convolution(4, 3);
  p.stride[2] = 0;
  CHECK_THROWS_AS(kernel::check_problem(p), usage_error);
  p = {.n = 1, .ci = 1, .co = 1, .in = cube(4), .out = cube(1), .k = cube(3), .dilation = cube(2)};
  CHECK_THROWS_AS(kernel::check_problem(p), usage_error); // span 5, extent 4
  Pooling q{.n = 1,
            .c = 1,
            .in = {{3, 1, 1}},
            .out = {{2, 1, 1}},
            .k = {{3, 1, 1}},
            .stride = {{2, 1, 1}},
            .padding = {{1, 0, 0}},
            .in_origin = {{4, 0, 0}},
            .out_origin = {{2, 0, 0}},
            .global = {{8, 1, 1}}};
  CHECK_THROWS_AS(kernel::check_problem(q), usage_error); // cell 3, the halo, is missing
}
