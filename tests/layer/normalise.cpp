// Normalisation by itself: PyTorch's values, worked-out cases, plain loops in double with any boundaries, layouts and
// scopes of statistics, small spreads on large means, and what a step moves.
#include "alone.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/layer/make.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr std::uint64_t seed = 20251;

struct Problem {
  LayerSpec spec{};
  InputActivation fused{};
  Extents<5> e{};
  std::vector<double> x, dy, gamma, beta;
  std::vector<double> state{}; ///< running mean, running variance; empty for none

  std::string str() const {
    return text(spec.name(), " groups ", spec.groups, " scope ", static_cast<int>(spec.scope.kind), " axes ",
                spec.scope.axes, " affine ", static_cast<int>(spec.affine), " activation ",
                static_cast<int>(fused.kind), " ", e);
  }
};

Problem random_problem(Random& random, const LayerSpec& spec, const Extents<5>& e, InputActivation fused = {}) {
  Problem p{spec, fused, e, random_numbers(random, product(e)), random_numbers(random, product(e)), {}, {}};
  if (spec.affine == Affine::yes) p.gamma = random_numbers(random, e[1]), p.beta = random_numbers(random, e[1]);
  if (spec.kind == LayerKind::batch_norm) {
    p.state.assign(std::size_t(2 * e[1]), 0.0);
    std::fill(p.state.begin() + e[1], p.state.end(), 1.0);
  }
  return p;
}

template <class T> struct Result : Computed<T> {
  std::vector<T> state;
  comm::Counters forward, backward; ///< what this rank sent
};

/// The layer on a grid, forward and backward, gathered; gradients of parameters summed as a network does.
template <class T, class Backend>
Result<T> run(const Problem& p, const AnyGrid& grid, const Map<5>& map, long margin = 0, Mode mode = Mode::training) {
  const auto layer = make_layer<T, Backend>(p.spec, p.fused, grid, map, map);
  const auto narrow = [](const std::vector<double>& v) { return std::vector<T>(v.begin(), v.end()); };
  const std::vector<T> gamma = narrow(p.gamma), beta = narrow(p.beta);
  constexpr T poison = std::numeric_limits<T>::quiet_NaN();
  Result<T> r;
  r.state = narrow(p.state);
  r.dw.assign(gamma.size(), poison), r.db.assign(beta.size(), poison);
  Pass<T> pass;
  pass.mode = mode;
  pass.weights = gamma, pass.biases = beta, pass.weight_gradients = r.dw, pass.bias_gradients = r.db;
  pass.state = r.state;
  pass.poke = [&grid] { grid.world().progress(); };
  int ready = 0;
  if (!gamma.empty()) pass.gradients_ready = [&ready] { ++ready; }; // networks give none where there is nothing to sum
  Box<5> room = map.box(grid.rank());
  if (!room.empty())
    for (int i = 2; i < 5; ++i) room.lo[i] -= margin, room.hi[i] += margin;
  const auto tensor = [&](const std::vector<double>& values) {
    Tensor<T, 5> t(grid, map);
    if (!room.empty()) t.reserve(room);
    std::fill_n(t.data(), t.store().volume(), poison);
    if (!values.empty()) scatter(t, narrow(values));
    return t;
  };
  auto x = tensor(p.x), y = tensor({}), dy = tensor(p.dy), dx = tensor({});
  const auto start = grid.world().counters();
  layer->forward(pass, x, y);
  const auto middle = grid.world().counters();
  r.y = gather(y);
  const auto again = grid.world().counters();
  layer->backward(pass, x, y, dy, &dx);
  r.backward = grid.world().counters() - again, r.forward = middle - start;
  r.dx = gather(dx);
  CHECK(ready == (gamma.empty() ? 0 : 1));
  const Communicator& ranks = grid.over(map.layout().mask(Placement::Kind::split));
  ranks.iall_reduce(std::span<T>(r.dw)).wait();
  ranks.iall_reduce(std::span<T>(r.db)).wait();
  return r;
}

/// What is to come out, by the whole matrix of derivatives of each statistic's values. set_of(index): which elements
/// share statistics.
template <class F> Result<double> by_definition(const Problem& p, const F& set_of) {
  struct Element {
    std::size_t at, c;
  };
  std::map<std::vector<long>, std::vector<Element>> sets;
  std::size_t at = 0;
  for_each_index(whole(p.e), [&](const Index<5>& i) { sets[set_of(i)].push_back({at++, std::size_t(i[1])}); });
  Result<double> r;
  r.y = p.x, r.dx = p.dy;
  r.dw.assign(p.gamma.size(), 0.0), r.db.assign(p.gamma.size(), 0.0);
  std::vector<double> g(p.dy), hat(p.x.size());
  const auto gamma = [&](std::size_t c) { return p.gamma.empty() ? 1.0 : p.gamma[c]; };
  std::vector<double> mean_sum(std::size_t(p.e[1])), variance_sum(std::size_t(p.e[1]));
  for (const auto& [key, set] : sets) {
    const double n = double(set.size());
    double mean = 0, squares = 0;
    for (const Element& e : set) mean += p.x[e.at] / n;
    for (const Element& e : set) squares += (p.x[e.at] - mean) * (p.x[e.at] - mean);
    const double s = 1 / std::sqrt(squares / n + p.spec.epsilon);
    for (const Element& e : set) {
      hat[e.at] = (p.x[e.at] - mean) * s;
      const double v = gamma(e.c) * hat[e.at] + (p.beta.empty() ? 0.0 : p.beta[e.c]);
      r.y[e.at] = kernel::activate(p.fused.kind, p.fused.slope, v);
      g[e.at] *= kernel::activation_slope(p.fused.kind, p.fused.slope, r.y[e.at]);
      if (!r.dw.empty()) r.dw[e.c] += g[e.at] * hat[e.at], r.db[e.c] += g[e.at];
    }
    for (const Element& to : set) {
      r.dx[to.at] = 0;
      for (const Element& from : set)
        r.dx[to.at] += g[from.at] * gamma(from.c) * s * ((to.at == from.at) - (1 + hat[from.at] * hat[to.at]) / n);
    }
    if (!p.state.empty()) mean_sum[set[0].c] += n * mean, variance_sum[set[0].c] += n * squares / (n - 1);
  }
  for (std::size_t c = 0; c < p.state.size() / 2; ++c) {
    const double cells = double(p.e[0] * p.e[2] * p.e[3] * p.e[4]), m = p.spec.momentum;
    r.state.push_back((1 - m) * p.state[c] + m * mean_sum[c] / cells);
  }
  for (std::size_t c = 0; c < p.state.size() / 2; ++c) {
    const double cells = double(p.e[0] * p.e[2] * p.e[3] * p.e[4]), m = p.spec.momentum;
    r.state.push_back((1 - m) * p.state[p.state.size() / 2 + c] + m * variance_sum[c] / cells);
  }
  return r;
}

template <class T>
void check_all(const std::string& what, const Result<T>& got, const Result<double>& want, double tolerance) {
  check_equal<T>(what, got, want, tolerance);
  const std::string wrong = difference(got.state, want.state, tolerance);
  CHECK_MESSAGE(wrong.empty(), what, ": running statistics ", wrong);
}

/// Who shares statistics on a grid, found from where each element lies.
std::vector<long> sharing(const Problem& p, const Map<5>& map, const Index<5>& i) {
  if (p.spec.kind == LayerKind::group_norm) return {i[0], i[1] / (p.e[1] / groups_of(p.spec, p.e[1]))};
  std::vector<long> key{i[1]};
  const auto holder = holders(map, i);
  for (int a = 0; a < map.layout().axes; ++a) {
    bool together = true;
    switch (p.spec.scope.kind) {
    case Scope::Kind::all: break;
    case Scope::Kind::piece: together = false; break;
    case Scope::Kind::sample: together = !map.layout()[a].splits(Dim::n); break;
    case Scope::Kind::axes: together = p.spec.scope.axes >> a & 1U; break;
    }
    if (!together) key.push_back(holder[std::size_t(a)]);
  }
  return key;
}

// x = torch.sin(i * .7) * 2 + i % 5, i = torch.arange(96, dtype=torch.float64), .reshape(2, 4, 3, 2, 2);
// y = F...(x, gamma, beta, eps=1e-3); (y * torch.cos(i * .3).reshape(x.shape)).sum().backward()
Problem of_pytorch(const LayerSpec& spec) {
  Problem p{spec, {}, {{2, 4, 3, 2, 2}}, {}, {}, {1.5, -0.5, 2, 0.25}, {0.1, 0.2, -0.3, 0.4}, {}};
  for (int i = 0; i < 96; ++i) p.x.push_back(std::sin(i * 0.7) * 2 + i % 5), p.dy.push_back(std::cos(i * 0.3));
  if (spec.kind == LayerKind::batch_norm) p.state = {0, 0, 0, 0, 1, 1, 1, 1};
  return p;
}
struct Published {
  LayerSpec spec;
  double y[4], dx[4], dw[4]; ///< y and dx at 0, 17, 50 and 95
};
const double published_db[] = {-6.6548457668485, 7.87529320351619, -7.46962515585601, 5.52160524723409};
const Published published[] = {
    {group_norm(2, {.epsilon = 1e-3}), // F.group_norm(x, 2, ...)
     {-1.53041073343969, 0.547721235039535, -1.86131848850514, -0.00437649773621164},
     {0.851633748553973, -0.0251731075828745, -0.298356769672118, -0.127971638304587},
     {2.14831569161492, 2.20442072499603, -2.39695803753541, -2.56080700322272}},
    {layer_norm({.epsilon = 1e-3}), // F.group_norm(x, 1, ...), without gamma and beta equal to F.layer_norm
     {-1.4230240329703, 0.514813975216718, -2.02544977740598, 0.0275899204647689},
     {0.870945189547612, 0.0218692544461697, -0.414863934356415, 0.0218996431927984},
     {2.69797339296775, 1.96740014548509, -2.27308047558305, -2.9803570247831}},
    {instance_norm({.epsilon = 1e-3}), // F.instance_norm(x, None, None, ...)
     {-1.43780924531063, 0.577825393833881, -2.42179753237887, 0.0311889217275722},
     {0.859810256707555, -0.0337821417730806, 0.110230209887623, -0.134685671922114},
     {3.82116170842201, 3.11790873657087, -3.07154959975622, -3.68508240899465}},
    {batch_norm({.epsilon = 1e-3, .momentum = 0.2}), // F.batch_norm(x, zeros, ones, ..., True, .2, ...)
     {-1.58459771671994, 0.446821892118494, -2.2433229022875, 0.00358063587656073},
     {1.10141735889524, -0.0265157373806059, -0.205653431920786, -0.180086385512126},
     {3.30371098717035, 2.8849171806125, -2.3533462153094, -3.42528797968233}}};
const std::vector<double> published_state = {0.4380069644677582,  0.35600367270635447, 0.3987103342344744,
                                             0.42899055579487044, 1.593398404568735,   1.6843437180863203,
                                             1.661797562851691,   1.6234047190900736};

template <class T, class Backend> void check_published(double tolerance) {
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      for (const Published& want : published) {
        const Problem p = of_pytorch(want.spec);
        const auto got = run<T, Backend>(p, grid, Map<5>(over_ndhw, grid.shape(), p.e));
        bool right = true;
        const auto near = [&](T a, double b) {
          right = right && std::abs(double(a) - b) < tolerance * std::max(1.0, std::abs(b));
        };
        constexpr std::size_t at[] = {0, 17, 50, 95};
        for (std::size_t k = 0; k < 4; ++k) {
          near(got.y[at[k]], want.y[k]), near(got.dx[at[k]], want.dx[k]);
          near(got.dw[k], want.dw[k]), near(got.db[k], published_db[k]);
        }
        for (std::size_t k = 0; k < got.state.size(); ++k) near(got.state[k], published_state[k]);
        CHECK_MESSAGE(right, want.spec.name(), " on ", grid.shape().str());
      }
    });
  });
}

} // namespace

TEST_CASE("normalisations: PyTorch's values on every grid") {
  check_published<double, reference>(1e-13);
  check_published<double, cpu>(1e-13);
  check_published<float, cpu>(2e-6);
}

TEST_CASE("batch norm: three zeros on one rank, two ones on the other") {
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    Problem p{batch_norm({.epsilon = 1e-5}), {}, {{1, 1, 5, 1, 1}}, {0, 0, 0, 1, 1}, {1, 0, 0, 0, 2}, {2}, {1}, {0, 1}};
    const auto got = run<double, reference>(p, grid, Map<5>(place(d), grid.shape(), p.e));
    const double s = 1 / std::sqrt(0.24 + 1e-5); // mean 0.4, biased variance 0.24
    // xhat = -0.4 s and 0.6 s; sum(dy) = 3, sum(dy xhat) = 0.8 s.
    const auto dx = [&](double of_dy, double hat) { return 2 * s * (of_dy - 0.6 - hat * 0.16 * s); };
    Result<double> want;
    want.y = {1 - 0.8 * s, 1 - 0.8 * s, 1 - 0.8 * s, 1 + 1.2 * s, 1 + 1.2 * s};
    want.dx = {dx(1, -0.4 * s), dx(0, -0.4 * s), dx(0, -0.4 * s), dx(0, 0.6 * s), dx(2, 0.6 * s)};
    want.dw = {0.8 * s}, want.db = {3};
    want.state = {0.04, 0.93}; // the unbiased variance is 0.3
    check_all("by hand", got, want, 1e-14);
  });
}

TEST_CASE("normalisations equal plain loops in double: any boundaries, layouts, groups, scopes, strides, activations") {
  MESSAGE("seed ", seed);
  on_ranks([](const Communicator& c) {
    Random random(seed + std::uint64_t(c.size()));
    for (int k = 0; k < 60; ++k) {
      const int axes = random.pick(1, 4);
      const auto ways = factorisations(c.size(), axes);
      const AnyGrid grid(c, ways[std::size_t(random.in(0, long(ways.size()) - 1))]);
      Layout layout;
      layout.axes = axes;
      constexpr Dim dims[] = {Dim::n, Dim::d, Dim::d, Dim::h, Dim::w};
      for (int a = 0; a < axes; ++a)
        layout[a] = random.one_in(6) ? Placement(Placement::Kind::rep) : Placement(dims[random.pick(0, 4)]);
      const Extents<5> e{{random.in(1, 4), 12, random.in(1, 6), random.in(1, 4), random.in(2, 4)}};
      const Affine affine = random.one_in(4) ? Affine::no : Affine::yes;
      constexpr int groups[] = {1, 2, 3, 4, 6, 12};
      const Scope scopes[] = {all_ranks, this_piece, ranks_of_sample, grid_axes(0),
                              grid_axes(random.pick(0, axes - 1))};
      LayerSpec spec;
      switch (random.pick(0, 5)) {
      case 0: spec = group_norm(groups[random.pick(0, 5)], {.epsilon = 1e-3, .affine = affine}); break;
      case 1: spec = layer_norm({.epsilon = 1e-2, .affine = affine}); break;
      case 2: spec = instance_norm({.epsilon = 1e-3, .affine = affine}); break;
      default: spec = batch_norm({.epsilon = 1e-2, .over = scopes[random.pick(0, 4)], .affine = affine});
      }
      const InputActivation fused{static_cast<kernel::Activation>(random.one_in(2) ? 0 : random.pick(1, 5)), 0.5};
      const Problem p = random_problem(random, spec, e, fused);
      Map<5> map(layout, grid.shape(), p.e);
      if (random.one_in(2)) map = random_map<5>(random, layout, grid.shape(), p.e);
      const long margin = random.pick(0, 1);
      if (spec.kind == LayerKind::batch_norm && shared_cells(map, scope_axes(spec.scope, layout), 0).least == 1)
        continue; // refused, see below
      const auto want = by_definition(p, [&](const Index<5>& i) { return sharing(p, map, i); });
      const std::string what = text("seed ", seed, " ranks ", c.size(), " case ", k, ": ", p.str(), " on ",
                                    grid.shape(), " as ", layout.str());
      check_all(what, run<double, reference>(p, grid, map, margin), want, 1e-10);
      check_all(what, run<double, cpu>(p, grid, map, margin), want, 1e-10);
      check_all(what, run<float, cpu>(p, grid, map, margin), want, 2e-5);
    }
  });
}

TEST_CASE("normalisations: values 1e4 +- 1 in 65 channels keep variance and gradients, with uneven shards") {
  Random random(77);
  for (const LayerSpec& spec : {batch_norm({.momentum = 1}), group_norm(13), layer_norm(), instance_norm()}) {
    Problem p = random_problem(random, spec, {{2, 65, 7, 3, 3}});
    for (double& v : p.x) v = double(static_cast<float>(1e4 + v));
    const Map<5> one_map(over_ndhw, shape_of({1, 1, 1, 1}), p.e);
    const auto want = by_definition(p, [&](const Index<5>& i) { return sharing(p, one_map, i); });
    on_ranks([&](const Communicator& c) {
      on_every_grid(c, [&](const AnyGrid& grid) {
        const auto got = run<float, cpu>(p, grid, Map<5>(over_ndhw, grid.shape(), p.e));
        check_all<float>(text(spec.name(), " on ", grid.shape()), got, want, 1e-5);
        for (std::size_t k = 65; k < got.state.size(); ++k) // momentum 1: the variance itself
          CHECK(std::abs(double(got.state[k]) / want.state[k] - 1) < 1e-5);
      });
    });
  }
}

TEST_CASE("normalisations: no variance at all") {
  Random random(78);
  for (const LayerSpec& spec : {batch_norm(), group_norm(1), instance_norm()}) {
    Problem p = random_problem(random, spec, {{2, 3, 4, 2, 2}});
    std::fill(p.x.begin(), p.x.end(), 7.0 / 3);
    on_ranks({1, 2, 4}, [&](const Communicator& c) {
      const AnyGrid grid(c, {1, c.size(), 1, 1});
      const Map<5> map(over_ndhw, grid.shape(), p.e);
      const auto got = run<double, reference>(p, grid, map);
      bool right = true;
      std::size_t at = 0;
      for_each_index(whole(p.e), [&](const Index<5>& i) { // y = beta
        right = right && std::abs(got.y[at] - p.beta[std::size_t(i[1])]) < 1e-10 && std::isfinite(got.dx[at]);
        ++at;
      });
      CHECK(right);
      const auto fast = run<float, cpu>(p, grid, map);
      at = 0;
      for_each_index(whole(p.e), [&](const Index<5>& i) {
        right = right && std::abs(double(fast.y[at]) - p.beta[std::size_t(i[1])]) < 1e-4 && std::isfinite(fast.dx[at]);
        ++at;
      });
      CHECK(right);
    });
  }
}

TEST_CASE("normalisations: how many all-reduces a step takes") {
  Random random(79);
  struct Want {
    LayerSpec spec;
    Layout layout;
    std::uint64_t forward, forward_double, backward;
  };
  constexpr Layout volume = place(d, h), mixed = place(n, d), samples = place(n, n);
  const Want wants[] = {{batch_norm(), volume, 1, 2, 1},
                        {batch_norm(), samples, 1, 2, 1},
                        {batch_norm({.over = this_piece}), mixed, 1, 1, 0},       // for the running statistics
                        {batch_norm({.over = ranks_of_sample}), mixed, 2, 3, 1},  // one more for them
                        {batch_norm({.over = ranks_of_sample}), volume, 1, 2, 1}, // which are all ranks
                        {batch_norm({.over = ranks_of_sample}), samples, 1, 1, 0},
                        {batch_norm({.over = grid_axes(0)}), mixed, 2, 3, 1},
                        {batch_norm({.over = grid_axes(0, 1)}), mixed, 1, 2, 1},
                        {group_norm(2), volume, 1, 2, 1},
                        {group_norm(2), mixed, 1, 2, 1},
                        {layer_norm(), samples, 0, 0, 0},
                        {instance_norm(), place(rep, n), 0, 0, 0}};
  on_ranks({4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {2, 2});
    for (const Want& want : wants) {
      const Problem p = random_problem(random, want.spec, {{4, 4, 4, 4, 3}});
      const Map<5> map(want.layout, grid.shape(), p.e);
      const auto single = run<float, cpu>(p, grid, map);
      CHECK(single.forward.collectives == want.forward);
      CHECK(single.backward.collectives == want.backward);
      const auto wide = run<double, reference>(p, grid, map);
      CHECK(wide.forward.collectives == want.forward_double);
      CHECK(wide.backward.collectives == want.backward);
      CHECK(wide.forward.messages + wide.backward.messages == 0);
      if (want.spec.kind == LayerKind::batch_norm)
        CHECK(run<float, cpu>(p, grid, map, 0, Mode::inference).forward.collectives == 0);
    }
  });
}

TEST_CASE("batch norm: running statistics of narrow scopes are their mean over the pieces, the same on every rank") {
  on_ranks({2}, [](const Communicator& c) {
    const AnyGrid grid(c, {2});
    // Pieces (0, 2, 4) and (10, 20): means 2 and 15, unbiased variances 4 and 50, weights 3/5 and 2/5.
    Problem p{batch_norm({.momentum = 0.5, .over = this_piece}),
              {},
              {{1, 1, 5, 1, 1}},
              {0, 2, 4, 10, 20},
              {1, 1, 1, 1, 1},
              {1},
              {0},
              {0, 1}};
    const auto got = run<double, reference>(p, grid, Map<5>(place(d), grid.shape(), p.e));
    CHECK(got.state[0] == doctest::Approx(0.5 * (0.6 * 2 + 0.4 * 15)).epsilon(1e-14));
    CHECK(got.state[1] == doctest::Approx(0.5 + 0.5 * (0.6 * 4 + 0.4 * 50)).epsilon(1e-14));
    CHECK(got.y[0] == doctest::Approx(-2 / std::sqrt(8.0 / 3 + 1e-5)).epsilon(1e-14));
    CHECK(got.y[4] == doctest::Approx(5 / std::sqrt(25 + 1e-5)).epsilon(1e-14));
  });
}

TEST_CASE("batch norm: a piece of one value per channel is refused on every rank, an empty one is not") {
  on_ranks({3}, [](const Communicator& c) {
    const AnyGrid grid(c, {3});
    Random random(80);
    const Problem p = random_problem(random, batch_norm({.over = this_piece}), {{1, 2, 5, 1, 1}});
    const auto with = [&](const std::vector<long>& sizes) {
      return Map<5>(place(d), grid.shape(), p.e,
                    {Partition(1), Partition(2), Partition::from_sizes(sizes), Partition(1), Partition(1)});
    };
    const std::string said = all_throw<usage_error>(c, [&] { run<float, cpu>(p, grid, with({2, 2, 1})); });
    CHECK(said.find("one value per channel") != std::string::npos);
    const Map<5> map = with({2, 0, 3});
    check_all("with an empty piece", run<float, cpu>(p, grid, map),
              by_definition(p, [&](const Index<5>& i) { return sharing(p, map, i); }), 1e-5);
  });
}
