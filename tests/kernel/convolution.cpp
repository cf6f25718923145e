// The convolutions of the CPU in float against the plain loops in double.
#include "operands.hpp"

#include <tessera/kernel/cpu.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation, kernel::Conv, kernel::Convolution, kernel::ConvWeights, kernel::Gradient,
    kernel::OnednnConvolution, kernel::Pass;
namespace reference = tessera::kernel::reference;

namespace {

/// Operands of one problem in float, their copies in double, and what the plain loops make of them.
struct Oracle {
  Conv p;
  Block<float> x, w, dy;
  std::vector<float> bias;
  std::vector<double> db, db_scale;
  Block<double> y, y_scale, dx, dx_scale, dw, dw_scale;
  double outputs;

  Oracle(const Conv& problem, Gaps gaps, Random& random)
      : p(problem), x(kernel::x_extents(p), gaps, random), w(kernel::w_extents(p)),
        dy(kernel::y_extents(p), gaps, random), bias(static_cast<std::size_t>(p.co)), db(bias.size()),
        db_scale(bias.size()), y(kernel::y_extents(p)), y_scale(kernel::y_extents(p)), dx(kernel::x_extents(p)),
        dx_scale(kernel::x_extents(p)), dw(kernel::w_extents(p)), dw_scale(kernel::w_extents(p)),
        outputs(static_cast<double>(p.n * product(p.out))) {
    for (Block<float>* b : {&x, &w, &dy}) b->randomise(random);
    for (float& b : bias) b = static_cast<float>(random.real());
    run(Sign::kept, y.view, dx.view, dw.view, db);
    run(Sign::absolute, y_scale.view, dx_scale.view, dw_scale.view, db_scale);
  }
  void run(Sign sign, const View<double, 5>& to_y, const View<double, 5>& to_dx, const View<double, 5>& to_dw,
           std::vector<double>& to_db) const {
    const auto x64 = converted<double>(x.read(), sign), w64 = converted<double>(w.read(), sign),
               dy64 = converted<double>(dy.read(), sign);
    std::vector<double> b64;
    for (float b : bias) b64.push_back(sign == Sign::absolute ? std::abs(b) : b);
    reference::convolution<double>(p, x64.view, w64.view, b64.data(), to_y);
    reference::convolution_backward_data<double>(p, dy64.view, w64.view, to_dx);
    reference::convolution_backward_weights<double>(p, x64.view, dy64.view, to_dw, to_db.data(), Gradient::overwrite);
  }
  double terms() const { return static_cast<double>(p.ci * product(p.k)); }
  double terms_back() const { return static_cast<double>(p.co * product(p.k)); }
};

/// Runs backward_weights of any kernel, overwriting and accumulating, with and without bias gradient.
template <class Kernel> double worst_weights(Kernel& kernel, const Oracle& o) {
  Block<float> dw(kernel::w_extents(o.p)), twice(kernel::w_extents(o.p));
  std::vector<float> db(o.bias.size(), 7.F);
  fill_block(dw.view, 7.F); // overwritten
  kernel.backward_weights(o.x.view, o.dy.view, dw.view, db.data(), Gradient::overwrite);
  double w = worst(dw.read(), o.dw.read(), o.dw_scale.read(), o.outputs);
  fill_block(twice.view, 0.F);
  kernel.backward_weights(o.x.view, o.dy.view, twice.view, nullptr, Gradient::overwrite);
  w = std::max(w, worst(twice.read(), o.dw.read(), o.dw_scale.read(), o.outputs));
  kernel.backward_weights(o.x.view, o.dy.view, dw.view, db.data(), Gradient::accumulate);
  for (std::size_t i = 0; i < dw.memory.size(); ++i) dw.memory[i] /= 2;
  w = std::max(w, worst(dw.read(), o.dw.read(), o.dw_scale.read(), o.outputs));
  const double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  for (std::size_t i = 0; i < db.size(); ++i)
    w = std::max(w, std::abs(static_cast<double>(db[i]) / 2 - o.db[i]) /
                        (eps * std::sqrt(std::max(1.0, o.outputs)) * o.db_scale[i] + 1e-30));
  return w;
}

/// Runs all passes of a convolution on operands with gaps like the oracle's and compares them with the oracle.
template <class Kernel> void check_passes(Kernel& conv, const Oracle& o, Gaps gaps, Random& random) {
  Block<float> y(kernel::y_extents(o.p), gaps, random), dx(kernel::x_extents(o.p), gaps, random);
  fill_block(y.view, 7.F), fill_block(dx.view, 7.F); // overwritten
  conv.forward(o.x.view, o.w.view, o.bias.data(), y.view);
  conv.backward_data(o.dy.view, o.w.view, dx.view);
  CHECK(worst(y.read(), o.y.read(), o.y_scale.read(), o.terms()) < 1);
  CHECK(worst(dx.read(), o.dx.read(), o.dx_scale.read(), o.terms_back()) < 1);
  CHECK(worst_weights(conv, o) < 1);
}

struct OwnWeights {
  ConvWeights<float> kernel;
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    kernel.run(x, dy, dw, db, mode);
  }
};

constexpr kernel::Triple cube(long n) { return {{n, n, n}}; }

Conv layer(long ci, long co, long extent, long stride) {
  return {.n = 1,
          .ci = ci,
          .co = co,
          .in = cube(extent),
          .out = cube((extent - 1) / stride + 1),
          .k = cube(3),
          .stride = cube(stride),
          .below = cube(1),
          .above = cube(1)};
}

} // namespace

namespace {
/// Channels that divide into groups: depthwise, with several outputs a group, or few or many channels a group.
Conv grouped(Conv p, Random& random) {
  constexpr long inputs[] = {1, 1, 1, 2, 8, 16};
  p.groups = random.in(2, 19);
  p.ci = p.groups * inputs[random.pick(0, 5)];
  p.co = p.groups * (random.one_in(2) ? 1 : inputs[random.pick(0, 5)]);
  return p;
}
} // namespace

TEST_CASE("a grouped convolution is an ungrouped one whose weights between groups are zero: plain loops, all passes") {
  constexpr std::uint64_t seed = 213;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 40; ++round) {
    const Conv p = grouped(random_convolution(random, Unread::all), random);
    INFO("round ", round, ": ", p.str());
    Conv dense = p;
    dense.groups = 1;
    const long in_group = p.ci / p.groups, out_group = p.co / p.groups;
    Block<double> x(kernel::x_extents(p)), w(kernel::w_extents(p)), dy(kernel::y_extents(p)),
        all(kernel::w_extents(dense));
    for (Block<double>* b : {&x, &w, &dy}) b->randomise(random);
    for_each_index(whole(w.view.extents), [&](Index<5> i) {
      const double v = w.view[i];
      i[1] += i[0] / out_group * in_group;
      all.view[i] = v;
    });
    Block<double> y(kernel::y_extents(p)), y1(kernel::y_extents(p)), dx(kernel::x_extents(p)),
        dx1(kernel::x_extents(p)), dw(kernel::w_extents(p)), dw1(kernel::w_extents(dense));
    reference::convolution<double>(p, x.view, w.view, nullptr, y.view);
    reference::convolution<double>(dense, x.view, all.view, nullptr, y1.view);
    reference::convolution_backward_data<double>(p, dy.view, w.view, dx.view);
    reference::convolution_backward_data<double>(dense, dy.view, all.view, dx1.view);
    reference::convolution_backward_weights<double>(p, x.view, dy.view, dw.view, nullptr, Gradient::overwrite);
    reference::convolution_backward_weights<double>(dense, x.view, dy.view, dw1.view, nullptr, Gradient::overwrite);
    const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
      double most = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        most = std::max(most, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
      return most;
    };
    CHECK(same(y.memory, y1.memory) <= 1e-13);
    CHECK(same(dx.memory, dx1.memory) <= 1e-13);
    for_each_index(whole(dw.view.extents), [&](const Index<5>& i) {
      Index<5> j = i;
      j[1] += i[0] / out_group * in_group;
      if (dw.view[i] != dw1.view[j]) FAIL_CHECK("dw differs at ", i.str());
    });
    CHECK(dense.flop() == double(p.groups) * p.flop());
  }
}

TEST_CASE("grouped and depthwise convolutions in float equal the plain loops, all passes") {
  constexpr std::uint64_t seed = 214;
  INFO("seed ", seed);
  Random random(seed);
  int own = 0;
  for (int round = 0; round < 150; ++round) {
    const Conv p = grouped(random_convolution(random, Unread::depth), random);
    INFO("round ", round, ": ", p.str());
    const Oracle o(p, Gaps::between_samples, random);
    Convolution<float> conv(p);
    check_passes(conv, o, Gaps::between_samples, random);
    own += conv.implementation(Pass::forward) == "tessera";
    if (!kernel::ConvDepthwise<float>::fits(p)) continue;
    const Oracle spread(p, Gaps::everywhere, random); // the own kernel takes any strides
    kernel::ConvDepthwise<float> depthwise(p);
    check_passes(depthwise, spread, Gaps::everywhere, random);
  }
  CHECK(own > 10);
}

TEST_CASE("typical grouped convolutions run in vectorised kernels; groups that do not divide are refused") {
  struct Case {
    long ci, co, groups;
  };
  for (const Case& c : {Case{32, 32, 32},
                        {16, 16, 16},
                        {64, 64, 64},
                        {32, 64, 32},
                        {32, 32, 2},
                        {64, 64, 4},
                        {24, 24, 3},
                        {32, 32, 8},
                        {48, 96, 3},
                        {128, 128, 8},
                        {8, 16, 4}})
    for (long stride : {1L, 2L}) {
      Conv p = layer(c.ci, c.co, 12, stride);
      p.groups = c.groups, p.act = Activation::relu;
      Convolution<float> conv(p);
      for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
        const std::string name = conv.implementation(pass);
        INFO(p.str(), ", pass ", int(pass), ": ", name);
        CHECK(name.find("ref") == std::string::npos);
        CHECK((name == "tessera") == (c.ci == c.groups && c.co == c.groups));
      }
    }
  Conv p = layer(6, 8, 6, 1);
  for (long groups : {4L, 3L, 0L, -2L}) {
    p.groups = groups;
    CHECK_THROWS_WITH_AS(Convolution<float>{p}, doctest::Contains("groups"), usage_error);
  }
}

TEST_CASE("oneDNN convolutions equal the plain loops for random problems, all passes") {
  constexpr std::uint64_t seed = 201;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 250; ++round) {
    const Conv p = random_convolution(random, Unread::depth);
    INFO("round ", round, ": ", p.str());
    const Oracle o(p, Gaps::between_samples, random);
    OnednnConvolution conv(p);
    check_passes(conv, o, Gaps::between_samples, random);
  }
}

TEST_CASE("the own weight gradient equals the plain loops for random problems and strides") {
  constexpr std::uint64_t seed = 202;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 250; ++round) {
    const Conv p = random_convolution(random, Unread::all);
    INFO("round ", round, ": ", p.str());
    const Oracle o(p, Gaps::everywhere, random);
    OwnWeights kernel{ConvWeights<float>(p)};
    CHECK(worst_weights(kernel, o) < 1);
  }
}

TEST_CASE("the unfolded convolution equals the plain loops for random problems, all passes, on views of any strides") {
  constexpr std::uint64_t seed = 211;
  INFO("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    const Conv p = random_convolution(random, Unread::all);
    INFO("round ", round, ": ", p.str());
    const Oracle o(p, Gaps::everywhere, random);
    kernel::ConvUnfolded conv(p);
    check_passes(conv, o, Gaps::everywhere, random);
  }
}

TEST_CASE("layers with more weights than cells are unfolded, and reorder no weights") {
  Random random(212);
  Conv p = layer(32, 48, 2, 1);
  p.n = 3;
  const Oracle o(p, Gaps::none, random);
  Convolution<float> conv(p);
  const long reorders = kernel::onednn_counters().weight_reorders;
  check_passes(conv, o, Gaps::none, random);
  CHECK(kernel::onednn_counters().weight_reorders == reorders);
  for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights})
    CHECK(conv.implementation(pass) == "unfolded");
  CHECK(Convolution<float>(layer(32, 48, 16, 1)).implementation(Pass::forward) != "unfolded");
}

TEST_CASE("the own direct convolution equals the plain loops, as itself and as the adjoint of another") {
  constexpr std::uint64_t seed = 209;
  INFO("seed ", seed);
  Random random(seed);
  int adjoints = 0;
  for (int round = 0; round < 250; ++round) {
    Conv p = random_convolution(random, Unread::all);
    if (round % 2)
      for (int i = 0; i < 3; ++i)
        if (p.stride[i] > 1) p.stride[i] = 1; // more outputs would fit now; fewer are fine
    INFO("round ", round, ": ", p.str());
    const Oracle o(p, Gaps::everywhere, random);
    Block<float> y(kernel::y_extents(p), Gaps::everywhere, random), dx(kernel::x_extents(p), Gaps::everywhere, random);
    kernel::ConvDirect<float>(p).run(o.x.view, o.w.view, o.bias.data(), y.view);
    CHECK(worst(y.read(), o.y.read(), o.y_scale.read(), o.terms()) < 1);
    if (!kernel::has_adjoint_problem(p)) continue;
    ++adjoints;
    kernel::ConvDirect<float>(kernel::adjoint_problem(p))
        .run(o.dy.view, kernel::adjoint_weights(o.w.read()), nullptr, dx.view);
    CHECK(worst(dx.read(), o.dx.read(), o.dx_scale.read(), o.terms_back()) < 1);
  }
  CHECK(adjoints > 100);
}

TEST_CASE("the own kernels on problems that fill several blocks, and in double") {
  Random random(203);
  const Conv several[] = {
      {.n = 2,
       .ci = 4,
       .co = 16,
       .in = {{5, 37, 40}},
       .out = {{5, 37, 40}},
       .k = cube(3),
       .below = cube(1),
       .above = cube(1)},
      {.n = 1,
       .ci = 16,
       .co = 40,
       .in = {{4, 33, 35}},
       .out = {{2, 17, 18}},
       .k = cube(3),
       .stride = cube(2),
       .below = cube(1),
       .above = cube(1)},
      {.n = 1,
       .ci = 1,
       .co = 3,
       .in = {{6, 21, 200}},
       .out = {{4, 18, 198}},
       .k = {{3, 4, 3}},
       .dilation = {{1, 1, 1}}},
  };
  for (const Conv& p : several) {
    INFO(p.str());
    const Oracle o(p, Gaps::everywhere, random);
    OwnWeights kernel{ConvWeights<float>(p)};
    CHECK(worst_weights(kernel, o) < 1);
    Block<float> y(kernel::y_extents(p));
    kernel::ConvDirect<float>(p).run(o.x.view, o.w.view, o.bias.data(), y.view);
    CHECK(worst(y.read(), o.y.read(), o.y_scale.read(), o.terms()) < 1);
    ConvWeights<double> wide(p);
    const auto x = converted<double>(o.x.read()), dy = converted<double>(o.dy.read());
    Block<double> dw(kernel::w_extents(p));
    wide.run(x.view, dy.view, dw.view, nullptr, Gradient::overwrite);
    for_each_index(whole(dw.view.extents), [&](const Index<5>& i) {
      if (std::abs(dw.view[i] - o.dw.view[i]) > 1e-13 * o.dw_scale.view[i]) FAIL_CHECK("double differs at ", i.str());
    });
  }
}

TEST_CASE("Convolution<double> is the plain loops, Convolution<float> agrees with it") {
  Random random(204);
  for (int round = 0; round < 20; ++round) {
    const Conv p = random_convolution(random, Unread::depth);
    INFO(p.str());
    const Oracle o(p, Gaps::none, random);
    Convolution<float> conv(p);
    Convolution<double> wide(p);
    const auto x = converted<double>(o.x.read()), w = converted<double>(o.w.read());
    Block<float> y(kernel::y_extents(p));
    Block<double> y64(kernel::y_extents(p));
    const std::vector<double> b64(o.bias.begin(), o.bias.end());
    conv.forward(o.x.view, o.w.view, o.bias.data(), y.view);
    wide.forward(x.view, w.view, b64.data(), y64.view);
    CHECK(worst(y.read(), y64.read(), o.y_scale.read(), o.terms()) < 1);
    CHECK(worst_weights(conv, o) < 1);
  }
}

TEST_CASE("Convolution<float> on a block large enough for all of its kernels") {
  Random random(210);
  Conv p = layer(16, 24, 16, 1);
  const Oracle o(p, Gaps::none, random);
  Convolution<float> conv(p);
  check_passes(conv, o, Gaps::none, random);
}

TEST_CASE("a convolution without bias, twice on other memory") {
  Random random(205);
  Conv p = layer(4, 16, 6, 1);
  p.n = 2;
  Oracle o(p, Gaps::none, random);
  std::fill(o.bias.begin(), o.bias.end(), 0.F);
  o.run(Sign::kept, o.y.view, o.dx.view, o.dw.view, o.db);
  Convolution<float> conv(p);
  for (int again = 0; again < 2; ++again) {
    Block<float> x(kernel::x_extents(p)), y(kernel::y_extents(p));
    copy_block(o.x.read(), x.view);
    conv.forward(x.view, o.w.view, nullptr, y.view);
    CHECK(worst(y.read(), o.y.read(), o.y_scale.read(), o.terms()) < 1);
  }
}

TEST_CASE("operands that oneDNN would compute in scalar code, and wrong ones, are refused") {
  const Conv p = layer(4, 8, 6, 1);
  Convolution<float> conv(p);
  Block<float> x(kernel::x_extents(p)), w(kernel::w_extents(p)), y(kernel::y_extents(p));
  Block<float> large(Extents<5>{{1, 4, 8, 8, 8}}), large_y(Extents<5>{{1, 8, 8, 8, 8}}),
      small(Extents<5>{{1, 4, 5, 6, 6}});
  const Box<5> inner{{{0, 0, 1, 1, 1}}, {{1, 4, 7, 7, 7}}}, inner_y{{{0, 0, 1, 1, 1}}, {{1, 8, 7, 7, 7}}};
  CHECK_NOTHROW(conv.forward(x.view, w.view, nullptr, y.view));
  CHECK_THROWS_AS(conv.forward(large.view.box(inner), w.view, nullptr, y.view), usage_error);
  CHECK_THROWS_AS(conv.forward(x.view, w.view, nullptr, large_y.view.box(inner_y)), usage_error);
  CHECK_THROWS_AS(conv.backward_data(large_y.view.box(inner_y), w.view, x.view), usage_error);
  CHECK_THROWS_AS(conv.backward_data(y.view, w.view, large.view.box(inner)), usage_error);
  OnednnConvolution plain(p);
  CHECK_THROWS_AS(plain.backward_weights(large.view.box(inner), y.view, w.view, nullptr, Gradient::overwrite),
                  usage_error);
  CHECK_THROWS_AS(conv.forward(small.view, w.view, nullptr, y.view), usage_error);
  View<float, 5> transposed = w.view;
  std::swap(transposed.strides[0], transposed.strides[1]);
  CHECK_THROWS_AS(conv.forward(x.view, transposed, nullptr, y.view), usage_error);

  Conv unread = p;
  unread.out[1] -= 2; // along height whole rows would have to be cut out of every plane
  CHECK_THROWS_WITH_AS(Convolution<float>{unread}, doctest::Contains("beyond the last window"), usage_error);
}

TEST_CASE("every convolution of CosmoFlow runs in a vectorised kernel, whole and split along depth") {
  const Conv layers[] = {layer(4, 16, 128, 1),  layer(16, 32, 64, 1),  layer(32, 64, 32, 1),  layer(64, 128, 16, 2),
                         layer(128, 256, 4, 1), layer(256, 256, 2, 1), layer(4, 16, 64, 1),   layer(16, 32, 32, 1),
                         layer(32, 64, 16, 1),  layer(64, 128, 8, 2),  layer(128, 256, 2, 1), layer(256, 256, 1, 1)};
  for (Conv p : layers)
    for (long parts : {1L, 2L}) {
      if (p.in[0] % (2 * parts) != 0) continue;
      if (parts == 2) { // the lower half, with the plane it needs from the upper one
        p.out[0] /= 2;
        p.in[0] = (p.out[0] - 1) * p.stride[0] + 2;
        p.above[0] = 0;
      }
      p.slope = 0.01;
      for (const Activation act : {Activation::elu, Activation::sigmoid, Activation::tanh}) {
        p.act = act;
        const std::string name = Convolution<float>(p).implementation(Pass::forward);
        INFO(p.str(), " with activation ", int(act), ": ", name);
        CHECK(name.find("ref") == std::string::npos);
        CHECK(name != "none");
      }
      p.act = Activation::leaky_relu;
      Convolution<float> conv(p);
      for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
        if (pass == Pass::backward_data && p.ci == 4) continue; // the input's gradient is never wanted
        const std::string name = conv.implementation(pass);
        INFO(p.str(), ", pass ", int(pass), ": ", name);
        CHECK(name.find("ref") == std::string::npos);
        CHECK(name != "none");
      }
    }
}

TEST_CASE("no activation is reordered, and nothing is made or allocated by the second run") {
  Random random(206);
  Conv p = layer(16, 32, 6, 1);
  p.n = 2;
  const Oracle o(p, Gaps::none, random);
  Convolution<float> conv(p);
  OnednnConvolution plain(p);
  Block<float> y(kernel::y_extents(p)), dx(kernel::x_extents(p)), dw(kernel::w_extents(p));
  const auto step = [&] {
    conv.forward(o.x.view, o.w.view, o.bias.data(), y.view);
    conv.backward_data(o.dy.view, o.w.view, dx.view);
    conv.backward_weights(o.x.view, o.dy.view, dw.view, nullptr, Gradient::overwrite);
    plain.backward_weights(o.x.view, o.dy.view, dw.view, nullptr, Gradient::accumulate);
  };
  step();
  auto& counters = kernel::onednn_counters();
  const long primitives = counters.primitives, executions = counters.executions;
  const auto allocations = allocation_counter().allocations.load();
  step();
  CHECK(counters.primitives == primitives);
  CHECK(counters.executions > executions);
  CHECK(counters.activation_reorders == 0);
  CHECK(allocation_counter().allocations == allocations);
}

TEST_CASE("200 different shapes leave the scratch memory bounded") {
  Random random(207);
  const auto held = allocation_counter().bytes_held.load();
  for (int round = 0; round < 200; ++round) {
    Conv p = layer(3, 4, 2 + round % 9, 1);
    p.in[2] = p.out[2] = 1 + round / 9;
    Convolution<float> conv(p);
    Block<float> x(kernel::x_extents(p)), w(kernel::w_extents(p)), y(kernel::y_extents(p));
    conv.forward(x.view, w.view, nullptr, y.view);
    conv.backward_weights(x.view, y.view, w.view, nullptr, Gradient::overwrite);
  }
  CHECK(allocation_counter().bytes_held <= held + (4U << 20));
}

TEST_CASE("dense layers equal the plain loops in double") {
  constexpr std::uint64_t seed = 208;
  INFO("seed ", seed);
  Random random(seed);
  for (const long n : {0L, 1L, 3L, 8L})
    for (const Activation act : {Activation::none, Activation::relu, Activation::leaky_relu, Activation::elu,
                                 Activation::sigmoid, Activation::tanh}) {
      const kernel::Dense p{.n = n, .ci = random.in(1, 70), .co = random.in(1, 70), .act = act, .slope = 0.25};
      INFO("dense ", p.n, ": ", p.ci, " -> ", p.co);
      Block<float> x(Extents<5>{{n, p.ci, 1, 1, 1}}), w(Extents<5>{{p.co, p.ci, 1, 1, 1}}),
          dy(Extents<5>{{n, p.co, 1, 1, 1}}), b(Extents<5>{{1, p.co, 1, 1, 1}});
      for (Block<float>* one : {&x, &w, &dy, &b}) one->randomise(random);
      kernel::InnerProduct<float> dense(p);
      kernel::InnerProduct<double> wide(p);
      Block<float> y(dy.view.extents), dx(x.view.extents), dw(w.view.extents), db(b.view.extents);
      Block<double> y64(dy.view.extents), dx64(x.view.extents), dw64(w.view.extents), db64(b.view.extents);
      Block<double> y_scale(dy.view.extents), dx_scale(x.view.extents), dw_scale(w.view.extents),
          db_scale(b.view.extents);
      const auto oracle = [&](Sign sign, Block<double>& to_y, Block<double>& to_dx, Block<double>& to_dw,
                              Block<double>& to_db) {
        const auto xd = converted<double>(x.read(), sign), wd = converted<double>(w.read(), sign),
                   dyd = converted<double>(dy.read(), sign), bd = converted<double>(b.read(), sign);
        wide.forward(xd.memory.data(), wd.memory.data(), bd.memory.data(), to_y.memory.data());
        wide.backward_data(dyd.memory.data(), wd.memory.data(), to_dx.memory.data());
        wide.backward_weights(xd.memory.data(), dyd.memory.data(), to_dw.memory.data(), to_db.memory.data(),
                              Gradient::overwrite);
      };
      oracle(Sign::kept, y64, dx64, dw64, db64);
      oracle(Sign::absolute, y_scale, dx_scale, dw_scale, db_scale);
      dense.forward(x.memory.data(), w.memory.data(), b.memory.data(), y.memory.data());
      dense.backward_data(dy.memory.data(), w.memory.data(), dx.memory.data());
      dense.backward_weights(x.memory.data(), dy.memory.data(), dw.memory.data(), db.memory.data(),
                             Gradient::overwrite);
      CHECK(worst(y.read(), y64.read(), y_scale.read(), double(p.ci)) < 1);
      CHECK(worst(dx.read(), dx64.read(), dx_scale.read(), double(p.co)) < 1);
      CHECK(worst(dw.read(), dw64.read(), dw_scale.read(), double(n)) < 1);
      CHECK(worst(db.read(), db64.read(), db_scale.read(), double(n)) < 1);
      dense.backward_weights(x.memory.data(), dy.memory.data(), dw.memory.data(), db.memory.data(),
                             Gradient::accumulate);
      for (Block<float>* one : {&dw, &db})
        for (float& v : one->memory) v /= 2;
      CHECK(worst(dw.read(), dw64.read(), dw_scale.read(), double(n)) < 1);
      CHECK(worst(db.read(), db64.read(), db_scale.read(), double(n)) < 1);
      if (n > 0)
        for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights})
          CHECK(dense.implementation(pass).find("ref") == std::string::npos);
    }
}
