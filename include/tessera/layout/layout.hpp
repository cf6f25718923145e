// layout/layout.hpp: Dim, Placement and Layout: which grid axis splits which dim of a tensor. Compile-time values.
//
// A Layout is one placement per grid axis: split a dim, replicate, or hold one addend of a sum. It is a template
// argument of DistTensor, so it holds named scalars only: some compilers merge template arguments that hold arrays.
//
// May know: base.
// Example: constexpr Layout spatial = place(n, d, h, w);   // axis 0 splits samples, 1 depth, 2 height, 3 width
#pragma once

#include <string>
#include <tessera/base/extents.hpp>
#include <type_traits>

namespace tessera {

/// The dims of a tensor in logical order: sample, channel, depth, height, width. In memory the channel comes last.
enum class Dim : int { n, c, d, h, w };

constexpr char dim_name(Dim d) { return "ncdhw"[static_cast<int>(d)]; }

/// Where `dim` stands in a tensor of rank `rank`, or -1 if such a tensor has no such dim.
/// rank 5: n,c,d,h,w; 4: c,d,h,w; 3: d,h,w; 2: n,c; 1: c.
constexpr int dim_index(Dim dim, int rank) {
  const int i = static_cast<int>(dim);
  switch (rank) {
  case 5: return i;
  case 4: return i - 1;
  case 3: return i >= 2 ? i - 2 : -1;
  case 2: return i <= 1 ? i : -1;
  case 1: return i == 1 ? 0 : -1;
  default: return -1;
  }
}

/// The dim that stands at `index` in a tensor of rank `rank`; the inverse of dim_index.
constexpr Dim dim_at(int index, int rank) {
  return static_cast<Dim>(rank == 5 ? index : rank == 4 ? index + 1 : rank == 3 ? index + 2 : rank == 2 ? index : 1);
}

/// What one grid axis does with a tensor.
struct Placement {
  enum class Kind : int {
    split, ///< each coordinate of the axis holds its own block of `dim`
    rep,   ///< each coordinate holds the same values
    sum    ///< each coordinate holds an addend; the value is their sum
  };
  Kind kind = Kind::rep;
  Dim dim = Dim::n; ///< meaningful for split only; n otherwise, so that equal placements compare equal

  constexpr Placement() = default;
  constexpr Placement(Kind k) : kind(k) {}
  constexpr Placement(Dim d) : kind(Kind::split), dim(d) {}
  friend constexpr bool operator==(const Placement&, const Placement&) = default;

  constexpr bool splits() const { return kind == Kind::split; }
  constexpr bool splits(Dim d) const { return kind == Kind::split && dim == d; }
};

/// One placement per grid axis, up to six axes.
struct Layout {
  static constexpr int max_axes = 6;
  int axes = 0;
  Placement a0{}, a1{}, a2{}, a3{}, a4{}, a5{};

  friend constexpr bool operator==(const Layout&, const Layout&) = default;

  constexpr const Placement& operator[](int i) const {
    return i == 0 ? a0 : i == 1 ? a1 : i == 2 ? a2 : i == 3 ? a3 : i == 4 ? a4 : a5;
  }
  constexpr Placement& operator[](int i) {
    return i == 0 ? a0 : i == 1 ? a1 : i == 2 ? a2 : i == 3 ? a3 : i == 4 ? a4 : a5;
  }
  /// True if any axis splits `d`.
  constexpr bool splits(Dim d) const {
    for (int i = 0; i < axes; ++i)
      if ((*this)[i].splits(d)) return true;
    return false;
  }
  /// True if any axis holds addends.
  constexpr bool has_sum() const { return mask(Placement::Kind::sum) != 0; }
  /// Bit i is set if axis i has this kind of placement.
  constexpr unsigned mask(Placement::Kind k) const {
    unsigned m = 0;
    for (int i = 0; i < axes; ++i)
      if ((*this)[i].kind == k) m |= 1u << i;
    return m;
  }
  /// True if every dim that is split exists in a tensor of this rank.
  constexpr bool fits_rank(int rank) const {
    for (int i = 0; i < axes; ++i)
      if ((*this)[i].splits() && dim_index((*this)[i].dim, rank) < 0) return false;
    return true;
  }
  /// "place(n,d,rep,sum)"
  std::string str() const {
    std::string s = "place(";
    for (int i = 0; i < axes; ++i) {
      if (i) s += ',';
      const Placement& p = (*this)[i];
      if (p.splits())
        s += dim_name(p.dim);
      else
        s += p.kind == Placement::Kind::rep ? "rep" : "sum";
    }
    return s + ")";
  }
};

/// A layout from one placement per grid axis: dims, `rep` or `sum`.
template <class... P> constexpr Layout place(P... p) {
  constexpr bool few = sizeof...(P) <= Layout::max_axes, placements = (std::is_convertible_v<P, Placement> && ...);
  static_assert(few, "tessera: place(...) takes at most six placements, one per grid axis; use a grid of fewer axes");
  static_assert(placements, "tessera: place(...) takes one placement per grid axis: a dim (n, c, d, h, w), rep or sum");
  Layout l;
  if constexpr (few && placements) ((l[l.axes++] = Placement(p)), ...);
  return l;
}

/// The layout of gradients with respect to a tensor: replicated and pending sum change places, split stays.
constexpr Layout dual(Layout l) {
  for (int i = 0; i < l.axes; ++i)
    if (l[i].kind == Placement::Kind::rep)
      l[i] = Placement(Placement::Kind::sum);
    else if (l[i].kind == Placement::Kind::sum)
      l[i] = Placement(Placement::Kind::rep);
  return l;
}

/// Every axis replicates.
constexpr Layout replicated(int axes) {
  Layout l;
  l.axes = axes;
  return l;
}

/// The short names for `using namespace tessera::names`.
namespace names {
inline constexpr Dim n = Dim::n, c = Dim::c, d = Dim::d, h = Dim::h, w = Dim::w;
inline constexpr Placement::Kind rep = Placement::Kind::rep, sum = Placement::Kind::sum;
} // namespace names

} // namespace tessera
