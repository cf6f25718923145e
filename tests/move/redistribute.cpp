// Redistribution between every pair of layouts, worked out element by element; adjoints; traffic; assignment; errors.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <atomic>
#include <cmath>
#include <tessera/move/redistribute.hpp>
#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using test::on_ranks;
using test::Random;

namespace {

using Coords = std::array<int, Layout::max_axes>;
using Kind = Placement::Kind;

int at(const Coords& c, int axis) { return c[static_cast<std::size_t>(axis)]; }

/// What is asserted about a pair of maps, from elements and coordinates alone.
template <int N> struct Oracle {
  const Map<N>& from;
  const Map<N>& to;
  int axes = from.layout().axes;

  Kind kind(const Map<N>& m, int a) const { return m.layout()[a].kind; }
  bool was(int a, Kind k) const { return kind(from, a) == k; }
  bool becomes(int a, Kind k) const { return kind(to, a) == k; }
  int size(int a) const { return from.grid().size[static_cast<std::size_t>(a)]; }

  /// What the rank at `c` holds of element i before: the element's number, times 1 + coordinate along axes of addends.
  double before(const Index<N>& i, const Coords& c) const {
    double v = test::linear(i, from.extents());
    for (int a = 0; a < axes; ++a)
      if (was(a, Kind::sum)) v *= 1 + at(c, a);
    return v;
  }
  /// And after. Addends that were summed are 1 + 2 + ... + size times the number; where a split becomes a sum, the
  /// holder of the element has it and the others have zero.
  double after(const Index<N>& i, const Coords& c) const {
    double v = test::linear(i, from.extents());
    const Coords holder = test::holders(from, i);
    for (int a = 0; a < axes; ++a) {
      if (was(a, Kind::sum)) v *= becomes(a, Kind::sum) ? 1 + at(c, a) : size(a) * (size(a) + 1) / 2;
      if (was(a, Kind::split) && becomes(a, Kind::sum) && at(holder, a) != at(c, a)) v = 0;
    }
    return v;
  }
  /// Calls f(rank) for every rank from which the rank at `c` needs its element i.
  template <class F> void for_each_source(const Index<N>& i, const Coords& c, const F& f) const {
    const Coords holder = test::holders(from, i);
    for (int r = 0; r < from.grid().ranks(); ++r) {
      const Coords s = from.grid().coords(r);
      bool gives = true;
      for (int a = 0; a < axes; ++a) {
        const bool scatters = was(a, Kind::sum) && becomes(a, Kind::split);
        if (was(a, Kind::split)) gives = gives && at(s, a) == at(holder, a);
        if (was(a, Kind::split) && becomes(a, Kind::sum)) gives = gives && at(s, a) == at(c, a);
        if (!was(a, Kind::split) && !scatters) gives = gives && at(s, a) == at(c, a);
      }
      if (gives) f(r);
    }
  }
  /// What `rank` sends, each element once to each rank that needs it.
  Traffic sent(int rank) const {
    Traffic t;
    for (int r = 0; r < from.grid().ranks(); ++r) {
      if (r == rank) continue;
      long elements = 0;
      for_each_index(to.box(r), [&](const Index<N>& i) {
        for_each_source(i, to.grid().coords(r), [&](int source) { elements += source == rank; });
      });
      t.messages += elements > 0;
      t.bytes += static_cast<std::uint64_t>(elements) * sizeof(double);
    }
    return t;
  }
};

template <int N> Map<N> dual_map(const Map<N>& m) {
  return Map<N>(dual(m.layout()), m.grid(), m.extents(), m.partitions());
}

/// Whole numbers, so that sums are exact in any order.
template <int N> void fill_random(Tensor<double, N>& x, Random& random) {
  const View<double, N> v = x.view();
  for_each_index(whole(v.extents), [&](const Index<N>& i) { v[i] = static_cast<double>(random.in(-9, 9)); });
}
template <int N> double dot(const Tensor<double, N>& a, const Tensor<double, N>& b) {
  double sum = 0;
  for_each_index(whole(a.view().extents), [&](const Index<N>& i) { sum += a.view()[i] * b.view()[i]; });
  return sum;
}
template <int N> bool equal(const Tensor<double, N>& a, const Tensor<double, N>& b) {
  bool same = true;
  for_each_index(whole(a.view().extents), [&](const Index<N>& i) { same = same && a.view()[i] == b.view()[i]; });
  return same;
}

/// Now and then room for a halo, so that the block in memory is not dense.
template <int N> void widen(Tensor<double, N>& x, Random& random) {
  if (!random.one_in(4)) return;
  Box<N> need = x.box();
  for (int k = 0; k < N; ++k) need.lo[k] -= random.in(0, 1), need.hi[k] += random.in(0, 1);
  x.reserve(need);
}

/// What a sweep collects on one rank.
struct Found {
  long legal = 0, forbidden = 0;
  std::vector<double> products; // <Fx, y> and <x, F*y>, pair by pair
  std::vector<std::string> names;
};

template <int N> void check_pair(const AnyGrid& grid, long number_from, long number_to, Random& random, Found& found) {
  const Layout a = test::layout_number<N>(number_from, grid.axes()), b = test::layout_number<N>(number_to, grid.axes());
  Extents<N> e;
  for (int k = 0; k < N; ++k) e[k] = random.one_in(25) ? 0 : random.in(1, N >= 4 ? 3 : 5);
  const Map<N> from = test::random_map(random, a, grid.shape(), e), to = test::random_map(random, b, grid.shape(), e);
  const std::string name = text(a, " to ", b, " on ", grid.shape(), ", extents ", e);

  bool legal = true;
  for (int i = 0; i < grid.axes(); ++i) legal = legal && !(a[i].kind == Kind::rep && b[i].kind == Kind::sum);
  if (!legal) {
    ++found.forbidden;
    try {
      Redistribution<double, N> r(grid, from, to);
      FAIL_CHECK("forbidden but not refused: ", name);
    } catch (const usage_error&) {}
    return;
  }
  ++found.legal;
  const Oracle<N> oracle{from, to};
  const Coords me = grid.shape().coords(grid.rank());
  Redistribution<double, N> r(grid, from, to);

  Tensor<double, N> x(grid, from), y(grid, to), dy(grid, to), dx(grid, from);
  widen(x, random), widen(y, random), widen(dx, random), widen(dy, random);
  fill_block(y.view(), -7.0); // what was there before must not matter
  fill(x, [&](const Index<N>& i) { return oracle.before(i, me); });
  const comm::Counters before = grid.world().counters();
  r.run(x, y);
  const comm::Counters moved = grid.world().counters() - before;
  bool values = true, kept = true;
  for_each_index(y.box(),
                 [&](const Index<N>& i) { values = values && y.view()[i - y.box().lo] == oracle.after(i, me); });
  for_each_index(x.box(), [&](const Index<N>& i) { kept = kept && x.view()[i - x.box().lo] == oracle.before(i, me); });
  const Traffic sent = oracle.sent(grid.rank());
  const bool traffic = r.traffic() == sent && moved.messages == sent.messages && moved.bytes == sent.bytes &&
                       moved.collective_bytes == r.all_reduced_bytes();

  // The adjoint, on numbers that differ on every rank, replicas too.
  Random local(static_cast<std::uint64_t>(random.in(0, 1L << 40)) * 64 + static_cast<std::uint64_t>(grid.rank()));
  fill_random(x, local);
  r.run(x, y);
  fill_random(dy, local);
  fill_block(dx.view(), -7.0);
  r.run_adjoint(dy, dx);
  found.products.push_back(dot(y, dy));
  found.products.push_back(dot(x, dx));
  found.names.push_back(name);
  const Map<N> dual_from = dual_map(to), dual_to = dual_map(from);
  Tensor<double, N> u(grid, dual_from), v(grid, dual_to);
  copy_block(dy.view(), u.view());
  redistribute(u, v);
  const bool duals = equal(dx, v);
  CHECK_MESSAGE((values && kept && traffic && duals), name, ", rank ", grid.rank(), ": values ", values,
                ", source kept ", kept, ", traffic ", traffic, ", adjoint is the move between duals ", duals);
}

void check_products(const Communicator& world, Found& found) {
  world.iall_reduce(std::span(found.products)).wait();
  for (std::size_t k = 0; k < found.names.size(); ++k) {
    const double forward = found.products[2 * k], adjoint = found.products[2 * k + 1];
    if (forward != adjoint) FAIL_CHECK("<Fx,y> = ", forward, " but <x,F*y> = ", adjoint, ": ", found.names[k]);
  }
}

/// Every pair of layouts on every grid of `axes` axes.
template <int N> Found every_pair(const Communicator& world, int axes) {
  Random random(60 + static_cast<std::uint64_t>(N));
  Found found;
  const long layouts = test::number_of_layouts(N, axes);
  for (const auto& sizes : test::factorisations(world.size(), axes)) {
    const AnyGrid grid(world, sizes);
    for (long a = 0; a < layouts; ++a)
      for (long b = 0; b < layouts; ++b) check_pair<N>(grid, a, b, random, found);
  }
  check_products(world, found);
  return found;
}

/// `count` random pairs on every grid of `axes` axes; seven in eight are legal.
template <int N> Found random_pairs(const Communicator& world, int axes, int count) {
  Random random(70 + static_cast<std::uint64_t>(N));
  Found found;
  const long layouts = test::number_of_layouts(N, axes);
  for (const auto& sizes : test::factorisations(world.size(), axes)) {
    const AnyGrid grid(world, sizes);
    for (int k = 0; k < count; ++k) {
      long a = 0, b = 0;
      do {
        a = random.in(0, layouts - 1), b = random.in(0, layouts - 1);
      } while (!movable(test::layout_number<N>(a, axes), test::layout_number<N>(b, axes)) && !random.one_in(8));
      check_pair<N>(grid, a, b, random, found);
    }
  }
  check_products(world, found);
  return found;
}

/// Counts once per world, not once per rank.
class Total {
public:
  void add(const Communicator& world, const Found& found) {
    if (world.rank() == 0) legal_ += found.legal, forbidden_ += found.forbidden;
  }
  ~Total() {
    if (legal_ > 0) MESSAGE(legal_.load(), " legal and ", forbidden_.load(), " forbidden pairs");
  }

private:
  std::atomic<long> legal_ = 0, forbidden_ = 0;
};

} // namespace

TEST_CASE("every pair of layouts of tensors of rank 1 to 5 on grids of one axis") {
  Total total;
  on_ranks([&](const Communicator& world) {
    total.add(world, every_pair<1>(world, 1));
    total.add(world, every_pair<2>(world, 1));
    total.add(world, every_pair<3>(world, 1));
    total.add(world, every_pair<4>(world, 1));
    total.add(world, every_pair<5>(world, 1));
  });
}

TEST_CASE("every pair of layouts of tensors of rank 1 to 3 on every grid of two axes") {
  Total total;
  on_ranks([&](const Communicator& world) {
    total.add(world, every_pair<1>(world, 2));
    total.add(world, every_pair<2>(world, 2));
    total.add(world, every_pair<3>(world, 2));
  });
}

TEST_CASE("every pair of layouts of tensors of rank 5 on grids of two axes") {
  Total total;
  on_ranks({4}, [&](const Communicator& world) { total.add(world, every_pair<5>(world, 2)); });
}

TEST_CASE("random pairs of layouts on every grid of two, three and four axes") {
  Total total;
  on_ranks([&](const Communicator& world) {
    total.add(world, random_pairs<4>(world, 2, 50));
    total.add(world, random_pairs<1>(world, 3, 20));
    total.add(world, random_pairs<2>(world, 3, 30));
    total.add(world, random_pairs<3>(world, 3, 40));
    total.add(world, random_pairs<4>(world, 3, 50));
    total.add(world, random_pairs<5>(world, 3, 50));
    total.add(world, random_pairs<1>(world, 4, 15));
    total.add(world, random_pairs<2>(world, 4, 20));
    total.add(world, random_pairs<3>(world, 4, 30));
    total.add(world, random_pairs<4>(world, 4, 40));
    total.add(world, random_pairs<5>(world, 4, 50));
  });
}

TEST_CASE(
    "moves_nothing: with boundaries that fit into each other no message is sent, on any grid, in either direction") {
  std::atomic<long> local = 0;
  on_ranks([&](const Communicator& world) {
    Random random(81);
    for (int axes = 1; axes <= 3; ++axes)
      for (const auto& sizes : test::factorisations(world.size(), axes)) {
        const AnyGrid grid(world, sizes);
        const long layouts = test::number_of_layouts(3, axes);
        for (long p = 0; p < layouts; ++p)
          for (long q = 0; q < layouts; ++q) {
            const Layout a = test::layout_number<3>(p, axes), b = test::layout_number<3>(q, axes);
            if (!moves_nothing(a, b) || (axes == 3 && !random.one_in(5))) continue;
            // Of the two partitions of each dim, the finer is random and the coarser merges its blocks.
            Extents<3> e{{4, 5, 6}};
            std::array<Partition, 3> of_a, of_b;
            for (int k = 0; k < 3; ++k) {
              const auto i = static_cast<std::size_t>(k);
              const int parts_a = Map<3>::parts_of(a, grid.shape(), k), parts_b = Map<3>::parts_of(b, grid.shape(), k);
              const int fine = std::max(parts_a, parts_b), coarse = std::min(parts_a, parts_b);
              if (fine % coarse != 0) { // one axis lets go of the dim and another takes it: any boundaries
                of_a[i] = test::random_partition(random, e[k], parts_a);
                of_b[i] = test::random_partition(random, e[k], parts_b);
                continue;
              }
              const Partition finer = test::random_partition(random, e[k], fine);
              std::vector<long> merged(static_cast<std::size_t>(coarse), 0);
              for (int block = 0; block < fine; ++block)
                merged[static_cast<std::size_t>(block / (fine / coarse))] += finer[block].size();
              of_a[i] = parts_a == fine ? finer : Partition::from_sizes(merged);
              of_b[i] = parts_b == fine ? finer : Partition::from_sizes(merged);
            }
            const Map<3> from(a, grid.shape(), e, of_a), to(b, grid.shape(), e, of_b);
            Tensor<double, 3> x(grid, from), y(grid, to);
            const Oracle<3> oracle{from, to};
            fill(x, [&](const Index<3>& i) { return oracle.before(i, grid.shape().coords(grid.rank())); });
            const comm::Counters before = world.counters();
            redistribute(x, y);
            bool right = world.counters() == before;
            for_each_index(y.box(), [&](const Index<3>& i) {
              right = right && y.view()[i - y.box().lo] == oracle.after(i, grid.shape().coords(grid.rank()));
            });
            CHECK_MESSAGE(right, a.str(), " to ", b.str(), " on ", grid.shape().str());
            if (world.rank() == 0) ++local;
          }
      }
  });
  MESSAGE(local.load(), " pairs");
}

TEST_CASE("adjoint: <Fx, y> = <x, F*y> to 1e-12 for numbers that are not whole") {
  on_ranks([](const Communicator& world) {
    Random random(82);
    for (const auto& sizes : test::factorisations(world.size(), 3)) {
      const AnyGrid grid(world, sizes);
      for (int round = 0; round < 20; ++round) {
        Layout a, b;
        do {
          a = test::layout_number<5>(random.in(0, 342), 3), b = test::layout_number<5>(random.in(0, 342), 3);
        } while (!movable(a, b));
        const Extents<5> e{{random.in(1, 3), random.in(1, 3), random.in(1, 5), random.in(1, 5), random.in(1, 5)}};
        const Map<5> from = test::random_map(random, a, grid.shape(), e),
                     to = test::random_map(random, b, grid.shape(), e);
        Tensor<double, 5> x(grid, from), fx(grid, to), y(grid, to), fy(grid, from);
        Random local(static_cast<std::uint64_t>(1000 * round + world.rank()));
        const auto real = [&](const Index<5>&) { return local.real(); };
        fill(x, real), fill(y, real);
        Redistribution<double, 5> r(grid, from, to);
        r.run(x, fx);
        r.run_adjoint(y, fy);
        std::array<double, 4> sums{dot(fx, y), dot(x, fy), dot(fx, fx) + dot(x, x), dot(y, y) + dot(fy, fy)};
        world.iall_reduce(std::span<double>(sums)).wait();
        CHECK_MESSAGE(std::abs(sums[0] - sums[1]) <= 1e-12 * std::sqrt(sums[2] * sums[3]), a.str(), " to ", b.str(),
                      " on ", grid.shape().str(), ": ", sums[0], " and ", sums[1]);
      }
    }
  });
}

namespace {

template <class T, int N, Layout From, Layout To>
void check_assignment(const Grid<From.axes>& grid, const Extents<N>& e, std::array<Partition, N> boundaries) {
  DistTensor<T, N, From> y(grid, e);
  const auto value = [&](const Index<N>& i) { return static_cast<T>(test::linear(i, e)); };
  fill(y, value);
  const std::vector<T> all = gather(y);

  DistTensor<T, N, To> z(grid, e, boundaries), fresh, moved_from(grid, e);
  const auto elsewhere = std::move(moved_from);
  z = y;
  fresh = y;
  moved_from = y; // NOLINT(bugprone-use-after-move): the target of an assignment may be anything
  const bool right = gather(z) == all && gather(fresh) == all && gather(moved_from) == all &&
                     z.map().partitions() == boundaries && fresh.map() == Map<N>(To, grid.shape(), e);
  CHECK_MESSAGE(right, From.str(), " to ", To.str(), " on ", grid.shape().str(), ", rank ", grid.rank());
}

} // namespace

TEST_CASE("z = y redistributes into z's own boundaries; an empty z takes y's grid and extents") {
  on_ranks({1, 2, 4, 6, 8}, [](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 2)) {
      const Grid<2> grid(world, {sizes[0], sizes[1]});
      const Extents<5> e{{4, 3, 5, 4, 2}};
      Random random(83);
      const auto cut = [&](const Layout& to) {
        std::array<Partition, 5> p;
        for (int k = 0; k < 5; ++k)
          p[static_cast<std::size_t>(k)] = test::random_partition(random, e[k], Map<5>::parts_of(to, grid.shape(), k));
        return p;
      };
      check_assignment<float, 5, place(n, d), place(n, n)>(grid, e, cut(place(n, n)));
      check_assignment<float, 5, place(n, n), place(d, w)>(grid, e, cut(place(d, w)));
      check_assignment<double, 5, place(n, d), place(rep, rep)>(grid, e, cut(place(rep, rep)));
      check_assignment<double, 5, place(rep, rep), place(h, c)>(grid, e, cut(place(h, c)));
      check_assignment<double, 5, place(sum, d), place(n, rep)>(grid, e, cut(place(n, rep)));
      check_assignment<float, 5, place(sum, sum), place(rep, rep)>(grid, e, cut(place(rep, rep)));
      check_assignment<float, 5, place(sum, sum), place(d, d)>(grid, e, cut(place(d, d)));
      check_assignment<std::int32_t, 5, place(sum, d), place(d, sum)>(grid, e, cut(place(d, sum)));
      check_assignment<std::int16_t, 5, place(n, d), place(w, rep)>(grid, e, cut(place(w, rep)));
      check_assignment<std::uint8_t, 5, place(d, d), place(n, c)>(grid, e, cut(place(n, c)));
    }
    const Grid<1> line(world, {fit});
    check_assignment<double, 3, place(d), place(w)>(line, {{5, 4, 9}},
                                                    {Partition(5), Partition(4), Partition::balanced(9, world.size())});
    check_assignment<std::int64_t, 1, place(c), place(rep)>(line, {{7}}, {Partition(7)});
  });
}

TEST_CASE("z = y between tensors of one layout copies, boundaries too") {
  on_ranks({2}, [](const Communicator& world) {
    const Grid<1> grid(world, {2});
    DistTensor<float, 2, place(n)> y(grid, {{5, 2}}, {Partition::from_sizes({1, 4}), Partition(2)}), z(grid, {{3, 3}});
    fill(y, [](const Index<2>& i) { return 10 * i[0] + i[1]; });
    z = y;
    CHECK(z.map() == y.map());
    CHECK(gather(z) == gather(y));
    y.view()(0, 0) = -1;
    CHECK(z.view()(0, 0) != -1);
  });
}

TEST_CASE("refusals have the same text on every rank and come before any message") {
  on_ranks({4}, [](const Communicator& world) {
    const AnyGrid grid(world, {2, 2}), other(world, {4, 1});
    const Extents<2> e{{4, 4}};
    const Map<2> nd(place(n, c), grid.shape(), e), replicas(place(n, rep), grid.shape(), e),
        sums(place(n, sum), grid.shape(), e);
    const Map<2> smaller(place(c, n), grid.shape(), {{4, 3}}), elsewhere(place(c, n), other.shape(), e);
    const comm::Counters before = world.counters();
    const auto told = [&](const Map<2>& from, const Map<2>& to) {
      std::string text;
      try {
        Redistribution<double, 2>(grid, from, to);
      } catch (const usage_error& error) { text = error.what(); }
      return text;
    };
    const std::vector<std::string> texts{told(replicas, sums), told(nd, smaller), told(nd, elsewhere),
                                         told(elsewhere, nd), told(nd, Map<2>(place(n), test::shape_of({2}), e))};
    CHECK(world.counters() == before);
    CHECK(texts[0].starts_with(
        "redistribution: from place(n,rep) to place(n,sum): a replicated axis cannot become a pending "
        "sum"));
    CHECK(texts[0].find("split it or keep it replicated") != std::string::npos);
    CHECK(texts[1].starts_with("redistribution: from extents 4x4 to 4x3; the global extents must be equal"));
    CHECK(texts[2].starts_with("redistribution: from a tensor on a grid 2x2 to one on 4x1 over the grid 2x2"));
    CHECK(texts[3].starts_with("redistribution: from a tensor on a grid 4x1 to one on 2x2"));
    CHECK(texts[4].starts_with("redistribution: from place(n,c) to place(n): they place 2 and 1 grid axes"));
    for (const std::string& text : texts) test::all_throw<usage_error>(world, [&] { throw usage_error(text); });

    Redistribution<double, 2> r(grid, nd, replicas);
    Tensor<double, 2> x(grid, nd), y(grid, replicas), z(grid, Map<2>(place(rep, n), grid.shape(), e));
    const std::string wrong = test::all_throw<usage_error>(world, [&] { r.run(x, z); });
    CHECK_MESSAGE(wrong.starts_with("redistribution: planned for place(n,c) 4x4 -> place(n,rep) but called with "
                                    "place(n,c) 4x4 -> place(rep,n) 4x4"),
                  wrong);
    test::all_throw<usage_error>(world, [&] { r.run(y, x); });
    test::all_throw<usage_error>(world, [&] { r.run_adjoint(x, y); });
    Redistribution<double, 2> same(grid, nd, nd);
    CHECK(test::all_throw<usage_error>(world, [&] { same.run(x, x); }).find("the source is the target") !=
          std::string::npos);
    CHECK(test::all_throw<usage_error>(world, [&] {
            Redistribution<std::int16_t, 2>(grid, Map<2>(place(n, sum), grid.shape(), e), replicas);
          }).find("pending sums of small integers overflow; use elements of 4 or 8 bytes") != std::string::npos);
  });
}

TEST_CASE("the second run of a redistribution and of its adjoint allocates no buffer") {
  on_ranks({1, 4, 8}, [](const Communicator& world) {
    for (const auto& sizes : test::factorisations(world.size(), 2)) {
      const AnyGrid grid(world, sizes);
      for (const auto& [a, b] :
           {std::pair{place(n, d), place(w, n)}, {place(sum, d), place(rep, h)}, {place(sum, sum), place(d, w)}}) {
        const Extents<5> e{{3, 2, 5, 4, 6}};
        const Map<5> from(a, grid.shape(), e), to(b, grid.shape(), e);
        Tensor<float, 5> x(grid, from), y(grid, to);
        Redistribution<float, 5> r(grid, from, to);
        r.run(x, y), r.run_adjoint(y, x);
        world.barrier(); // the counter belongs to the process, which may hold many ranks
        const auto before = allocation_counter().allocations.load();
        world.barrier();
        r.run(x, y), r.run_adjoint(y, x), r.run(x, y);
        world.barrier();
        CHECK(allocation_counter().allocations == before);
        world.barrier();
      }
    }
  });
}
