// Convolutions, poolings and their adjoints at the level of expressions: published cases, every grid against one rank
// and against plain loops, traffic, kept plans, errors.
#include "whole.hpp"

#include <cmath>
#include <tessera/expr/conv.hpp>
#include <tessera/expr/pool.hpp>
#include <tessera/expr/reduce.hpp>
#include <tessera/kernel/reference.hpp>

using namespace tessera;
using namespace tessera::names;
using test::numbers, test::on_ranks, test::Whole;

namespace {

constexpr Layout spatial = place(d, h, w), whole_everywhere = place(rep, rep, rep), samples = place(n, d, rep);

/// A convolution of a whole tensor in plain loops, and its gradients for the output gradient dy.
struct Oracle {
  Extents<5> in, out, kernel;
  std::vector<double> x, f, bias, y, dy, dx, df, db;

  static std::vector<double> random(std::uint64_t seed, long count) {
    test::Random r(seed);
    std::vector<double> v;
    for (long i = 0; i < count; ++i) v.push_back(r.real());
    return v;
  }
  Oracle(const Stencil& s, const Extents<5>& e, long co) : in(e) {
    const Index<3> q = s.output({{e[2], e[3], e[4]}});
    out = {{e[0], co, q[0], q[1], q[2]}};
    kernel = {{co, e[1], s.d.k, s.h.k, s.w.k}};
    x = random(1, product(in)), f = random(2, product(kernel)), bias = random(3, co), dy = random(4, product(out));
    y.resize(dy.size()), dx.resize(x.size()), df.resize(f.size()), db.resize(bias.size());
    for_each_index(whole(out), [&](const Index<5>& o) {
      double sum = bias[std::size_t(o[1])];
      db[std::size_t(o[1])] += dy[at(o, out)];
      for_each_index(whole(Index<4>{{in[1], s.d.k, s.h.k, s.w.k}}), [&](const Index<4>& t) {
        Index<5> i{{o[0], t[0], 0, 0, 0}};
        bool inside = true;
        for (int k = 0; k < 3; ++k) {
          long p = o[2 + k] * s[k].stride - s[k].below + t[1 + k] * s[k].dilation;
          p = test::cell_at(p, in[2 + k], s[k].mode);
          inside = inside && p >= 0;
          i[2 + k] = p;
        }
        if (!inside) return;
        const std::size_t xi = at(i, in), fi = at({{o[1], t[0], t[1], t[2], t[3]}}, kernel);
        sum += f[fi] * x[xi];
        dx[xi] += f[fi] * dy[at(o, out)];
        df[fi] += x[xi] * dy[at(o, out)];
      });
      y[at(o, out)] = sum;
    });
  }
  static std::size_t at(const Index<5>& i, const Extents<5>& e) { return std::size_t(test::linear(i, e)) - 1; }
};

template <class T> std::vector<T> as(const std::vector<double>& v) {
  std::vector<T> all;
  for (const double x : v) all.push_back(static_cast<T>(x));
  return all;
}
/// The largest |a - b| / max(1, |b|).
template <class T, int N> double worst(const Tensor<T, N, host>& a, const std::vector<double>& b) {
  const auto all = gather(a);
  REQUIRE(all.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < b.size(); ++i)
    most = std::max(most, std::abs(double(all[i]) - b[i]) / std::max(1.0, std::abs(b[i])));
  return most;
}

/// Output and all gradients equal the plain loops, with x in these blocks (balanced if none are given).
template <class T, Layout L, Stencil S>
void check_blocks(const Grid<3>& grid, const Oracle& o, const std::vector<long>& depth = {}) {
  constexpr double limit = std::is_same_v<T, float> ? 1e-5 : 1e-12;
  auto parts = Map<5>(L, grid.shape(), o.in).partitions();
  if (!depth.empty()) parts[2] = Partition::from_sizes(depth);
  DistTensor<T, 5, L> x(grid, o.in, parts), y, dx;
  DistTensor<T, 5, whole_everywhere> f(grid, o.kernel), df;
  DistTensor<T, 1, whole_everywhere> bias(grid, {{o.kernel[0]}}), db;
  scatter(x, as<T>(o.x));
  scatter(f, as<T>(o.f));
  scatter(bias, as<T>(o.bias));
  y = conv<S>(x, f, bias);
  CHECK(worst(y, o.y) <= limit);
  DistTensor<T, 5, L> dy(grid, y.extents(), y.map().partitions());
  scatter(dy, as<T>(o.dy));
  dx = conv_backward_data<S>(dy, f, x);
  df = conv_backward_weights<S>(x, dy);
  db = conv_backward_bias(dy);
  static_assert(std::is_same_v<decltype(dx), decltype(x)>);
  CHECK(worst(dx, o.dx) <= limit);
  CHECK(worst(df, o.df) <= limit);
  CHECK(worst(db, o.db) <= limit);
  CHECK(gather(x) == as<T>(o.x));
}

/// The same on every grid.
template <class T, Layout L, Stencil S> void check_grids(const Extents<5>& e, long co) {
  const Oracle o(S, e, co);
  on_ranks([&](const Communicator& world) {
    for (const auto& s : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(s));
      check_blocks<T, L, S>(grid, o);
    }
  });
}

} // namespace

TEST_CASE("conv: outputs and all gradients equal plain loops on every grid") {
  check_grids<double, spatial, window(3).same()>({{2, 2, 6, 5, 4}}, 3);
  check_grids<double, samples, window(3).same()>({{2, 2, 6, 5, 4}}, 3);
  check_grids<double, spatial, window(3, 2, 1).pad(1, 2).strided(2, 1, 3).dilated(1, 2, 1)>({{1, 2, 7, 6, 5}}, 2);
  check_grids<double, spatial, window(3).same().periodic()>({{1, 1, 4, 3, 5}}, 2);
  check_grids<float, spatial, window(3).same()>({{2, 2, 6, 4, 5}}, 3);
}

TEST_CASE("conv: reflect, replicate and sides of their own: outputs and all gradients on every grid") {
  check_grids<double, spatial, window(3).same().padded_with(Padding::reflect)>({{1, 2, 6, 5, 4}}, 2);
  check_grids<double, spatial, window(5, 4, 3).pad(3).padded_with(Padding::replicate)>({{2, 1, 4, 3, 5}}, 2);
  check_grids<double, samples,
              window(3, 2, 1)
                  .pad(1, 2)
                  .strided(2, 1, 3)
                  .dilated(1, 2, 1)
                  .padded_with(Padding::reflect)
                  .padded_with(Dim::h, Padding::zeros, Padding::replicate)>({{2, 2, 7, 6, 5}}, 2);
  check_grids<float, spatial,
              window(3)
                  .same()
                  .padded_with(Dim::d, Padding::replicate, Padding::periodic)
                  .padded_with(Dim::w, Padding::reflect, Padding::zeros)>({{1, 2, 6, 4, 5}}, 3);
}

TEST_CASE("conv: k=5 s=2 p=2, depth 17 over 3, balanced and in blocks of 5,6,6; stride 3 as well") {
  constexpr Stencil two = window(5).pad(2).strided(2), three = window(5).pad(2).strided(3);
  const Oracle a(two, {{1, 2, 17, 9, 9}}, 2), b(three, {{1, 2, 17, 9, 9}}, 2);
  CHECK(a.out[2] == 9);
  on_ranks({1, 3}, [&](const Communicator& world) {
    const Grid<3> grid(world, {fit, 1, 1});
    check_blocks<float, spatial, two>(grid, a);
    check_blocks<float, spatial, three>(grid, b);
    if (world.size() != 3) return;
    check_blocks<float, spatial, two>(grid, a, {5, 6, 6});
    check_blocks<float, spatial, three>(grid, b, {5, 6, 6});
    check_blocks<double, spatial, three>(grid, b, {0, 16, 1});
  });
}

TEST_CASE("conv: even kernels; k=2 without padding moves data one way only") {
  constexpr Stencil a = window(2), b = window(4).pad(1).strided(2), c_ = window(4).pad(1, 2);
  const Oracle oa(a, {{1, 1, 9, 4, 4}}, 2), ob(b, {{1, 2, 16, 6, 6}}, 2), oc(c_, {{1, 2, 11, 5, 5}}, 2);
  CHECK(oa.out[2] == 8);
  CHECK(ob.out[2] == 8);
  CHECK(oc.out[2] == 11);
  on_ranks({1, 2, 3}, [&](const Communicator& world) {
    const Grid<3> grid(world, {fit, 1, 1});
    check_blocks<float, spatial, a>(grid, oa);
    check_blocks<float, spatial, b>(grid, ob);
    check_blocks<float, spatial, c_>(grid, oc);
    DistTensor<float, 5, spatial> x(grid, oa.in), y;
    DistTensor<float, 5, whole_everywhere> f(grid, oa.kernel);
    const auto before = world.counters();
    y = conv<a>(x, f);
    const auto sent = world.counters() - before;
    CHECK(sent.messages == (world.rank() > 0 ? 1 : 0)); // to the rank below, which needs a plane from above
    CHECK(sent.bytes == (world.rank() > 0 ? 16 * sizeof(float) : 0));
    CHECK(sent.collectives == 0);
  });
}

TEST_CASE("conv: dilation 4 over shards of 3, a halo of several hops") {
  constexpr Stencil s = window(3, 1, 1).dilated(4, 1, 1).pad(Dim::d, 4, 4);
  const Oracle o(s, {{1, 2, 12, 3, 3}}, 2);
  CHECK(o.out[2] == 12);
  on_ranks({1, 4}, [&](const Communicator& world) { check_blocks<float, spatial, s>(Grid<3>(world, {fit, 1, 1}), o); });
}

TEST_CASE("conv: ones on ones, and a single one, on 2x2x2") {
  on_ranks({1, 8}, [](const Communicator& world) {
    const int p = world.size() == 8 ? 2 : 1;
    const Grid<3> grid(world, {p, p, p});
    DistTensor<float, 5, spatial> x(grid, {1, 1, 6, 6, 6}), y;
    DistTensor<float, 5, whole_everywhere> f(grid, {1, 1, 3, 3, 3});
    fill(f, [](const Index<5>&) { return 1; });
    fill(x, [](const Index<5>&) { return 1; });
    y = conv<window(3).same()>(x, f);
    const auto edge = [](long i) { return i == 0 || i == 5 ? 2.0 : 3.0; };
    CHECK(test::difference(y, Whole<5>{x.extents(), [&](const Index<5>& i) {
                                         return edge(i[2]) * edge(i[3]) * edge(i[4]); // 27, 18, 12, 8
                                       }}) == 0);
    fill(x, [](const Index<5>& i) { return i[2] == 2 && i[3] == 2 && i[4] == 2; });
    y = conv<window(3).same()>(x, f);
    CHECK(sum_of(y) == 27);
    if (p == 1) return;
    double mine = 0;
    for_each_index(whole(y.box().extents()), [&](const Index<5>& i) { mine += double(y.view()[i]); });
    const int low = 3 - grid.coord(0) - grid.coord(1) - grid.coord(2);
    CHECK(mine == std::pow(2, low)); // 8,4,4,2,4,2,2,1
  });
}

TEST_CASE("conv: gradients by hand: dx = 2,3,3,3,3,2, dw = 5,6,5, db = 6") {
  on_ranks({1, 2, 3, 6}, [](const Communicator& world) {
    constexpr Stencil s = window(3, 1, 1).pad(Dim::d, 1, 1);
    const Grid<3> grid(world, {fit, 1, 1});
    DistTensor<float, 5, spatial> x(grid, {1, 1, 6, 1, 1}), dy, dx;
    DistTensor<float, 5, whole_everywhere> f(grid, {1, 1, 3, 1, 1}), dw;
    DistTensor<float, 1, whole_everywhere> db;
    fill(x, [](const Index<5>&) { return 1; });
    fill(f, [](const Index<5>&) { return 1; });
    dy = conv<s>(x, f) * 0 + 1;
    dx = conv_backward_data<s>(dy, f, x);
    dw = conv_backward_weights<s>(x, dy);
    db = conv_backward_bias(dy);
    CHECK(gather(dx) == std::vector<float>{2, 3, 3, 3, 3, 2});
    CHECK(gather(dw) == std::vector<float>{5, 6, 5});
    CHECK(gather(db) == std::vector<float>{6});
  });
}

TEST_CASE("conv: periodic, 0..7 turned by one on 1, 2, 4 and 8 ranks") {
  on_ranks({1, 2, 3, 4, 8}, [](const Communicator& world) {
    constexpr Stencil s = window(1, 1, 3).pad(Dim::w, 1, 1).periodic();
    const Grid<3> grid(world, {1, 1, fit});
    DistTensor<float, 5, spatial> x(grid, {1, 1, 1, 1, 8}), y;
    DistTensor<float, 5, whole_everywhere> f(grid, {1, 1, 1, 1, 3});
    fill(x, [](const Index<5>& i) { return i[4]; });
    fill(f, [](const Index<5>& i) { return i[4] == 0; });
    y = conv<s>(x, f);
    CHECK(gather(y) == std::vector<float>{7, 0, 1, 2, 3, 4, 5, 6});
    fill(f, [](const Index<5>& i) { return i[4] == 2; });
    y = conv<s>(x, f);
    CHECK(gather(y) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 0});
  });
}

TEST_CASE("conv: split in w, k=4 s=4 p=0") {
  constexpr Stencil s = window(4).strided(4);
  const Oracle o(s, {{1, 2, 4, 4, 20}}, 3);
  on_ranks({1, 2, 4}, [&](const Communicator& world) {
    check_blocks<float, spatial, s>(Grid<3>(world, {1, 1, fit}), o);
  });
}

TEST_CASE("conv: errors are the same on all ranks: window, weights, boundaries, bias") {
  on_ranks({1, 2, 4}, [](const Communicator& world) {
    const Grid<3> grid(world, {fit, 1, 1});
    DistTensor<float, 5, spatial> x(grid, {1, 2, 4, 8, 8}), y, given(grid, {1, 1, 4, 8, 9});
    DistTensor<float, 5, whole_everywhere> f(grid, {1, 2, 3, 3, 3}), g(grid, {1, 3, 3, 3, 3});
    DistTensor<float, 1, whole_everywhere> bias(grid, {{2}});
    const auto told = [&](const auto& what) { return test::all_throw<usage_error>(world, what); };
    const auto has = [](const std::string& s, const char* part) { return s.find(part) != std::string::npos; };
    const std::string window_text = told([&] { y = conv<window(3).dilated(2)>(x, f); });
    CHECK(has(window_text, "dim d: the window spans 5"));
    CHECK(has(window_text, "the input has size 4"));
    CHECK(has(told([&] { y = conv<window(3).same()>(x, g); }),
              "weights of extents 1x3x3x3x3 (co,ci,d,h,w), but 1x2x3x3x3"));
    CHECK(has(told([&] { given = conv<window(3).same()>(x, f); }),
              "conv: the tensors differ: extents 1x1x4x8x9 and 1x1x4x8x8"));
    CHECK(has(told([&] { y = conv<window(3).same()>(x, f, bias); }), "a bias of 2 elements for 1 output channels"));
    if (world.size() == 1) return;
    std::vector<long> sizes(std::size_t(world.size()), 0);
    sizes[0] = 4;
    auto parts = Map<5>(spatial, grid.shape(), {{1, 1, 4, 8, 8}}).partitions();
    parts[2] = Partition::from_sizes(sizes);
    DistTensor<float, 5, spatial> lopsided(grid, {1, 1, 4, 8, 8}, parts);
    CHECK(has(told([&] { lopsided = conv<window(3).same()>(x, f); }), "blocks of dim d: 4,0"));
  });
}

TEST_CASE("conv: with pointwise work around it, into itself, twice in one expression; nothing allocated later") {
  constexpr Stencil s = window(3).same();
  const Oracle o(s, {{1, 2, 6, 5, 4}}, 2);
  on_ranks({1, 2, 4}, [&](const Communicator& world) {
    const Grid<3> grid(world, {fit, 1, 1});
    DistTensor<double, 5, spatial> x(grid, o.in), y, z;
    DistTensor<double, 5, whole_everywhere> f(grid, o.kernel);
    DistTensor<double, 1, whole_everywhere> bias(grid, {{2}});
    scatter(x, o.x);
    scatter(f, o.f);
    scatter(bias, o.bias);
    const auto wanted = [&](const auto& g) {
      std::vector<double> all;
      for (std::size_t i = 0; i < o.y.size(); ++i) all.push_back(g(o.y[i], o.x[i]));
      return all;
    };
    std::uint64_t before = 0;
    for (int k = 0; k < 3; ++k) {
      world.barrier();
      if (k == 2) before = allocation_counter().allocations.load();
      world.barrier();
      y = leaky_relu(conv<s>(x, f) + bias, 0.25);
      z = conv<s>(x, f) * x + 2 * conv<s>(x, f, bias);
    }
    world.barrier();
    CHECK(allocation_counter().allocations.load() == before);
    world.barrier();
    CHECK(worst(y, wanted([](double v, double) { return v > 0 ? v : v / 4; })) <= 1e-12);
    std::vector<double> both;
    for (std::size_t i = 0; i < o.y.size(); ++i) {
      const double b = o.bias[i / (o.y.size() / 2)];
      both.push_back((o.y[i] - b) * o.x[i] + 2 * o.y[i]);
    }
    CHECK(worst(z, both) <= 1e-12);
    z = shift<d>(conv<s>(x, f, bias), 1) - x;
    const std::size_t plane = 20, channel = 120;
    std::vector<double> moved;
    for (std::size_t i = 0; i < o.y.size(); ++i)
      moved.push_back((i % channel + plane < channel ? o.y[i + plane] : 0.0) - o.x[i]);
    CHECK(worst(z, moved) <= 1e-12);
    DistTensor<float, 5, spatial> narrow;
    narrow = conv<s>(x, f, bias);
    CHECK(worst(narrow, o.y) <= 1e-6);
    x = conv<s>(x, f, bias);
    CHECK(worst(x, o.y) <= 1e-12);
  });
}

TEST_CASE("conv: <conv(x), y> = <x, adjoint(y)> over grids, padding of every mode but zeros") {
  constexpr Stencil s = window(3, 4, 2)
                            .pad(2, 1)
                            .strided(1, 2, 1)
                            .periodic()
                            .padded_with(h, Padding::reflect)
                            .padded_with(w, Padding::replicate, Padding::reflect);
  on_ranks([](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(sizes));
      DistTensor<double, 5, spatial> x(grid, {2, 2, 5, 6, 4}), y, hx, ay;
      DistTensor<double, 5, whole_everywhere> f(grid, {3, 2, 3, 4, 2}), df;
      test::set(x, numbers(x.extents()));
      test::set(f, numbers(f.extents(), 3));
      hx = conv<s>(x, f);
      y = hx;
      test::set(y, numbers(y.extents(), 8));
      ay = conv_backward_data<s>(y, f, x);
      df = conv_backward_weights<s>(x, y);
      const double want = dot(hx, y); // whole numbers below 2^53: exact
      CHECK(dot(x, ay) == want);
      CHECK(dot(f, df) == want);
    }
  });
}

TEST_CASE("pooling: all -5, k=3 s=2 p=1: no zero from the padding; averages by both divisors; every grid") {
  constexpr Stencil s = window(3).pad(1).strided(2);
  const Extents<5> e{{2, 3, 9, 4, 5}};
  on_ranks([&](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(sizes));
      const auto check = [&]<Layout L>() {
        DistTensor<double, 5, L> x(grid, e), y;
        fill(x, [](const Index<5>&) { return -5; });
        y = max_pool<s>(x);
        CHECK(max_of(y) == -5);
        CHECK(min_of(y) == -5);
        const auto a = numbers(e);
        test::set(x, a);
        const auto window_of = [&](const Index<5>& q, const auto& f) {
          long cells = 0;
          for_each_index(whole(Index<3>{{3, 3, 3}}), [&](const Index<3>& t) {
            Index<5> i = q;
            for (int k = 0; k < 3; ++k) i[2 + k] = 2 * q[2 + k] - 1 + t[k];
            if (!whole(e).contains(i)) return;
            ++cells;
            f(a.inside(i));
          });
          return cells;
        };
        const Extents<5> out{{2, 3, 5, 2, 3}};
        y = max_pool<s>(x);
        CHECK(test::difference(y, Whole<5>{out, [&](const Index<5>& q) {
                                             double most = -1e300;
                                             window_of(q, [&](double v) { most = std::max(most, v); });
                                             return most;
                                           }}) == 0);
        const auto mean = [&](Divisor by) {
          return Whole<5>{out, [&, by](const Index<5>& q) {
                            double sum = 0;
                            const long cells = window_of(q, [&](double v) { sum += v; });
                            return sum / (by == Divisor::window ? 27.0 : double(cells));
                          }};
        };
        y = average_pool<s>(x);
        CHECK(test::difference(y, mean(Divisor::window)) < 1e-12);
        y = average_pool<s, Divisor::inside>(x);
        CHECK(test::difference(y, mean(Divisor::inside)) < 1e-12);
        y = relu(max_pool<s>(x)) + 1;
        CHECK(min_of(y) >= 1);
      };
      check.template operator()<spatial>();
      check.template operator()<place(n, c, d)>();
    }
  });
}

TEST_CASE("pooling: stored padding holds values that can win and count, on every grid") {
  constexpr Stencil s = window(3)
                            .pad(2, 1)
                            .strided(2, 1, 2)
                            .padded_with(Padding::reflect)
                            .padded_with(Dim::h, Padding::replicate)
                            .padded_with(Dim::w, Padding::periodic, Padding::zeros);
  const Extents<5> e{{1, 2, 5, 3, 4}};
  const Index<3> o = s.output({{5, 3, 4}});
  const Extents<5> out{{1, 2, o[0], o[1], o[2]}};
  const auto a = numbers(e);
  const auto over_window = [&](const Index<5>& q, const auto& f) {
    long cells = 0;
    for_each_index(whole(Index<3>{{3, 3, 3}}), [&](const Index<3>& t) {
      Index<5> i = q;
      bool holds = true;
      for (int k = 0; k < 3; ++k) {
        i[2 + k] = test::cell_at(q[2 + k] * s[k].stride - 2 + t[k], e[2 + k], s[k].mode);
        holds = holds && i[2 + k] >= 0;
      }
      if (!holds) return;
      ++cells;
      f(a.inside(i));
    });
    return cells;
  };
  on_ranks([&](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 3)) {
      const Grid<3> grid(world, test::sizes_of(sizes));
      DistTensor<double, 5, spatial> x(grid, e), y;
      test::set(x, a);
      y = max_pool<s>(x);
      CHECK(test::difference(y, Whole<5>{out, [&](const Index<5>& q) {
                                           double most = -1e300;
                                           over_window(q, [&](double v) { most = std::max(most, v); });
                                           return most;
                                         }}) == 0);
      const auto mean = [&](Divisor by) {
        return Whole<5>{out, [&, by](const Index<5>& q) {
                          double sum = 0;
                          const long cells = over_window(q, [&](double v) { sum += v; });
                          return sum / (by == Divisor::window ? 27.0 : double(cells));
                        }};
      };
      y = average_pool<s>(x);
      CHECK(test::difference(y, mean(Divisor::window)) < 1e-12);
      y = average_pool<s, Divisor::inside>(x);
      CHECK(test::difference(y, mean(Divisor::inside)) < 1e-12);
    }
  });
}
