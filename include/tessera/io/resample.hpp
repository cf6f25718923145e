// io/resample.hpp: VolumePart, a box of a volume in plain memory, and resample(): the same space on another grid.
//
// Every target voxel takes the value of the source at its place in mm: trilinear between the 8 voxels around it for
// images, the nearest one for labels. A target box needs only the source box that needed_source() names, so every rank
// resamples its own box from its own part, to the last bit as one rank would the whole. Nothing is smoothed: to a much
// coarser grid, images alias.
//
// May know: base, affine.
// Example: VolumePart part{extents, needed_source(extents, affine, to, my_box), affine};  // read it, then
//          resample(part, to, my_box, Interpolation::trilinear, 0, view);
#pragma once

#include <algorithm>
#include <tessera/base/view.hpp>
#include <tessera/io/affine.hpp>
#include <vector>

namespace tessera::io {

enum class Interpolation : unsigned char { trilinear, nearest };

/// The box `box` (d,h,w) of a volume of `whole` voxels that lie as `affine` says.
struct VolumePart {
  Extents<3> whole{};
  Box<3> box{};
  Affine affine;
  std::vector<float> values = std::vector<float>(std::size_t(box.volume())); ///< row-major, w fastest

  View<float, 3> view() { return View<float, 3>(values.data(), box.extents()); }
  View<const float, 3> view() const { return View<const float, 3>(values.data(), box.extents()); }
};

/// A grid of voxels in space.
struct VoxelGrid {
  Extents<3> extents{}; ///< d,h,w
  Affine affine;

  /// The grid over the same space whose voxels are `spacing` mm along d, h and w. The outer faces of the two grids
  /// agree to within half a voxel; their centres agree.
  VoxelGrid respaced(const std::array<double, 3>& spacing) const {
    const auto now = affine.voxel();
    Extents<3> e;
    double factor[3], shift[3]; // of x,y,z
    for (int k = 0; k < 3; ++k) {
      const double want = spacing[std::size_t(k)], have = now[std::size_t(k)];
      TESSERA_REQUIRE(want > 0, "VoxelGrid: a spacing of ", want, " mm; it must be positive");
      e[k] = std::max(1L, std::lround(double(extents[k]) * have / want));
      factor[2 - k] = want / have;
      shift[2 - k] = (double(extents[k] - 1) - double(e[k] - 1) * factor[2 - k]) / 2;
    }
    return {e, scaled(factor, shift)};
  }
  /// The grid over the same space with these extents; the outer faces agree exactly.
  VoxelGrid reshaped(const Extents<3>& e) const {
    double factor[3], shift[3];
    for (int k = 0; k < 3; ++k) {
      TESSERA_REQUIRE(e[k] >= 1, "VoxelGrid: extents ", e, "; give at least one voxel a side");
      factor[2 - k] = double(extents[k]) / double(e[k]);
      shift[2 - k] = (factor[2 - k] - 1) / 2;
    }
    return {e, scaled(factor, shift)};
  }
  /// The part that begins at voxel `first` and has these extents; may reach beyond the grid.
  VoxelGrid part(const Index<3>& first, const Extents<3>& e) const { return {e, affine.from(first)}; }
  friend bool operator==(const VoxelGrid&, const VoxelGrid&) = default;

private:
  Affine scaled(const double (&factor)[3], const double (&shift)[3]) const {
    Affine s;
    for (int k = 0; k < 3; ++k) s.m[k][k] = factor[k], s.m[k][3] = shift[k];
    return affine * s;
  }
};

/// The source voxels that the target voxels `box` are made of.
inline Box<3> needed_source(const Extents<3>& source, const Affine& source_affine, const VoxelGrid& target,
                            const Box<3>& box) {
  if (box.empty()) return {};
  const Affine to_source = source_affine.inverse() * target.affine;
  Box<3> need;
  for (int k = 0; k < 3; ++k) {
    double least = 1e300, most = -1e300; // of an affine map, at the corners
    for (int corner = 0; corner < 8; ++corner) {
      Index<3> i;
      for (int j = 0; j < 3; ++j) i[j] = (corner >> j & 1) ? box.hi[j] - 1 : box.lo[j];
      const double at = to_source.at(i)[std::size_t(2 - k)];
      least = std::min(least, at), most = std::max(most, at);
    }
    // One voxel more on either side: rounding inside the box may differ from the corners'.
    const double n = double(source[k]);
    need.lo[k] = long(std::clamp(std::floor(least) - 1, 0.0, n));
    need.hi[k] = long(std::clamp(std::floor(most) + 3, 0.0, n));
  }
  return need.empty() ? Box<3>{} : need;
}

/// Fills `to`, the box `box` of the target grid. `part` holds what needed_source() names, or more. Beyond the outer
/// faces of the source volume the value is `outside`; between a face and the centres of its voxels theirs.
template <class T>
void resample(const VolumePart& part, const VoxelGrid& target, const Box<3>& box, Interpolation how, float outside,
              const View<T, 3>& to) {
  TESSERA_REQUIRE(to.extents == box.extents(), "resample: the box is ", box.extents(), ", the view ", to.extents);
  const Box<3> need = needed_source(part.whole, part.affine, target, box);
  TESSERA_REQUIRE(part.box.contains(need), "resample: the box ", box, " is made of the voxels ", need,
                  " of the source, but there are only ", part.box, "; read what needed_source() names");
  const Affine to_source = part.affine.inverse() * target.affine;
  const View<const float, 3> from = part.view();
  for_each_index(box, [&](const Index<3>& i) {
    const auto p = to_source.at(i);
    Index<3> low, high, near;
    double upper[3]; // weight of `high`
    bool inside = true;
    for (int k = 0; k < 3; ++k) {
      const double at = p[std::size_t(2 - k)], last = double(part.whole[k] - 1);
      inside = inside && at >= -0.5 && at <= last + 0.5;
      const double c = std::clamp(at, 0.0, last), f = std::floor(c);
      low[k] = long(f), high[k] = std::min(long(f) + 1, part.whole[k] - 1);
      near[k] = std::min(long(std::floor(c + 0.5)), part.whole[k] - 1);
      upper[k] = c - f;
    }
    double value = double(outside);
    if (inside && how == Interpolation::nearest) value = double(from[near - part.box.lo]);
    if (inside && how == Interpolation::trilinear) {
      value = 0;
      for (int corner = 0; corner < 8; ++corner) {
        double weight = 1;
        Index<3> at;
        for (int k = 0; k < 3; ++k) {
          const bool up = corner >> k & 1;
          at[k] = up ? high[k] : low[k];
          weight *= up ? upper[k] : 1 - upper[k];
        }
        if (weight > 0) value += weight * double(from[at - part.box.lo]);
      }
    }
    to[i - box.lo] = static_cast<T>(value);
  });
}

} // namespace tessera::io
