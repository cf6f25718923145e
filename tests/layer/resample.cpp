// Upsampling and global pooling on grids against their definitions on whole tensors, forward and backward.
#include "alone.hpp"

#include <algorithm>
#include <numeric>
#include <tessera/backend/cpu.hpp>
#include <tessera/layer/global_pool.hpp>
#include <tessera/layer/upsample.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr std::uint64_t seed = 20240307;
constexpr Layout layouts[] = {over_ndhw,           place(d, d, h, w),   place(w, h, d, n),
                              place(n, rep, d, d), place(rep, w, w, h), place(n, n, n, n)};

/// How much of cell i is in output q: what lies within one cell of the point that q stands for, inside the volume.
double share(const LayerSpec& s, long scale, long cells, long q, long i) {
  if (s.interpolation == kernel::Interpolation::nearest) return q / scale == i ? 1 : 0;
  double at = (double(q) + 0.5) / double(scale) - 0.5;
  if (s.align_corners == AlignCorners::yes)
    at = cells * scale > 1 ? double(q) * double(cells - 1) / double(cells * scale - 1) : 0;
  at = std::clamp(at, 0.0, double(cells - 1));
  return std::max(0.0, 1 - std::abs(at - double(i)));
}
/// One dim after the other: `there` makes it larger, else the adjoint makes it smaller.
enum class Way { there, back };
std::vector<double> resampled(const LayerSpec& s, Extents<5> e, std::vector<double> values, Way way) {
  const Index<3> scale = s.scales();
  for (int k = 2; k < 5; ++k) {
    Extents<5> to = e;
    to[k] = way == Way::there ? e[k] * scale[k - 2] : e[k] / scale[k - 2];
    const long cells = std::min(e[k], to[k]);
    std::vector<double> next(std::size_t(product(to)));
    const auto linear = [](const Index<5>& i, const Extents<5>& of) {
      long o = 0;
      for (int j = 0; j < 5; ++j) o = o * of[j] + i[j];
      return std::size_t(o);
    };
    for_each_index(whole(to), [&](const Index<5>& i) {
      Index<5> from = i;
      for (from[k] = 0; from[k] < e[k]; ++from[k])
        next[linear(i, to)] +=
            values[linear(from, e)] * (way == Way::there ? share(s, scale[k - 2], cells, i[k], from[k])
                                                         : share(s, scale[k - 2], cells, from[k], i[k]));
    });
    e = to, values = std::move(next);
  }
  return values;
}

Map<5> some_map(Random& random, const AnyGrid& grid, const Extents<5>& e) {
  const Layout& l = layouts[random.pick(0, 5)];
  return random.one_in(2) ? Map<5>(l, grid.shape(), e) : random_map<5>(random, l, grid.shape(), e);
}
AnyGrid some_grid(Random& random, const Communicator& c) {
  const auto ways = factorisations(c.size(), 4);
  return AnyGrid(c, ways[std::size_t(random.in(0, long(ways.size()) - 1))]);
}

template <class T, class Backend> void sweep_upsampling(const Communicator& c, int cases, double tolerance) {
  Random random(seed + std::uint64_t(c.size()));
  for (int k = 0; k < cases; ++k) {
    const Extents<5> in{{random.in(1, 3), random.in(1, 5), random.in(1, 6), random.in(1, 6), random.in(1, 6)}};
    LayerSpec spec = upsample(random.pick(1, 4), random.pick(1, 3), random.pick(1, 3));
    if (!random.one_in(3)) spec = spec.trilinear(random.one_in(2) ? AlignCorners::yes : AlignCorners::no);
    Extents<5> e = in;
    for (int i = 0; i < 3; ++i) e[2 + i] *= spec.scales()[i];
    const auto x = random_numbers(random, product(in)), dy = random_numbers(random, product(e));
    const AnyGrid grid = some_grid(random, c);
    const Map<5> map = some_map(random, grid, in), out = upsampled_map(map, spec.scales());
    UpsampleLayer<T, Backend> layer(spec, grid, map, out);
    Pass<T> pass;
    pass.poke = [&] { c.progress(); };
    const Computed<T> got = through<T>(layer, pass, grid, map, out, x, dy, random.pick(0, 1));
    const Computed<double> want{resampled(spec, in, x, Way::there), resampled(spec, e, dy, Way::back), {}, {}};
    check_equal(text("seed ", seed, " ranks ", c.size(), " case ", k, ": ", in, " times ", spec.scales(), ", kind ",
                     static_cast<int>(spec.interpolation), ", aligned ", static_cast<int>(spec.align_corners), " on ",
                     grid.shape(), " as ", map.layout().str()),
                got, want, tolerance);
    CHECK(layer.need() == upsampling_need(spec, map, out, grid.rank()));
    if (spec.interpolation == kernel::Interpolation::nearest) CHECK(layer.traffic().forward.messages == 0);
  }
}

/// Where the ranks that hold pieces of a sample all hold the result.
Map<5> pooled_map(const Map<5>& in) {
  Layout l = in.layout();
  for (int a = 0; a < l.axes; ++a)
    if (!l[a].splits(n)) l[a] = Placement(Placement::Kind::rep);
  return Map<5>(l, in.grid(), {{in.extents()[0], in.extents()[1], 1, 1, 1}},
                {in.partition(0), in.partition(1), Partition(1), Partition(1), Partition(1)});
}

template <class T, class Backend> void sweep_global(const Communicator& c, int cases, double tolerance) {
  Random random(seed + 100 + std::uint64_t(c.size()));
  for (int k = 0; k < cases; ++k) {
    const Extents<5> in{{random.in(1, 3), random.in(1, 5), random.in(1, 6), random.in(1, 6), random.in(1, 6)}};
    const LayerSpec spec = random.one_in(2) ? global_max_pool() : global_average_pool();
    auto x = random_numbers(random, product(in));
    if (random.one_in(2)) // few different values, so that maxima tie; all of them below 0
      for (double& v : x) v = double(random.in(-3, -1));
    const auto dy = random_numbers(random, in[0] * in[1]);
    Computed<double> want;
    const auto cells = std::size_t(in[2] * in[3] * in[4]);
    want.dx.assign(x.size(), 0.0);
    for (std::size_t s = 0; s < dy.size(); ++s) {
      const auto first = x.begin() + long(s * cells), last = first + long(cells);
      if (spec.pool == kernel::Pool::max) {
        const auto most = std::max_element(first, last); // the first of equal ones
        want.y.push_back(*most);
        want.dx[std::size_t(most - x.begin())] = dy[s];
      } else {
        want.y.push_back(std::accumulate(first, last, 0.0) / double(cells));
        for (std::size_t i = 0; i < cells; ++i) want.dx[s * cells + i] = dy[s] / double(cells);
      }
    }
    const AnyGrid grid = some_grid(random, c);
    const Map<5> map = some_map(random, grid, in);
    GlobalPoolLayer<T, Backend> layer(spec, grid, map);
    Pass<T> pass;
    pass.poke = [&] { c.progress(); };
    check_equal(text("seed ", seed, " ranks ", c.size(), " case ", k, ": ", spec.name(), " of ", in, " on ",
                     grid.shape(), " as ", map.layout().str()),
                through<T>(layer, pass, grid, map, pooled_map(map), x, dy, random.pick(0, 1)), want, tolerance);
  }
}

} // namespace

TEST_CASE("upsample equals its definition: plain loops and cpu backend") {
  MESSAGE("seed ", seed);
  on_ranks({1, 2, 3, 4, 6}, [](const Communicator& c) {
    sweep_upsampling<double, reference>(c, 40, 1e-12);
    sweep_upsampling<double, cpu>(c, 20, 1e-12);
    sweep_upsampling<float, cpu>(c, 40, 1e-5);
  });
}

TEST_CASE("upsample: trilinear moves one plane to each side, nearest moves nothing") {
  on_ranks({1, 2, 3, 4}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const Map<5> in(place(d), grid.shape(), {{1, 3, 12, 5, 5}}), out = upsampled_map(in, {{2, 2, 2}});
    CHECK(out.extents() == Extents<5>{{1, 3, 24, 10, 10}});
    for (int r = 0; r < c.size(); ++r)
      CHECK((out.box(r).lo[2] == 2 * in.box(r).lo[2] && out.box(r).hi[2] == 2 * in.box(r).hi[2]));
    const std::uint64_t sides = (c.rank() > 0 ? 1U : 0U) + (c.rank() + 1 < c.size() ? 1U : 0U);
    UpsampleLayer<double, reference> smooth(upsample(2).trilinear(), grid, in, out), plain(upsample(2), grid, in, out);
    CHECK(smooth.traffic().forward.messages == sides);
    CHECK(smooth.traffic().forward.bytes == sides * 75 * sizeof(double));
    CHECK(smooth.traffic().backward.messages == sides);
    CHECK(plain.traffic().forward.messages + plain.traffic().backward.messages == 0);
  });
}

TEST_CASE("global pools equal their definition: plain loops and cpu backend") {
  MESSAGE("seed ", seed);
  on_ranks({1, 2, 3, 4, 6}, [](const Communicator& c) {
    sweep_global<double, reference>(c, 40, 1e-12);
    sweep_global<double, cpu>(c, 20, 1e-12);
    sweep_global<float, cpu>(c, 40, 1e-6);
  });
}

TEST_CASE("global pools: by hand, and what they send") {
  // Depth 5 of 1, 7, 7, 3, 2 over up to 6 ranks, one of which owns nothing: average 4, maximum 7 in cell 1.
  const std::vector<double> x{1, 7, 7, 3, 2}, dy{10};
  on_ranks({1, 2, 3, 4, 6}, [&](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const Map<5> map(place(d), grid.shape(), {{1, 1, 5, 1, 1}});
    Pass<double> pass;
    pass.poke = [] {};
    GlobalPoolLayer<double, reference> average(global_average_pool(), grid, map), most(global_max_pool(), grid, map);
    const auto a = through<double>(average, pass, grid, map, pooled_map(map), x, dy);
    CHECK(a.y == std::vector<double>{4});
    CHECK(a.dx == std::vector<double>{2, 2, 2, 2, 2});
    const auto m = through<double>(most, pass, grid, map, pooled_map(map), x, dy);
    CHECK(m.y == std::vector<double>{7});
    CHECK(m.dx == std::vector<double>{0, 10, 0, 0, 0});
    // One sum of one number; a maximum and the number of its cell; nothing on the way back.
    Tensor<double, 5> tx(grid, map), ty(grid, pooled_map(map)), tdy(grid, pooled_map(map)), tdx(grid, map);
    const auto start = c.counters();
    average.forward(pass, tx, ty);
    CHECK((c.counters() - start).collectives == (c.size() > 1 ? 1 : 0));
    most.forward(pass, tx, ty);
    CHECK((c.counters() - start).collectives == (c.size() > 1 ? 3 : 0));
    average.backward(pass, tx, ty, tdy, &tdx), most.backward(pass, tx, ty, tdy, &tdx);
    CHECK((c.counters() - start).collectives == (c.size() > 1 ? 3 : 0));
    CHECK((c.counters() - start).messages == 0);
  });
}

TEST_CASE("upsampled_map refuses scales below 1 in the same words on all ranks") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const Map<5> in(place(d), AnyGrid(c, {c.size()}).shape(), {{1, 1, 4, 4, 4}});
    CHECK(all_throw<usage_error>(c, [&] {
            upsampled_map(in, {{2, 0, 2}});
          }).find("must be at least 1") != std::string::npos);
  });
}
