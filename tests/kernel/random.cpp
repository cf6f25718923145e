// Counter-based random numbers: the published vectors, statistics, and dropout masks that do not know their grid.
#include "operands.hpp"

#include <tessera/kernel/random.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::philox, kernel::PhiloxWords;

// Known-answer vectors of Random123 (Salmon et al. 2011), file kat_vectors, philox4x32 with 10 rounds.
static_assert(philox({0, 0, 0, 0}, {0, 0}) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) == PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST_CASE("the published vectors at run time") {
  volatile std::uint32_t zero = 0;
  CHECK(philox({zero, 0, 0, 0}, {0, 0}) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
}

TEST_CASE("sequences differ by seed, stream and step, and words by index") {
  const auto key = kernel::random_key(7, 3, 5);
  CHECK(key == kernel::random_key(7, 3, 5));
  for (const auto& other : {kernel::random_key(8, 3, 5), kernel::random_key(7, 4, 5), kernel::random_key(7, 3, 6),
                            kernel::random_key(7 + (1ULL << 32), 3, 5), kernel::random_key(7, 5, 3)})
    CHECK(key != other);
  for (std::uint64_t i = 0; i < 8; ++i) CHECK(kernel::random_word(key, i) == kernel::random_words(key, i / 4)[i % 4]);
  CHECK(kernel::random_word(key, 1) != kernel::random_word(key, (1ULL << 40) + 1));
}

TEST_CASE("uniform numbers stay in [0, 1) and have the moments they should") {
  static_assert(kernel::uniform(0) == 0.F && kernel::uniform(~0U) < 1.F && kernel::uniform(0x80000000) == 0.5F);
  const auto key = kernel::random_key(1, 2);
  constexpr int count = 200000;
  double sum = 0, squares = 0, normals = 0, normal_squares = 0, neighbours = 0, last = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(kernel::uniform(kernel::random_word(key, i))), z = kernel::normal(key, i);
    sum += u, squares += u * u, normals += z, normal_squares += z * z, neighbours += z * last;
    last = z;
  }
  // Five standard errors each.
  CHECK(std::abs(sum / count - 0.5) < 5 * std::sqrt(1.0 / 12 / count));
  CHECK(std::abs(squares / count - 1.0 / 3) < 5 * std::sqrt(4.0 / 45 / count));
  CHECK(std::abs(normals / count) < 5 / std::sqrt(count));
  CHECK(std::abs(normal_squares / count - 1) < 5 * std::sqrt(2.0 / count));
  CHECK(std::abs(neighbours / count) < 5 / std::sqrt(count));
}

TEST_CASE("dropout: a block has the mask of the whole, samples differ, the rate and the mean are right") {
  const Extents<5> e{{2, 4, 8, 8, 8}};
  constexpr double keep = 0.8;
  Block<float> x(e), y(e), part(e);
  fill_block(x.view, 1.F);
  kernel::dropout<float>(x.view, y.view, {}, e, keep, 7, 3, 11);
  for (const Index<5>& blocks :
       {Index<5>{{2, 1, 1, 1, 1}}, Index<5>{{1, 1, 2, 1, 1}}, Index<5>{{1, 2, 2, 4, 2}}, Index<5>{{1, 1, 1, 1, 8}}}) {
    fill_block(part.view, -1.F);
    for_each_index(whole(blocks), [&](const Index<5>& b) {
      Box<5> box;
      for (int k = 0; k < 5; ++k) box.lo[k] = b[k] * e[k] / blocks[k], box.hi[k] = (b[k] + 1) * e[k] / blocks[k];
      kernel::dropout<float>(x.view.box(box), part.view.box(box), box.lo, e, keep, 7, 3, 11);
    });
    CHECK(part.memory == y.memory);
  }
  double sum = 0;
  long kept = 0, same = 0;
  for_each_index(whole(e), [&](const Index<5>& i) {
    const float v = y.view[i];
    if (v != 0.F && v != 1.25F) FAIL_CHECK("dropout made ", v);
    sum += static_cast<double>(v);
    kept += v != 0.F;
    same += v == y.view(1 - i[0], i[1], i[2], i[3], i[4]);
  });
  const double count = double(product(e));
  CHECK(std::abs(double(kept) / count - keep) < 5 * std::sqrt(keep * (1 - keep) / count));
  CHECK(double(same) < 0.75 * count); // 0.68 for independent masks
  Block<float> other(e);
  for (const int what : {0, 1, 2}) {
    kernel::dropout<float>(x.view, other.view, {}, e, keep, what == 0 ? 8 : 7, what == 1 ? 4 : 3, what == 2 ? 12 : 11);
    CHECK(other.memory != y.memory);
  }
}

TEST_CASE("dropout: forward and backward have one mask, keep 1 keeps all, in place works, nonsense is refused") {
  Random random(601);
  const Extents<5> e{{1, 5, 2, 3, 7}};
  Block<float> x(e, Gaps::everywhere, random), y(e, Gaps::everywhere, random), g(e);
  x.randomise(random);
  fill_block(g.view, 2.F);
  kernel::dropout<float>(x.view, y.view, {}, e, 0.5, 1, 2, 3);
  kernel::dropout<float>(g.view, g.view, {}, e, 0.5, 1, 2, 3);
  for_each_index(whole(e), [&](const Index<5>& i) { CHECK(y.view[i] == x.view[i] * g.view[i] / 2); });
  kernel::dropout<float>(x.view, y.view, {}, e, 1, 1, 2, 3);
  for_each_index(whole(e), [&](const Index<5>& i) { CHECK(y.view[i] == x.view[i]); });
  CHECK_THROWS_AS(kernel::dropout<float>(x.view, y.view, {}, e, 0, 1, 2, 3), usage_error);
  CHECK_THROWS_AS(kernel::dropout<float>(x.view, g.view, {{0, 0, 0, 0, 1}}, e, 0.5, 1, 2, 3), usage_error);
}
