// Random convolutions and poolings with random boundaries on random grids and layouts, against the plain loops on the
// whole tensors: outputs and all gradients.
#include "alone.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr std::uint64_t seed = 20240229;

/// Kernel, stride, dilation, padding of each side (up to beyond the window), border.
Window random_window(Random& random, long& extent) {
  Window v;
  v.k = random.pick(1, 5);
  v.stride = random.pick(1, 5);
  v.dilation = random.one_in(3) ? random.pick(2, 3) : 1;
  const int most = static_cast<int>(v.span());
  v.below = random.pick(0, most), v.above = random.pick(0, most);
  extent = random.in(1, 11);
  v.mode = {random_padding(random), random_padding(random)};
  const auto narrow = [&](int& padding, Padding mode) {
    if (mode == Padding::periodic) padding = std::min(padding, static_cast<int>(extent));
    if (mode == Padding::reflect) padding = std::min(padding, static_cast<int>(extent) - 1);
  };
  narrow(v.below, v.mode.below), narrow(v.above, v.mode.above);
  if (v.mode.above == Padding::zeros && random.one_in(3)) v.rounding = Rounding::up;
  while (v.output(extent) < 1) ++extent;
  return v;
}

Alone random_layer(Random& random) {
  Extents<5> in{{random.in(1, 3), random.in(1, 4), 1, 1, 1}};
  Stencil s;
  for (int i = 0; i < 3; ++i) s[i] = random_window(random, in[2 + i]);
  InputActivation fused;
  if (random.one_in(2)) fused = {kernel::Activation::leaky_relu, 0.125};
  if (random.one_in(4)) fused = {kernel::Activation::relu, 0};
  if (random.one_in(3)) fused = {static_cast<kernel::Activation>(random.pick(3, 5)), 0.5}; // elu, sigmoid, tanh
  LayerSpec spec;
  switch (random.pick(0, 5)) {
  case 4:
  case 5: {
    Index<3> more{};
    for (int i = 0; i < 3; ++i) {
      s[i].mode = Padding::zeros, s[i].rounding = Rounding::down;
      more[i] = random.pick(0, std::max(s[i].stride, s[i].dilation) - 1);
      while (s[i].transposed_output(in[2 + i], more[i]) < 1) --(s[i].below > s[i].above ? s[i].below : s[i].above);
    }
    spec = conv_transpose(random.pick(1, 4), s, more);
    if (random.one_in(2)) spec = spec.with_bias();
    break;
  }
  case 0: spec = max_pool(s); break;
  case 1: spec = average_pool(s, random.one_in(2) ? PaddingCounts::yes : PaddingCounts::no); break;
  default:
    spec = conv(random.pick(1, 4), s);
    if (random.one_in(2)) spec = spec.with_bias();
    if (random.one_in(3)) { // channels that divide into groups; depthwise among them
      const int groups = random.pick(2, 4);
      in[1] = groups * random.in(1, 2);
      spec.channels = groups * random.pick(1, 2);
      spec = spec.grouped(groups);
    }
  }
  Alone a = alone(random, spec, in, fused);
  if (spec.kind == LayerKind::pool && random.one_in(2)) // few different values, so that maxima tie
    for (double& v : a.x) v = std::round(2 * v);
  return a;
}

/// Up to four axes, each of which splits a dim or replicates; several may split one dim.
Layout random_layout(Random& random, int axes) {
  constexpr Dim dims[] = {Dim::n, Dim::d, Dim::d, Dim::h, Dim::w};
  Layout l;
  l.axes = axes;
  for (int a = 0; a < axes; ++a)
    l[a] = random.one_in(6) ? Placement(Placement::Kind::rep) : Placement(dims[random.pick(0, 4)]);
  return l;
}

template <class T, class Backend> void sweep(const Communicator& c, int cases, double tolerance) {
  Random random(seed + std::uint64_t(c.size()));
  for (int k = 0; k < cases; ++k) {
    const Alone a = random_layer(random);
    const int axes = random.pick(1, 4);
    const auto ways = factorisations(c.size(), axes);
    const AnyGrid grid(c, ways[std::size_t(random.in(0, long(ways.size()) - 1))]);
    const Layout layout = random_layout(random, axes);
    Map<5> map(layout, grid.shape(), a.in);
    if (random.one_in(2)) map = random_map<5>(random, layout, grid.shape(), a.in);
    const Lie lie{map, random.pick(0, 1), random.one_in(5) ? InputGradient::not_wanted : InputGradient::wanted};
    check_equal(text("seed ", seed, " ranks ", c.size(), " case ", k, ": ", a.str(), " on ", grid.shape(), " as ",
                     layout.str()),
                on_grid<T, Backend>(grid, a, lie), by_definition(a), tolerance);
  }
}

} // namespace

TEST_CASE("layers equal their definition: plain loops, double") {
  MESSAGE("seed ", seed);
  on_ranks([](const Communicator& c) { sweep<double, reference>(c, 80, 1e-10); });
}

TEST_CASE("layers equal their definition: cpu backend, float") {
  MESSAGE("seed ", seed);
  on_ranks([](const Communicator& c) { sweep<float, cpu>(c, 50, 1e-5); });
}

TEST_CASE("layers equal their definition: cpu backend, double") {
  MESSAGE("seed ", seed);
  on_ranks([](const Communicator& c) { sweep<double, cpu>(c, 20, 1e-10); });
}

TEST_CASE("layers equal their definition: emulated device, double") {
  MESSAGE("seed ", seed);
  on_ranks({1, 2, 3, 4}, [](const Communicator& c) { sweep<double, emulated>(c, 60, 1e-10); });
}
