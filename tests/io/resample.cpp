// Affines, orientations and resampling: by hand, linear fields that trilinear interpolation keeps, parts equal the
// whole.
#include "support/sweep.hpp"

#include <doctest/doctest.h>
#include <tessera/io/resample.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {

VolumePart whole_volume(const Extents<3>& e, const Affine& a = {}) { return {e, whole(e), a}; }
template <class T>
std::vector<T> sampled(const VolumePart& v, const VoxelGrid& to, Interpolation how, float outside = -1) {
  std::vector<T> out(std::size_t(product(to.extents)));
  resample(v, to, whole(to.extents), how, outside, View<T, 3>(out.data(), to.extents));
  return out;
}
/// Rotated, sheared and scaled.
const Affine oblique{{{0.9, -0.2, 0.1, 3}, {0.25, 1.1, -0.3, -8}, {0.05, 0.3, 1.4, 21}}};

} // namespace

TEST_CASE("affine: inverse, product, spacing") {
  const Affine one = oblique * oblique.inverse();
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) CHECK(std::abs(one.m[r][c] - (r == c ? 1 : 0)) < 1e-14);
  const auto p = oblique.at({{2, 3, 4}});
  CHECK(std::abs(p[0] - (0.9 * 4 - 0.2 * 3 + 0.1 * 2 + 3)) < 1e-14);
  CHECK(std::abs(p[2] - (0.05 * 4 + 0.3 * 3 + 1.4 * 2 + 21)) < 1e-14);
  CHECK(Affine{{{2, 0, 0, 0}, {0, 0, 4, 0}, {0, 3, 0, 0}}}.voxel() == std::array<double, 3>{4, 3, 2});
  CHECK(oblique.from({{2, 3, 4}}).at({{-2, -3, -4}}) == oblique.at({{0, 0, 0}}));
  CHECK_THROWS_AS((Affine{{{1, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 0, 0}}}.inverse()), usage_error);
  CHECK(orientation_of(oblique) == Orientation{});
  CHECK(orientation_of(Affine{{{0, 0, 3, 0}, {-2, 0.1, 0, 0}, {0, -2, 0.5, 0}}}) ==
        Orientation{{1, 2, 0}, {true, true, false}});
}

TEST_CASE("resample: by hand") {
  VolumePart v = whole_volume({{1, 1, 4}});
  v.values = {0, 10, 20, 60};
  const VoxelGrid grid{v.whole, v.affine};
  // Twice as fine: centres at -0.25, 0.25, 0.75, ...; beyond the outer centres the outer values.
  const auto fine = grid.respaced({1, 1, 0.5});
  CHECK(fine.extents == Extents<3>{{1, 1, 8}});
  CHECK(fine.affine.at({{0, 0, 0}}) == std::array<double, 3>{-0.25, 0, 0});
  CHECK(sampled<float>(v, fine, Interpolation::trilinear) ==
        std::vector<float>{0, 2.5F, 7.5F, 12.5F, 17.5F, 30, 50, 60});
  CHECK(sampled<float>(v, fine, Interpolation::nearest) == std::vector<float>{0, 0, 10, 10, 20, 20, 60, 60});
  // Half as fine: centres at 0.5 and 2.5.
  CHECK(sampled<float>(v, grid.reshaped({{1, 1, 2}}), Interpolation::trilinear) == std::vector<float>{5, 40});
  // Beyond the faces.
  CHECK(sampled<float>(v, grid.part({{0, 0, -1}}, {{1, 1, 6}}), Interpolation::trilinear) ==
        std::vector<float>{-1, 0, 10, 20, 60, -1});
  CHECK(sampled<std::uint8_t>(v, grid.part({{0, 0, 3}}, {{1, 2, 2}}), Interpolation::nearest, 9) ==
        std::vector<std::uint8_t>{60, 9, 9, 9});
  // 181 voxels of 1 mm at 2 mm: 91, the centres agree.
  const auto head = VoxelGrid{{{181, 217, 181}}, {}}.respaced({2, 2, 2});
  CHECK(head.extents == Extents<3>{{91, 109, 91}}); // 90.5 and 108.5 are rounded up
  CHECK(head.affine.at({{45, 54, 45}}) == std::array<double, 3>{90, 108, 90});
}

TEST_CASE("resample: a linear field stays what it is, on any grid in the same space") {
  VolumePart v = whole_volume({{9, 8, 7}}, oblique);
  const auto field = [](const std::array<double, 3>& p) { return 3 + 2 * p[0] - p[1] + 0.5 * p[2]; };
  for_each_index(v.box, [&](const Index<3>& i) { v.view()[i] = float(field(oblique.at(i))); });
  // Inside the source: around its middle.
  Affine a{{{-0.3, 0.1, 0, 0}, {0, 0.2, 0.3, 0}, {0.1, 0.4, -0.2, 0}}};
  const auto middle = oblique.at({{4, 4, 3}}), low = a.at({{2, 2, 2}});
  for (std::size_t r = 0; r < 3; ++r) a.m[r][3] = middle[r] - low[r];
  const VoxelGrid to{{{5, 4, 5}}, a};
  const auto got = sampled<float>(v, to, Interpolation::trilinear, 1e6F);
  std::size_t k = 0;
  for_each_index(whole(to.extents),
                 [&](const Index<3>& i) { CHECK(std::abs(double(got[k++]) - field(a.at(i))) < 1e-5); });
}

TEST_CASE("resample: boxes from parts equal the whole to the last bit") {
  Random random(7);
  const Extents<3> e{{11, 13, 9}};
  VolumePart v = whole_volume(e, oblique);
  for (float& x : v.values) x = float(random.real());
  for (int trial = 0; trial < 60; ++trial) {
    Affine a;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) a.m[r][c] = c == 3 ? 4 * random.real() : random.real() + (r == c ? 1.2 : 0);
    const VoxelGrid to{{{random.in(1, 9), random.in(1, 9), random.in(1, 9)}}, oblique * a};
    const Interpolation how = trial % 2 ? Interpolation::nearest : Interpolation::trilinear;
    const auto all = sampled<float>(v, to, how);
    Box<3> box;
    for (int k = 0; k < 3; ++k)
      box.lo[k] = random.in(0, to.extents[k] - 1), box.hi[k] = random.in(box.lo[k] + 1, to.extents[k]);
    VolumePart part{e, needed_source(e, oblique, to, box), oblique};
    for_each_index(part.box, [&](const Index<3>& i) { part.view()[i - part.box.lo] = v.view()[i]; });
    std::vector<float> mine(std::size_t(box.volume()));
    resample(part, to, box, how, -1.F, View<float, 3>(mine.data(), box.extents()));
    std::size_t k = 0;
    const View<const float, 3> want(all.data(), to.extents);
    for_each_index(box, [&](const Index<3>& i) { CHECK(mine[k++] == want[i]); });
    if (part.box.volume() > 0) {
      VolumePart less{e, part.box, oblique};
      less.box.hi[0] -= 1;
      CHECK_THROWS_AS(resample(less, to, box, how, -1.F, View<float, 3>(mine.data(), box.extents())), usage_error);
    }
  }
}
