// io/affine.hpp: Affine, where the voxels of a volume lie in space, and Orientation, how its axes run.
//
// Space is in mm, x to the right, y to the front (anterior), z to the top (superior) of a patient. Volumes are indexed
// d,h,w here; their voxel (x,y,z), x fastest in memory, is (w,h,d). Canonical axes: w runs right, h forward, d up.
//
// May know: base.
// Example: const Orientation o = orientation_of(a);  const Affine c = canonical(a, o, extents);  c.at({{d, h, w}});
#pragma once

#include <array>
#include <cmath>
#include <tessera/base/error.hpp>
#include <tessera/base/extents.hpp>

namespace tessera::io {

/// How a volume's axes are indexed: as the file stores them, or turned so that w, h, d run right, forward, up.
enum class Axes : unsigned char { canonical, as_stored };

/// mm = m (x, y, z, 1).
struct Affine {
  double m[3][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};

  std::array<double, 3> operator()(double x, double y, double z) const {
    std::array<double, 3> p;
    for (std::size_t r = 0; r < 3; ++r) p[r] = m[r][0] * x + m[r][1] * y + m[r][2] * z + m[r][3];
    return p;
  }
  /// The place of voxel (d,h,w).
  std::array<double, 3> at(const Index<3>& i) const { return (*this)(double(i[2]), double(i[1]), double(i[0])); }
  /// The distance in mm from a voxel to the next along d, h, w.
  std::array<double, 3> voxel() const {
    std::array<double, 3> v;
    for (std::size_t k = 0; k < 3; ++k) v[2 - k] = std::hypot(m[0][k], m[1][k], m[2][k]);
    return v;
  }
  /// The same space, voxel `first` (d,h,w) counted as 0; `first` may lie anywhere.
  Affine from(const Index<3>& first) const {
    Affine a = *this;
    const auto p = at(first);
    for (std::size_t r = 0; r < 3; ++r) a.m[r][3] = p[r];
    return a;
  }
  double determinant() const {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += m[0][c] * minor(0, c);
    return sum;
  }
  /// From mm to voxel (x,y,z).
  Affine inverse() const {
    const double d = determinant();
    TESSERA_REQUIRE(std::isfinite(d) && d != 0, "Affine: it maps space to a plane, so there is no way back; give three "
                                                "independent axes");
    Affine a;
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) a.m[r][c] = minor(c, r) / d;
      a.m[r][3] = 0;
      for (int c = 0; c < 3; ++c) a.m[r][3] -= a.m[r][c] * m[c][3];
    }
    return a;
  }
  /// First `b`, then `a`.
  friend Affine operator*(const Affine& a, const Affine& b) {
    Affine p;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) {
        p.m[r][c] = c == 3 ? a.m[r][3] : 0;
        for (int k = 0; k < 3; ++k) p.m[r][c] += a.m[r][k] * b.m[k][c];
      }
    return p;
  }
  friend bool operator==(const Affine&, const Affine&) = default;

private:
  /// The cofactor of m[r][c].
  double minor(int r, int c) const {
    const int r1 = (r + 1) % 3, r2 = (r + 2) % 3, c1 = (c + 1) % 3, c2 = (c + 2) % 3;
    return m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1];
  }
};

/// Which stored dim each canonical dim (d,h,w) is, and whether it runs the other way.
struct Orientation {
  int from[3] = {0, 1, 2};
  bool flip[3] = {false, false, false};
  friend bool operator==(const Orientation&, const Orientation&) = default;

  /// Canonical extents of stored ones.
  Extents<3> extents(const Extents<3>& stored) const { return {{stored[from[0]], stored[from[1]], stored[from[2]]}}; }
  /// The stored box of a canonical one; `stored` are the extents of the whole volume.
  Box<3> stored(const Box<3>& canonical, const Extents<3>& stored) const {
    Box<3> b;
    for (int k = 0; k < 3; ++k) {
      const long n = stored[from[k]];
      b.lo[from[k]] = flip[k] ? n - canonical.hi[k] : canonical.lo[k];
      b.hi[from[k]] = flip[k] ? n - canonical.lo[k] : canonical.hi[k];
    }
    return b;
  }
};

/// The orientation whose canonical axes are closest to right, forward, up.
inline Orientation orientation_of(const Affine& a) {
  constexpr int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const auto voxel = a.voxel(); // d,h,w
  // The cosine between space axis (0: z, 1: y, 2: x; the order of d,h,w) and stored dim.
  const auto cosine = [&](int space, int dim) {
    return a.m[2 - space][2 - dim] / voxel[static_cast<std::size_t>(dim)];
  };
  Orientation best;
  double most = -1;
  for (const auto& o : orders) {
    double sum = 0;
    for (int k = 0; k < 3; ++k) sum += std::abs(cosine(k, o[k]));
    if (sum > most + 1e-6) {
      most = sum;
      for (int k = 0; k < 3; ++k) best.from[k] = o[k], best.flip[k] = cosine(k, o[k]) < 0;
    }
  }
  return best;
}

/// The affine of the volume once its axes are canonical. `stored` are its extents before.
inline Affine canonical(const Affine& a, const Orientation& o, const Extents<3>& stored) {
  Affine c;
  Index<3> first;
  for (int k = 0; k < 3; ++k) first[o.from[k]] = o.flip[k] ? stored[o.from[k]] - 1 : 0;
  const auto p = a.at(first);
  for (int r = 0; r < 3; ++r) {
    for (int k = 0; k < 3; ++k) c.m[r][2 - k] = (o.flip[k] ? -1 : 1) * a.m[r][2 - o.from[k]];
    c.m[r][3] = p[static_cast<std::size_t>(r)];
  }
  return c;
}

} // namespace tessera::io
