// Halo: fields filled with their global coordinates make every value known; adjoints; traffic; published cases; errors.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <atomic>
#include <cmath>
#include <set>
#include <tessera/move/halo.hpp>
#include <tessera/tensor/dist_tensor.hpp>

using namespace tessera;
using namespace tessera::names;
using test::on_ranks;
using test::Random;

namespace {

/// True if the position is one of the tensor's or of padding that is kept in memory.
bool is_stored(const Window& x, long at, long extent) {
  return test::cell_at(std::clamp(at, -1L, extent), extent, x.mode) >= 0;
}

/// The positions that the taps of outputs [lo, hi) touch along one dim; where zeros are padded, those in the tensor.
std::set<long> touched(const Window& x, Interval out, long extent) {
  std::set<long> all;
  for (long q = out.lo; q < out.hi; ++q)
    for (int j = 0; j < x.k; ++j) {
      const long at = q * x.stride - x.below + long(j) * x.dilation;
      if (is_stored(x, at, extent)) all.insert(at);
    }
  return all;
}

/// The reach of the windows, clipped where zeros are padded.
std::pair<long, long> reach(const Window& x, Interval out, long extent) {
  long lo = 1000, hi = -1000;
  for (long q = out.lo; q < out.hi; ++q)
    for (int j = 0; j < x.k; ++j) {
      const long at = q * x.stride - x.below + long(j) * x.dilation;
      lo = std::min(lo, at), hi = std::max(hi, at + 1);
    }
  if (x.mode.below == Padding::zeros) lo = std::max(lo, 0L);
  if (x.mode.above == Padding::zeros) hi = std::min(hi, extent);
  return {lo, hi};
}

/// The cell whose value stands at i.
Index<5> inside(Index<5> i, const Extents<5>& e, const Stencil& s) {
  for (int k = 2; k < 5; ++k) i[k] = test::cell_at(i[k], e[k], s[k - 2].mode);
  return i;
}

/// Calls f(position in the reader's indices) for every element that the rank needs for its outputs.
template <class F> void for_each_needed(const Box<5>& out, const Stencil& s, const Extents<5>& in, const F& f) {
  if (out.empty()) return;
  Box<5> need = out;
  need.lo[1] = 0, need.hi[1] = in[1];
  for (int i = 0; i < 3; ++i)
    std::tie(need.lo[2 + i], need.hi[2 + i]) = reach(s[i], {out.lo[2 + i], out.hi[2 + i]}, in[2 + i]);
  for_each_index(need, f);
}

/// What each exchange must send: for every other rank, the elements that it needs, does not hold and has no other
/// source for. Replicas serve their own coordinate. One message per neighbour.
Traffic must_send(const Map<5>& in, const Map<5>& out, const Stencil& s, int me) {
  const GridShape& shape = in.grid();
  const auto mine = shape.coords(me);
  const Box<5> own = in.box(me);
  Traffic t;
  for (int r = 0; r < shape.ranks(); ++r) {
    const auto theirs = shape.coords(r);
    bool serves = r != me;
    for (int a = 0; a < shape.axes; ++a)
      if (!in.layout()[a].splits())
        serves = serves && theirs[static_cast<std::size_t>(a)] == mine[static_cast<std::size_t>(a)];
    if (!serves) continue;
    std::uint64_t elements = 0;
    for_each_needed(out.box(r), s, in.extents(),
                    [&](const Index<5>& i) { elements += own.contains(inside(i, in.extents(), s)); });
    t.messages += elements > 0;
    t.bytes += elements * sizeof(double);
  }
  return t;
}

struct Setting {
  Map<5> in, out;
  Stencil stencil;
  std::string str() const {
    std::string s = text(in.layout(), " on ", in.grid(), ", extents ", in.extents());
    for (int i = 0; i < 3; ++i) {
      const Window& x = stencil[i];
      s += text("; k ", x.k, " s ", x.stride, " d ", x.dilation, " p ", x.below, "/", x.above, " modes ",
                static_cast<int>(x.mode.below), "/", static_cast<int>(x.mode.above), " blocks");
      for (const long size : in.partition(2 + i).sizes()) s += text(" ", size);
    }
    return s;
  }
};

/// Any kernel, stride, dilation, padding per side and mode; any layout without a sum; any boundaries, in the output
/// too.
Setting random_setting(Random& random, const GridShape& shape) {
  Setting t;
  Extents<5> in{{random.in(1, 2), random.in(1, 2), 0, 0, 0}};
  for (int i = 0; i < 3; ++i) {
    Window& x = t.stencil[i];
    do {
      in[2 + i] = random.in(1, random.one_in(2) ? 9 : 4);
      x = {};
      if (!random.one_in(3))
        x = {.k = random.pick(1, 5),
             .stride = random.pick(1, 3),
             .dilation = random.pick(1, 3),
             .below = random.pick(0, 4),
             .above = random.pick(0, 4)};
      x.mode = {test::random_padding(random), test::random_padding(random)};
    } while (x.output(in[2 + i]) == 0 || !x.can_fill(Padding::periodic, in[2 + i]) ||
             !x.can_fill(Padding::reflect, in[2 + i]));
  }
  Layout layout;
  layout.axes = shape.axes;
  for (int a = 0; a < shape.axes; ++a) {
    const std::array<Placement, 8> choice{Placement(d), d, h, h, w, n, c, rep};
    layout[a] = choice[static_cast<std::size_t>(random.in(0, 7))];
  }
  if (random.one_in(4)) { // boundaries at multiples of the stride
    Extents<5> quantum{{1, 1, t.stencil.d.stride, t.stencil.h.stride, t.stencil.w.stride}};
    t.in = Map<5>(layout, shape, in, quantum);
  } else
    t.in = test::random_map(random, layout, shape, in);
  t.out = output_map(t.in, t.stencil, random.in(1, 3));
  if (random.one_in(4)) t.out = test::random_map(random, layout, shape, t.out.extents());
  return t;
}

struct Found {
  long settings = 0, hops = 0, empty_ranks = 0;
  std::vector<double> products; // <Hx, y>, <x, H*y>, |Hx|^2 + |x|^2, |y|^2 + |H*y|^2
  std::vector<std::string> names;
};

double dot(const View<const double, 5>& a, const View<const double, 5>& b) {
  double sum = 0;
  for_each_index(whole(a.extents), [&](const Index<5>& i) { sum += a[i] * b[i]; });
  return sum;
}

void check_setting(const AnyGrid& grid, const Setting& t, std::uint64_t seed, Found& found) {
  const Extents<5>& e = t.in.extents();
  const Communicator& world = grid.world();
  Halo<double, 5> halo(grid, t.in, t.stencil, t.out);
  Tensor<double, 5> x(grid, t.in);
  fill(x, [&](const Index<5>& i) { return test::linear(i, e); });
  const comm::Counters before = world.counters();
  halo.run(x);
  const comm::Counters moved = world.counters() - before;

  bool values = true, own = true;
  const Box<5> out = t.out.box(grid.rank());
  if (!out.empty()) {
    std::array<std::set<long>, 3> reads;
    for (int i = 0; i < 3; ++i)
      reads[static_cast<std::size_t>(i)] = touched(t.stencil[i], {out.lo[2 + i], out.hi[2 + i]}, e[2 + i]);
    const View<const double, 5> block = x.view(x.store());
    for (long sample = out.lo[0]; sample < out.hi[0]; ++sample)
      for (long channel = 0; channel < e[1]; ++channel)
        for (const long z : reads[0])
          for (const long y : reads[1])
            for (const long v : reads[2]) {
              const Index<5> i{{sample, channel, z, y, v}};
              values = values && x.store().contains(i) &&
                       block[i - x.store().lo] == test::linear(inside(i, e, t.stencil), e);
            }
  }
  for_each_index(x.box(), [&](const Index<5>& i) { own = own && x.view()[i - x.box().lo] == test::linear(i, e); });
  const Traffic sent = must_send(t.in, t.out, t.stencil, grid.rank());
  const bool traffic =
      halo.traffic() == sent && moved == comm::Counters{.messages = sent.messages, .bytes = sent.bytes};

  // The adjoint on raw local memory: numbers that differ on every rank, replicas too.
  Random local(seed * 64 + static_cast<std::uint64_t>(grid.rank()));
  Tensor<double, 5> hx(grid, t.in), y(grid, t.in);
  fill(hx, [&](const Index<5>&) { return local.real(); });
  const Tensor<double, 5> source = hx;
  halo.run(hx);
  halo.reserve(y);
  for_each_index(whole(y.store().extents()),
                 [&, all = y.view(y.store())](const Index<5>& i) { all[i] = local.real(); });
  std::array<double, 4> products{};
  products[0] = dot(hx.view(hx.store()), y.view(y.store()));
  products[2] = dot(hx.view(hx.store()), hx.view(hx.store()));
  products[3] = dot(y.view(y.store()), y.view(y.store()));
  const comm::Counters middle = world.counters();
  halo.run_adjoint(y);
  const comm::Counters back = world.counters() - middle;
  products[1] = dot(source.view(), y.view());
  products[2] += dot(source.view(), source.view());
  products[3] += dot(y.view(), y.view());
  found.products.insert(found.products.end(), products.begin(), products.end());
  found.names.push_back(t.str());
  const bool adjoint_traffic = halo.adjoint_traffic() == Traffic{back.messages, back.bytes};

  CHECK_MESSAGE((values && own && traffic && adjoint_traffic), t.str(), ", rank ", grid.rank(), ": values ", values,
                ", own ", own, ", traffic ", traffic, " ", halo.traffic().messages, " ", sent.messages,
                ", adjoint traffic ", adjoint_traffic);
  ++found.settings;
  for (int k = 2; k < 5; ++k) {
    const Partition& p = t.in.partition(k);
    const Window& window_k = t.stencil[k - 2];
    if (p.parts() > 1 && std::max(window_k.below, window_k.above) > p.largest()) ++found.hops;
    if (p.any_empty()) ++found.empty_ranks;
  }
}

void check_products(const Communicator& world, Found& found) {
  world.iall_reduce(std::span(found.products)).wait();
  for (std::size_t k = 0; k < found.names.size(); ++k) {
    const double* p = &found.products[4 * k];
    if (!(std::abs(p[0] - p[1]) <= 1e-12 * std::sqrt(p[2] * p[3])))
      FAIL_CHECK("<Hx,y> = ", p[0], " but <x,H*y> = ", p[1], ": ", found.names[k]);
  }
}

} // namespace

TEST_CASE("random stencils, layouts, boundaries on every grid: values, adjoint, messages and bytes") {
  constexpr std::uint64_t seed = 91;
  MESSAGE("seed ", seed);
  std::atomic<long> settings = 0, hops = 0, empty = 0;
  on_ranks([&](const Communicator& world) {
    Random random(seed);
    Found found;
    for (int axes = 1; axes <= 4; ++axes)
      for (const auto& sizes : test::factorisations(world.size(), axes)) {
        const AnyGrid grid(world, sizes);
        const int rounds = world.size() == 1 ? 100 : axes == 1 ? 400 : 120;
        for (int round = 0; round < rounds; ++round)
          check_setting(grid, random_setting(random, grid.shape()), static_cast<std::uint64_t>(round), found);
      }
    check_products(world, found);
    if (world.rank() == 0) settings += found.settings, hops += found.hops, empty += found.empty_ranks;
  });
  MESSAGE(settings.load(), " settings; dims thinner than their padding: ", hops.load(),
          ", with empty blocks: ", empty.load());
}

TEST_CASE("halos of 2 below and 1 above: adjoint to 1e-12 in all padding modes on every grid, replicas included") {
  on_ranks([](const Communicator& world) {
    Found found;
    std::uint64_t seed = 0;
    for (int axes = 1; axes <= 3; ++axes)
      for (const auto& sizes : test::factorisations(world.size(), axes)) {
        const AnyGrid grid(world, sizes);
        for (const Layout layout : {place(d, h, w), place(n, d, h), place(rep, d, w), place(d, d, rep)})
          for (const PaddingModes& mode :
               {PaddingModes(Padding::zeros), PaddingModes(Padding::periodic), PaddingModes(Padding::reflect),
                PaddingModes(Padding::replicate), PaddingModes(Padding::reflect, Padding::zeros),
                PaddingModes(Padding::periodic, Padding::replicate),
                PaddingModes(Padding::replicate, Padding::reflect)}) {
            Layout used = layout;
            used.axes = axes;
            for (int a = axes; a < 3; ++a) used[a] = Placement();
            const Map<5> in(used, grid.shape(), {{2, 3, 9, 8, 7}});
            Stencil s = window(4).pad(2, 1);
            s.d.mode = s.h.mode = s.w.mode = mode;
            check_setting(grid, {in, output_map(in, s, 3), s}, ++seed, found);
          }
      }
    check_products(world, found);
  });
}

TEST_CASE("periodic shift by one in either direction, on 1, 2, 3, 4 and 8 ranks") {
  on_ranks({1, 2, 3, 4, 8}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 5, place(d)> x(grid, {{1, 1, 8, 1, 1}});
    fill(x, [](const Index<5>& i) { return i[2]; });
    const Stencil s = window(3, 1, 1).pad(d, 1, 1).periodic();
    Halo<double, 5> halo(x, s);
    halo.run(x);
    for (long q = x.box().lo[2]; q < x.box().hi[2]; ++q) {
      double below = 0, above = 0; // kernels (1,0,0) and (0,0,1)
      const std::array<double, 3> first{1, 0, 0}, last{0, 0, 1};
      for (long j = 0; j < 3; ++j) {
        const double value = x.view(x.store())(0, 0, q - 1 + j - x.store().lo[2], 0, 0);
        below += first[static_cast<std::size_t>(j)] * value, above += last[static_cast<std::size_t>(j)] * value;
      }
      CHECK(below == static_cast<double>((q + 7) % 8));
      CHECK(above == static_cast<double>((q + 1) % 8));
    }
    // Both halos of two ranks come from one neighbour and travel together; one rank sends nothing.
    const std::uint64_t neighbours = world.size() == 1 ? 0 : world.size() == 2 ? 1 : 2;
    CHECK(halo.traffic() == Traffic{neighbours, world.size() == 1 ? 0u : 16u});
  });
}

TEST_CASE("reflecting and replicating, by hand: values, adjoint and bytes on 1, 2, 3, 4 and 8 ranks") {
  on_ranks({1, 2, 3, 4, 8}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    const long ranks = world.size();
    for (const Padding mode : {Padding::reflect, Padding::replicate}) {
      DistTensor<double, 5, place(d)> x(grid, {{1, 1, 8, 1, 1}}), g(grid, {{1, 1, 8, 1, 1}});
      fill(x, [](const Index<5>& i) { return i[2]; });
      Halo<double, 5> halo(x, window(7, 1, 1).pad(d, 3, 3).padded_with(mode));
      halo.run(x);
      // Positions -3 to 10.
      const std::vector<long> mirrored{3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 6, 5, 4},
          repeated{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7};
      const auto& want = mode == Padding::reflect ? mirrored : repeated;
      CHECK(halo.need().lo[2] == x.box().lo[2] - 3);
      CHECK(halo.need().hi[2] == x.box().hi[2] + 3);
      for (long at = halo.need().lo[2]; at < halo.need().hi[2]; ++at)
        CHECK(x.view(halo.need())(0, 0, at - halo.need().lo[2], 0, 0) == double(want[std::size_t(at + 3)]));
      // Ones in every block: what comes back counts how often a cell is read.
      halo.reserve(g);
      Blocks<host>::fill(g.view(halo.need()), 1.0);
      halo.run_adjoint(g);
      for (long at = g.box().lo[2]; at < g.box().hi[2]; ++at) {
        double count = 0;
        for (int r = 0; r < world.size(); ++r) {
          const Interval own = x.map().partition(2)[r];
          for (long p = own.lo - 3; p < own.hi + 3; ++p) count += want[std::size_t(p + 3)] == at;
        }
        CHECK(g.view()(0, 0, at - g.box().lo[2], 0, 0) == count);
      }
      // The padding of the first and the last block is their own while they hold four cells; then it travels too.
      if (ranks == 2) CHECK(halo.traffic() == Traffic{1, 3 * sizeof(double)});
      if (ranks == 4 && mode == Padding::replicate && world.rank() == 0)
        CHECK(halo.traffic() == Traffic{2, (3 + 1) * sizeof(double)}); // 0,1 and 0 again to rank 1; 1 to rank 2
      if (ranks == 4 && mode == Padding::reflect && world.rank() == 1)
        CHECK(halo.traffic() == Traffic{3, (4 + 2 + 1) * sizeof(double)}); // 2,3 twice to 0; 2,3 to 2; 3 to 3
    }
  });
}

TEST_CASE("each side of a dim has its own padding; corners are products of both dims") {
  on_ranks([](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 2)) {
      const Grid<2> grid(world, {sizes[0], sizes[1]});
      const Extents<3> e{{4, 1, 3}};
      DistTensor<double, 3, place(d, w)> x(grid, e);
      fill(x, [](const Index<3>& i) { return 10 * i[0] + i[2]; });
      const auto need = [&](int r) {
        Box<3> b = x.map().box(r);
        b.lo[0] -= 2, b.hi[0] += 2, b.lo[2] -= 1, b.hi[2] += 2;
        return b;
      };
      Borders<3> borders;
      borders[0] = {Padding::reflect, Padding::replicate}, borders[2] = {Padding::periodic, Padding::zeros};
      Halo<double, 3> halo(grid, x.map(), need, borders);
      halo.run(x);
      const std::vector<long> depth{2, 1, 0, 1, 2, 3, 3, 3}, width{2, 0, 1, 2, -1, -1};
      long wrong = 0;
      if (!x.box().empty())
        for_each_index(need(world.rank()), [&](const Index<3>& i) {
          const long row = depth[std::size_t(i[0] + 2)], column = width[std::size_t(i[2] + 1)];
          wrong += x.view(x.store())[i - x.store().lo] != (column < 0 ? 0 : double(10 * row + column));
        });
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("a halo wider than the blocks comes from several ranks") {
  on_ranks({4}, [](const Communicator& world) {
    const Grid<1> grid(world, {4});
    DistTensor<double, 5, place(d)> x(grid, {{1, 1, 12, 2, 2}});
    fill(x, [&](const Index<5>& i) { return test::linear(i, x.extents()); });
    Halo<double, 5> halo(x, window(3, 1, 1).dilated(4, 1, 1).pad(d, 4, 4));
    halo.run(x);
    const long r = world.rank();
    CHECK(halo.need() == Box<5>{{{0, 0, std::max(0L, 3 * r - 4), 0, 0}}, {{1, 1, std::min(12L, 3 * r + 7), 2, 2}}});
    for_each_index(halo.need(), [&](const Index<5>& i) {
      CHECK(x.view(x.store())[i - x.store().lo] == test::linear(i, x.extents()));
    });
    CHECK(halo.traffic().messages == (r == 0 || r == 3 ? 2u : 3u)); // the other ranks within two hops
  });
}

TEST_CASE("dims that are not split send nothing; a face neighbour gets one message, a corner one of its own") {
  on_ranks([](const Communicator& world) {
    const Grid<1> samples(world, {fit});
    DistTensor<double, 5, place(n)> x(samples, {{8, 2, 5, 5, 5}});
    for (const Stencil& s : {window(3).same(), window(5).same().periodic(), window(3).dilated(2).pad(2, 1)}) {
      Halo<double, 5> halo(x, s);
      const comm::Counters before = world.counters();
      halo.run(x), halo.run_adjoint(x);
      CHECK(world.counters() == before);
      CHECK(halo.traffic() == Traffic{});
    }
    const Grid<1> planes(world, {fit});
    DistTensor<double, 5, place(d)> y(planes, {{1, 1, 24, 5, 5}});
    CHECK(Halo<double, 5>(y, window(1, 3, 3).same().periodic()).traffic() == Traffic{});
    const Tensor<double, 5> even(planes, Map<5>(place(d), planes.shape(), {{1, 1, 24, 4, 4}}, {{1, 1, 2, 1, 1}}));
    CHECK(Halo<double, 5>(even, window(2).strided(2)).traffic() == Traffic{}); // blocks at multiples of the stride
    // An even kernel without padding reads upwards only: data travels downwards.
    const Halo<double, 5> one_way(y, window(2, 1, 1));
    CHECK(one_way.traffic() == (world.rank() == 0 ? Traffic{} : Traffic{1, 25 * sizeof(double)}));
    CHECK(one_way.adjoint_traffic() ==
          (world.rank() == world.size() - 1 ? Traffic{} : Traffic{1, 25 * sizeof(double)}));
  });
  on_ranks({8}, [](const Communicator& world) {
    const Grid<3> grid(world, {2, 2, 2});
    DistTensor<double, 5, place(d, h, w)> x(grid, {{1, 1, 6, 6, 6}});
    CHECK(Halo<double, 5>(x, window(3).same()).traffic() == Traffic{7, (3 * 9 + 3 * 3 + 1) * sizeof(double)});
  });
}

TEST_CASE("a rank that holds nothing may still produce outputs: padding adds them to the last block") {
  on_ranks({2, 3}, [](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    std::vector<long> sizes(static_cast<std::size_t>(world.size()), 0);
    sizes[0] = 4;
    DistTensor<double, 5, place(d)> x(
        grid, {{1, 2, 4, 3, 3}},
        {Partition(1), Partition(2), Partition::from_sizes(sizes), Partition(3), Partition(3)});
    fill(x, [&](const Index<5>& i) { return test::linear(i, x.extents()); });
    const Stencil s = window(3, 1, 1).pad(d, 2, 2);
    Halo<double, 5> halo(x, s);
    halo.run(x);
    if (world.rank() + 1 == world.size()) {
      CHECK(output_map(x.map(), s, 2).box(world.rank()).extent(2) == 2);
      CHECK(halo.need() == Box<5>{{{0, 0, 2, 0, 0}}, {{1, 2, 4, 3, 3}}});
      CHECK(x.view().empty());
      for_each_index(halo.need(), [&](const Index<5>& i) {
        CHECK(x.view(halo.need())[i - halo.need().lo] == test::linear(i, x.extents()));
      });
    }
  });
}

TEST_CASE("needs of any kind: tensors of rank 3, each side its own width, one dim periodic") {
  on_ranks({1, 2, 3, 6}, [](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 2)) {
      const Grid<2> grid(world, {sizes[0], sizes[1]});
      DistTensor<float, 3, place(d, w)> x(grid, {{6, 2, 7}});
      fill(x, [&](const Index<3>& i) { return test::linear(i, x.extents()); });
      const auto need = [&](int r) {
        Box<3> b = x.map().box(r);
        b.lo[0] -= 2, b.hi[0] += 1, b.hi[2] += 3;
        return b;
      };
      Halo<float, 3> halo(grid, x.map(), need, {{true, false, false}});
      halo.run(x);
      long wrong = 0;
      for_each_index(need(world.rank()), [&](const Index<3>& i) {
        const Index<3> source{{(i[0] + 6) % 6, i[1], i[2]}};
        const double expected = i[2] < 7 ? test::linear(source, x.extents()) : 0; // beyond the border of w: left alone
        wrong += x.view(x.store())[i - x.store().lo] != static_cast<float>(expected);
      });
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("start, poke, finish: the exchange runs while the interior changes; it can be repeated and moved") {
  on_ranks([](const Communicator& world) {
    const Grid<1> grid(world, {fit});
    DistTensor<double, 5, place(d)> x(grid, {{1, 2, 17, 4, 4}}), u(grid, {{1, 2, 17, 4, 4}});
    std::vector<Halo<double, 5>> halos;
    halos.emplace_back(x, window(3).same());
    halos.emplace_back(u, window(5).same().periodic());
    for (int step = 0; step < 5; ++step) {
      const auto value = [&](const Index<5>& i) {
        return 1000 * step + test::linear(inside(i, x.extents(), window(5).periodic()), x.extents());
      };
      fill(x, value), fill(u, value);
      halos[0].start(x), halos[1].start(u); // two at once
      halos[0].poke(), halos[1].poke();
      halos[1].finish(), halos[0].finish();
      halos[0].finish(); // once more is no harm
      long wrong = 0;
      for_each_index(halos[0].need(),
                     [&](const Index<5>& i) { wrong += x.view(x.store())[i - x.store().lo] != value(i); });
      for_each_index(halos[1].need(),
                     [&](const Index<5>& i) { wrong += u.view(u.store())[i - u.store().lo] != value(i); });
      CHECK(wrong == 0);
    }
    Halo<double, 5> none;
    CHECK(none.empty());
    none.finish();
  });
}

TEST_CASE("the second exchange allocates no buffer, forward or adjoint") {
  on_ranks({1, 2, 4, 8}, [](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, {sizes[0], sizes[1], sizes[2]});
      DistTensor<float, 5, place(d, h, w)> x(grid, {{2, 3, 8, 9, 7}});
      Halo<float, 5> halo(x, window(5).same().periodic());
      halo.run(x), halo.run_adjoint(x);
      world.barrier(); // the counter belongs to the process, which may hold many ranks
      const auto before = allocation_counter().allocations.load();
      world.barrier();
      for (int step = 0; step < 3; ++step) halo.run(x), halo.run_adjoint(x);
      world.barrier();
      CHECK(allocation_counter().allocations == before);
      world.barrier();
    }
  });
}

TEST_CASE("misuse throws the same text on every rank, before any message") {
  on_ranks({1, 4}, [](const Communicator& world) {
    const Grid<2> grid(world, {world.size() == 4 ? 2 : 1, fit});
    const Extents<5> e{{2, 2, 8, 4, 8}};
    DistTensor<float, 5, place(d, sum)> pending(grid, e);
    DistTensor<float, 5, place(d, h)> x(grid, e);
    DistTensor<float, 5, place(d, w)> other(grid, e);
    CHECK(test::all_throw<usage_error>(world, [&] { Halo<float, 5> halo(pending, window(3).same()); })
              .starts_with(
                  "Halo: the tensor has layout place(d,sum), a pending sum; resolve it first by assigning it to a "
                  "tensor with a `rep` or split layout"));
    CHECK(test::all_throw<usage_error>(world, [&] { Halo<float, 5> halo(x, window(3).dilated(2)); })
              .find("dim h: the window spans 5 (kernel 3, dilation 2) but the input has size 4 with padding 0/0; use a "
                    "smaller "
                    "kernel or dilation, or more padding") != std::string::npos);
    CHECK(test::all_throw<usage_error>(world, [&] {
            Halo<float, 5> halo(x, window(3).pad(5).periodic());
          }).find("dim h: periodic padding 5/5 is wider than the input of size 4") != std::string::npos);
    CHECK(test::all_throw<usage_error>(world,
                                       [&] { Halo<float, 5> halo(x, window(3).pad(4).padded_with(Padding::reflect)); })
              .find("dim h: reflecting padding 4/4 is not narrower than the input of size 4; use at most size - 1") !=
          std::string::npos);
    Borders<5> mirrors;
    mirrors[3] = Padding::reflect;
    CHECK(
        test::all_throw<usage_error>(world, [&] {
          Halo<float, 5>(
              grid, x.map(),
              [](int) {
                return Box<5>{{{0, 0, 0, -4, 0}}, {{2, 2, 8, 4, 8}}};
              },
              mirrors);
        }).find("Halo: a rank needs [-4,4) of dim h, more than the mirror image of its 4 cells") != std::string::npos);
    Halo<float, 5> halo(x, window(3).same());
    CHECK(test::all_throw<usage_error>(world, [&] { halo.start(other); })
              .starts_with(text("Halo: planned for place(d,h) 2x2x8x4x8 on a grid ", grid.shape(),
                                " but called with place(d,w)")));
    CHECK(test::all_throw<usage_error>(world, [&] { halo.start_adjoint(other); }).find("make one Halo per map") !=
          std::string::npos);
    if (world.size() == 4) {
      const Grid<2> flat(world, {4, 1});
      CHECK(test::all_throw<usage_error>(world, [&] {
              Halo<float, 5>(flat, x.map(), [&](int r) { return x.map().box(r); });
            }).starts_with("Halo: the map was made for a grid 2x2 but the grid is 4x1"));
    }
  });
}
