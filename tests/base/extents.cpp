// Index, Box and View against element loops; texts.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>
#include <set>
#include <tessera/base/view.hpp>

using namespace tessera;

namespace {

Box<3> random_box(test::Random& random) {
  Box<3> b;
  for (int k = 0; k < 3; ++k) {
    b.lo[k] = random.in(-2, 4);
    b.hi[k] = random.in(-2, 5);
  }
  return b;
}

std::set<std::array<long, 3>> cells(const Box<3>& b) {
  std::set<std::array<long, 3>> all;
  for (long i = b.lo[0]; i < b.hi[0]; ++i)
    for (long j = b.lo[1]; j < b.hi[1]; ++j)
      for (long k = b.lo[2]; k < b.hi[2]; ++k) all.insert({i, j, k});
  return all;
}

} // namespace

TEST_CASE("Index: sums, differences, equality, product, text") {
  constexpr Index<3> a{{1, 2, 3}}, b{{10, 20, 30}};
  static_assert(a + b == Index<3>{{11, 22, 33}});
  static_assert(b - a == Index<3>{{9, 18, 27}});
  static_assert(product(b) == 6000);
  static_assert(product(Index<0>{}) == 1);
  CHECK(a.str() == "1x2x3");
  CHECK(Index<0>{}.str().empty());
  CHECK(Box<2>{{{-1, 2}}, {{4, 6}}}.str() == "[-1,4)x[2,6)");
}

TEST_CASE("Box: volume, contains, intersect, hull, shifted and for_each_index, against sets of cells") {
  constexpr std::uint64_t seed = 11;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  for (int round = 0; round < 3000; ++round) {
    const Box<3> a = random_box(random), b = random_box(random);
    const auto in_a = cells(a), in_b = cells(b);
    INFO(a.str(), " ", b.str());
    REQUIRE(a.volume() == static_cast<long>(in_a.size()));
    REQUIRE(a.empty() == in_a.empty());
    std::set<std::array<long, 3>> both;
    std::ranges::set_intersection(in_a, in_b, std::inserter(both, both.end()));
    REQUIRE(cells(intersect(a, b)) == both);
    REQUIRE(a.contains(b) == (both == in_b));

    const Box<3> h = hull(a, b);
    if (in_a.empty() && in_b.empty())
      REQUIRE(h.empty());
    else {
      std::array<long, 3> least{99, 99, 99}, most{-99, -99, -99};
      for (const auto* part : {&in_a, &in_b})
        for (const auto& c : *part)
          for (std::size_t k = 0; k < 3; ++k) least[k] = std::min(least[k], c[k]), most[k] = std::max(most[k], c[k]);
      for (std::size_t k = 0; k < 3; ++k) {
        REQUIRE(h.lo[static_cast<int>(k)] == least[k]);
        REQUIRE(h.hi[static_cast<int>(k)] == most[k] + 1);
      }
    }

    std::vector<std::array<long, 3>> visited;
    for_each_index(a, [&](const Index<3>& i) { visited.push_back({i[0], i[1], i[2]}); });
    REQUIRE(visited == std::vector<std::array<long, 3>>(in_a.begin(), in_a.end())); // sets are in row-major order
    for (const auto& c : in_b) REQUIRE(a.contains(Index<3>{{c[0], c[1], c[2]}}) == in_a.contains(c));
    const Box<3> moved = shifted(a, {{5, -3, 0}});
    REQUIRE(moved.volume() == a.volume());
    REQUIRE((a.empty() || moved.lo == Index<3>{{a.lo[0] + 5, a.lo[1] - 3, a.lo[2]}}));
  }
}

TEST_CASE("for_each_index of rank 0 visits the one index") {
  int visits = 0;
  for_each_index(whole(Extents<0>{}), [&](const Index<0>&) { ++visits; });
  CHECK(visits == 1);
}

TEST_CASE("dense strides: channels last for ranks 5 and 4, logical order for others") {
  static_assert(dense_strides<5>({{2, 3, 4, 5, 6}}) == Index<5>{{3 * 4 * 5 * 6, 1, 3 * 5 * 6, 3 * 6, 3}});
  static_assert(dense_strides<4>({{3, 4, 5, 6}}) == Index<4>{{1, 3 * 5 * 6, 3 * 6, 3}});
  static_assert(dense_strides<3>({{4, 5, 6}}) == Index<3>{{30, 6, 1}});
  static_assert(dense_strides<2>({{4, 5}}) == Index<2>{{5, 1}});
  static_assert(dense_strides<1>({{7}}) == Index<1>{{1}});
}

TEST_CASE("View: element addresses, boxes, constness") {
  std::vector<int> memory(2 * 3 * 4 * 5 * 6);
  const View<int, 5> v(memory.data(), {{2, 3, 4, 5, 6}});
  int next = 0;
  for (long n = 0; n < 2; ++n)
    for (long d = 0; d < 4; ++d)
      for (long h = 0; h < 5; ++h)
        for (long w = 0; w < 6; ++w)
          for (long c = 0; c < 3; ++c) v(n, c, d, h, w) = next++;
  for (std::size_t i = 0; i < memory.size(); ++i) REQUIRE(memory[i] == static_cast<int>(i));

  const View<const int, 5> part = v.box({{{1, 0, 1, 2, 3}}, {{2, 3, 3, 5, 4}}});
  CHECK(part.extents == Extents<5>{{1, 3, 2, 3, 1}});
  for_each_index(whole(part.extents),
                 [&](const Index<5>& i) { REQUIRE(&part[i] == &v(1 + i[0], i[1], 1 + i[2], 2 + i[3], 3 + i[4])); });
  // An empty part makes no address that lies outside the memory, not even from a null pointer.
  CHECK(v.box({{{900, 0, 0, 0, 0}}, {{900, 3, 4, 5, 6}}}).data == memory.data());
  CHECK(View<int, 5>{}.box({{{3, 3, 3, 3, 3}}, {{3, 3, 3, 3, 3}}}).data == nullptr);
}

TEST_CASE("dense() and dense_samples() say whether the addresses are those of a dense block") {
  constexpr std::uint64_t seed = 12;
  MESSAGE("seed ", seed);
  test::Random random(seed);
  std::vector<int> memory(4 * 4 * 4 * 4 * 4);
  int dense = 0, samples = 0;
  for (int round = 0; round < 4000; ++round) {
    Extents<5> e;
    Box<5> b;
    for (int k = 0; k < 5; ++k) {
      e[k] = random.in(1, 4);
      b.lo[k] = random.one_in(2) ? 0 : random.in(0, e[k] - 1);
      b.hi[k] = random.one_in(2) ? e[k] : random.in(b.lo[k] + 1, e[k]);
    }
    const View<int, 5> v = View<int, 5>(memory.data(), e).box(b);
    // In memory order every element must follow the one before.
    const auto follows = [](const View<int, 5>& x) {
      const int* expected = x.data;
      for (long n = 0; n < x.extents[0]; ++n)
        for (long d = 0; d < x.extents[2]; ++d)
          for (long h = 0; h < x.extents[3]; ++h)
            for (long w = 0; w < x.extents[4]; ++w)
              for (long c = 0; c < x.extents[1]; ++c)
                if (&x(n, c, d, h, w) != expected++) return false;
      return true;
    };
    bool each = true;
    for (long n = 0; n < v.extents[0]; ++n) {
      Box<5> one = whole(v.extents);
      one.lo[0] = n, one.hi[0] = n + 1;
      each = each && follows(v.box(one));
    }
    INFO(e.str(), " ", b.str());
    REQUIRE(v.dense() == follows(v));
    REQUIRE(dense_samples(v) == each);
    dense += v.dense(), samples += dense_samples(v);
  }
  CHECK(dense > 200);
  CHECK(samples > dense);
}

TEST_CASE("views are plain values; a writing view becomes a reading one, never the other way") {
  using Writing = View<float, 3>;
  using Reading = View<const float, 3>;
  static_assert(std::is_trivially_copyable_v<Writing> && std::is_trivially_copyable_v<Reading>);
  static_assert(std::is_copy_constructible_v<Writing> && std::is_copy_assignable_v<Writing>);
  static_assert(std::is_convertible_v<Writing, Reading> && !std::is_convertible_v<Reading, Writing>);
  static_assert(!std::is_convertible_v<View<double, 3>, Reading> && !std::is_convertible_v<View<float, 2>, Reading>);
}
