#include "files.hpp"

#include <set>
#include <tessera/io/augment.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {
/// Every rank holds its block of a volume of known values, applies every symmetry in turn and finds, in its block of
/// the result, the values of the whole volume at the indices that the symmetry says. Also counts what moved.
template <class T>
void check_grid(const Communicator& c, const Extents<3>& e, const Index<3>& grid, int symmetries, long channels = 2) {
  std::vector<Box<4>> boxes;
  for (int r = 0; r < c.size(); ++r) boxes.push_back(block(channels, e, grid, r));
  const Box<4> mine = boxes[static_cast<std::size_t>(c.rank())];
  std::vector<T> source(static_cast<std::size_t>(mine.volume())), target(source.size());
  const View<T, 4> x(source.data(), mine.extents()), y(target.data(), mine.extents());
  for_each_index(mine, [&](const Index<4>& i) { x[i - mine.lo] = static_cast<T>(voxel(3, i)); });
  const Box<3> space = io::detail::spatial(mine);
  for (int n = 0; n < symmetries; ++n) {
    const Symmetry s = Symmetry::number(n);
    std::fill(target.begin(), target.end(), T(-1));
    const comm::Counters before = c.counters();
    augment<T>(c, boxes, s, e, x, y);
    const comm::Counters sent = c.counters() - before;
    long wrong = 0, away = 0;
    for_each_index(mine, [&](const Index<4>& i) {
      const Index<3> j = s.apply(Index<3>{{i[1], i[2], i[3]}}, e);
      wrong += y[i - mine.lo] != static_cast<T>(voxel(3, {{i[0], j[0], j[1], j[2]}}));
      away += !space.contains(j);
    });
    CHECK_MESSAGE(wrong == 0, "symmetry ", n, " of ", e.str(), " on ", grid.str());
    CHECK(c.all_reduce(sent.bytes) == c.all_reduce(static_cast<std::uint64_t>(away)) * sizeof(T));
  }
}
} // namespace

TEST_CASE("augment: what a flip, a transposition and a quarter turn do, by hand") {
  const Extents<3> e{{4, 4, 4}};
  CHECK(Symmetry::number(0) == Symmetry{});
  const Symmetry flip_d{{0, 1, 2}, {true, false, false}};
  CHECK(flip_d.apply(Index<3>{{0, 1, 2}}, e) == Index<3>{{3, 1, 2}});
  const Symmetry swap_dh{{1, 0, 2}, {}};
  CHECK(swap_dh.apply(Index<3>{{0, 1, 2}}, e) == Index<3>{{1, 0, 2}});
  // A quarter turn in the h,w plane: four of them are the identity, one is not.
  const Symmetry turn{{0, 2, 1}, {false, true, false}};
  CHECK(turn.apply(Index<3>{{0, 0, 1}}, e) == Index<3>{{0, 1, 3}});
  CHECK(then(turn, turn) == Symmetry{{0, 1, 2}, {false, true, true}});
  CHECK(then(then(turn, turn), then(turn, turn)) == Symmetry{});
  CHECK(flip_d.apply(Box<3>{{{0, 1, 1}}, {{1, 2, 4}}}, e) == Box<3>{{{3, 1, 1}}, {{4, 2, 4}}});
}

TEST_CASE("augment: the 48 symmetries are a group, and indices and boxes agree") {
  const Extents<3> e{{7, 7, 7}};
  const Index<3> probe{{0, 1, 2}}; // with the mirror images 6, 5, 4: no two symmetries send it to the same place
  const auto key = [](const Symmetry& s) {
    return std::array{s.perm[0], s.perm[1], s.perm[2], int(s.flip[0]), int(s.flip[1]), int(s.flip[2])};
  };
  std::set<std::array<int, 6>> all;
  for (int n = 0; n < 48; ++n) all.insert(key(Symmetry::number(n)));
  CHECK(all.size() == 48);
  std::set<std::array<long, 3>> images;
  for (int n = 0; n < 48; ++n) {
    const Index<3> j = Symmetry::number(n).apply(probe, e);
    images.insert({j[0], j[1], j[2]});
  }
  CHECK(images.size() == 48);
  for (int n = 0; n < 48; ++n) {
    const Symmetry a = Symmetry::number(n);
    CHECK(then(a, a.inverse()) == Symmetry{});
    CHECK(then(a.inverse(), a) == Symmetry{});
    CHECK(a.inverse().apply(a.apply(probe, e), e) == probe);
    const Box<3> b{{{0, 1, 2}}, {{2, 5, 3}}};
    Box<3> hulled{};
    for_each_index(b, [&](const Index<3>& i) {
      const Index<3> j = a.apply(i, e);
      hulled = hull(hulled, Box<3>{j, j + Index<3>{{1, 1, 1}}});
    });
    CHECK(a.apply(b, e) == hulled);
    for (int m = 0; m < 48; ++m) {
      const Symmetry z = Symmetry::number(m);
      CHECK(all.contains(key(then(a, z))));
      // First a, then z: result z at i is the a-result at z(i), which is the source at a(z(i)).
      CHECK(then(a, z).apply(probe, e) == a.apply(z.apply(probe, e), e));
    }
  }
}

TEST_CASE("augment: on every grid the result is that of the whole volume, and no more than needed moves") {
  on_ranks([](const Communicator& c) {
    const long p = c.size();
    std::vector<Index<3>> grids;
    for (long d = 1; d <= p; ++d)
      for (long h = 1; h <= p; ++h)
        if (p % (d * h) == 0) grids.push_back({{d, h, p / (d * h)}});
    for (const auto& grid : grids) {
      check_grid<float>(c, {{6, 6, 6}}, grid, 48);
      check_grid<std::int16_t>(c, {{5, 5, 5}}, grid, 48); // uneven, and empty ranks where there are more than five
      check_grid<std::int16_t>(c, {{4, 5, 7}}, grid, 8);
      for (const long channels : {1L, 3L, 4L, 8L}) check_grid<std::int16_t>(c, {{3, 3, 3}}, grid, 48, channels);
    }
  });
}

TEST_CASE("augment: symmetries are drawn evenly, by seed, epoch and sample alone") {
  std::array<int, 48> count{};
  constexpr int n = 48000;
  for (int k = 0; k < n; ++k) {
    const Symmetry s = Symmetry::draw(7, std::uint64_t(k % 10), std::uint64_t(k / 10), {{8, 8, 8}});
    CHECK_UNARY(s == Symmetry::draw(7, std::uint64_t(k % 10), std::uint64_t(k / 10), {{8, 8, 8}}));
    for (int m = 0; m < 48; ++m) count[static_cast<std::size_t>(m)] += s == Symmetry::number(m);
  }
  double chi2 = 0;
  for (const int c : count) chi2 += (c - 1000.0) * (c - 1000.0) / 1000.0;
  CHECK(chi2 < 95); // 47 degrees of freedom: a chance of 5e-5
  for (std::uint64_t k = 0; k < 100; ++k) {
    const Symmetry s = Symmetry::draw(1, 0, k, {{8, 8, 4}});
    CHECK(s.perm == std::array{0, 1, 2});
  }
}

TEST_CASE("augment: a permutation that would change the extents is refused on all ranks") {
  on_ranks({1, 2}, [](const Communicator& c) {
    std::vector<Box<4>> boxes;
    for (int r = 0; r < c.size(); ++r) boxes.push_back(block(1, {{4, 2, 2}}, {{c.size(), 1, 1}}, r));
    const Extents<4> e = boxes[static_cast<std::size_t>(c.rank())].extents();
    std::vector<float> v(static_cast<std::size_t>(product(e)));
    const View<float, 4> x(v.data(), e);
    all_throw<usage_error>(c, [&] { augment<float>(c, boxes, Symmetry{{1, 0, 2}, {}}, {{4, 2, 2}}, x, x); });
  });
}
