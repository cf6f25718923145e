// copy_block, add_block and fill_block on random strided views against element loops.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>
#include <tessera/base/copy.hpp>

using namespace tessera;

namespace {

/// A view of given extents somewhere in memory: dims in any memory order, with gaps between and around them.
template <class T, int N> struct Strided {
  std::vector<T> memory;
  View<T, N> view;

  Strided(test::Random& random, const Extents<N>& e) {
    std::array<int, N> order;
    for (int k = 0; k < N; ++k) order[static_cast<std::size_t>(k)] = k;
    if (random.one_in(2)) // else logical order, where dims can merge
      for (int k = N - 1; k > 0; --k)
        std::swap(order[static_cast<std::size_t>(k)], order[static_cast<std::size_t>(random.pick(0, k))]);
    Index<N> strides{};
    long step = random.one_in(4) ? 2 : 1;
    for (int k = N - 1; k >= 0; --k) {
      const int dim = order[static_cast<std::size_t>(k)];
      strides[dim] = step;
      step *= std::max(1L, e[dim]) + (random.one_in(3) ? random.in(1, 2) : 0);
    }
    const long before = random.in(0, 3);
    memory.resize(static_cast<std::size_t>(before + step + 3));
    for (T& x : memory) x = static_cast<T>(random.in(-100, 100));
    view = View<T, N>(memory.data() + before, e, strides);
  }
};

template <class T, int N> void sweep(test::Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Extents<N> e;
    for (int k = 0; k < N; ++k) e[k] = random.one_in(30) ? 0 : random.in(1, 4);
    Strided<T, N> a(random, e), b(random, e);
    INFO("rank ", N, ", extents ", e.str(), ", strides ", a.view.strides.str(), " and ", b.view.strides.str());
    const std::vector<T> source = a.memory;
    std::vector<T> expected = b.memory;
    const auto in_expected = [&](const Index<N>& i) -> T& {
      return expected[static_cast<std::size_t>(&b.view[i] - b.memory.data())];
    };
    for_each_index(whole(e), [&](const Index<N>& i) { in_expected(i) = a.view[i]; });
    copy_block(a.view, b.view);
    REQUIRE(b.memory == expected); // gaps included
    for_each_index(whole(e), [&](const Index<N>& i) { in_expected(i) = static_cast<T>(in_expected(i) + a.view[i]); });
    add_block(View<const T, N>(a.view), b.view);
    REQUIRE(b.memory == expected);
    for_each_index(whole(e), [&](const Index<N>& i) { in_expected(i) = 7; });
    fill_block(b.view, 7);
    REQUIRE(b.memory == expected);
    REQUIRE(a.memory == source);
  }
}

} // namespace

TEST_CASE_TEMPLATE("copy, add and fill equal element loops; what lies between the elements is untouched", T, double,
                   float, std::int16_t, std::uint8_t) {
  constexpr std::uint64_t seed = 21;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  sweep<T, 1>(random, 300);
  sweep<T, 2>(random, 500);
  sweep<T, 3>(random, 700);
  sweep<T, 4>(random, 700);
  sweep<T, 5>(random, 700);
}

TEST_CASE("blocks that are contiguous in both views are one run") {
  std::vector<int> from(2 * 3 * 4 * 5), to(from.size());
  const View<int, 4> a(from.data(), {{3, 2, 4, 5}}), b(to.data(), {{3, 2, 4, 5}});
  int runs = 0;
  for_each_run(a, b, [&](int*, long sa, int*, long sb, long count) {
    ++runs;
    CHECK(sa == 1);
    CHECK(sb == 1);
    CHECK(count == 120);
  });
  CHECK(runs == 1);
  // One plane of the slowest dim (d) is one run too; a plane of w is a run of channels for every d and h.
  const auto count_runs = [&](const Box<4>& box) {
    runs = 0;
    for_each_run(a.box(box), b.box(box), [&](int*, long, int*, long, long) { ++runs; });
    return runs;
  };
  CHECK(count_runs({{{0, 1, 0, 0}}, {{3, 2, 4, 5}}}) == 1);
  CHECK(count_runs({{{0, 0, 0, 1}}, {{3, 2, 4, 3}}}) == 2 * 4);
}
