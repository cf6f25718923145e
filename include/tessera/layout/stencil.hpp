// layout/stencil.hpp: Window (one dim) and Stencil (depth, height, width): what a layer reads to produce an output.
//
// Everything about halos follows from here: the input interval of an output interval, in global indices.
//
// May know: base, layout/layout.hpp.
// Example: constexpr Stencil s = window(3).same().strided(2);  static_assert(s.d.output(128) == 64);
#pragma once

#include <algorithm>
#include <string>
#include <tessera/base/error.hpp>
#include <tessera/layout/layout.hpp>

namespace tessera {

/// What stands outside the global tensor.
enum class Padding : int {
  zeros,
  periodic, ///< the tensor again: ... 2 3 | 0 1 2 3 | 0 1 ...
  reflect,  ///< its mirror image about the border cell, which is not repeated: ... 2 1 | 0 1 2 3 | 2 1 ...
  replicate ///< the border cell, as often as needed: ... 0 0 | 0 1 2 3 | 3 3 ...
};

/// What stands below index 0 and what from the extent on. A single Padding is both.
struct PaddingModes {
  Padding below = Padding::zeros, above = Padding::zeros;
  constexpr PaddingModes() = default;
  constexpr PaddingModes(Padding both) : below(both), above(both) {}
  constexpr PaddingModes(Padding below_, Padding above_) : below(below_), above(above_) {}
  friend constexpr bool operator==(const PaddingModes&, const PaddingModes&) = default;
};

/// The cell of the tensor whose value stands at position `at`, inside or outside of it; -1 where a zero stands. Not for
/// reflected positions beyond the mirror image of the whole tensor.
constexpr long padded_source(long at, long extent, const PaddingModes& modes) {
  if (at >= 0 && at < extent) return at;
  switch (at < 0 ? modes.below : modes.above) {
  case Padding::zeros: return -1;
  case Padding::periodic: return (at % extent + extent) % extent;
  case Padding::reflect: return at < 0 ? -at : 2 * (extent - 1) - at;
  case Padding::replicate: return at < 0 ? 0 : extent - 1;
  }
  return -1;
}

/// What stands beyond the borders of each dim of a tensor of rank N.
template <int N> struct Borders {
  PaddingModes modes[N > 0 ? N : 1] = {};
  constexpr Borders() = default;
  /// Periodic where `periodic` says so, else zeros.
  constexpr Borders(const Flags<N>& periodic) {
    for (int k = 0; k < N; ++k)
      if (periodic[k]) modes[k] = Padding::periodic;
  }
  constexpr PaddingModes& operator[](int k) { return modes[k]; }
  constexpr const PaddingModes& operator[](int k) const { return modes[k]; }
  friend constexpr bool operator==(const Borders&, const Borders&) = default;
};

/// Whether the last window along a dim must fit into the padded input (down), or only begin in the input or the padding
/// below it (up; PyTorch's ceil_mode).
enum class Rounding : int { down, up };

/// A half-open interval of global indices.
struct Interval {
  long lo = 0, hi = 0;
  constexpr long size() const { return hi > lo ? hi - lo : 0; }
  constexpr bool empty() const { return hi <= lo; }
  friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

/// A sliding window along one dim: output q reads inputs q*stride - below + j*dilation, 0 <= j < k.
struct Window {
  int k = 1, stride = 1, dilation = 1;
  int below = 0, above = 0; ///< padding on each side
  PaddingModes mode{};                ///< what the padding of each side holds; `.mode = Padding::reflect` is both
  Rounding rounding = Rounding::down; ///< of the number of outputs
  friend constexpr bool operator==(const Window&, const Window&) = default;

  /// The inputs from a window's first to its last: dilation * (k - 1) + 1.
  constexpr long span() const { return long(dilation) * (k - 1) + 1; }
  constexpr bool valid() const { return k >= 1 && stride >= 1 && dilation >= 1 && below >= 0 && above >= 0; }
  /// The number of outputs of `in` inputs; 0 if the window is larger than the padded input.
  constexpr long output(long in) const {
    const long room = in + below + above - span();
    if (room <= -stride || in <= 0) return 0;
    const long whole = room < 0 ? 0 : room / stride + 1; // windows that fit; what one more lacks counts as zeros
    const bool rest = room < 0 || room % stride > 0;
    return rounding == Rounding::up && rest && whole * stride < in + below ? whole + 1 : whole;
  }
  /// Only zeros can be had beyond the padding.
  constexpr bool rounding_fits() const { return rounding == Rounding::down || mode.above == Padding::zeros; }
  /// The inputs that outputs [lo, hi) read, in global indices; reaches below 0 and past the extent into the padding.
  constexpr Interval reads(Interval out) const {
    if (out.empty()) return {};
    return {out.lo * stride - below, (out.hi - 1) * stride - below + span()};
  }
  /// The number of outputs of the transposed window, which `in` outputs of this one come from; `more` cells are added
  /// above, to tell apart the inputs that a stride merges.
  constexpr long transposed_output(long in, long more) const {
    return in <= 0 ? 0 : (in - 1) * stride - below - above + span() + more;
  }
  /// The outputs, unclipped, that read any of the inputs [lo, hi); what lies in gaps between windows counts too.
  constexpr Interval readers(Interval in) const {
    if (in.empty()) return {};
    const long first = in.lo + below - span() + 1, last = in.hi - 1 + below;
    // Where windows leave gaps, the one before the first cell, so that no block begins before its windows do.
    const long lo = span() < stride ? floored(in.lo + below, stride) : floored(first + stride - 1, stride);
    return {lo, floored(last, stride) + 1};
  }
  static constexpr long floored(long a, long b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
  /// The padding that is kept in memory, as cells like others. Zeros are not: the kernel pads them.
  constexpr int stored_below() const { return mode.below == Padding::zeros ? 0 : below; }
  constexpr int stored_above() const { return mode.above == Padding::zeros ? 0 : above; }
  /// The widest padding of this mode on either side.
  constexpr long widest(Padding m) const { return std::max(mode.below == m ? below : 0, mode.above == m ? above : 0); }
  /// False if `in` cells are too few to fill the padding of this mode: one period, or the mirror image, is the most.
  constexpr bool can_fill(Padding m, long in) const {
    if (m == Padding::periodic) return widest(m) <= in;
    return m != Padding::reflect || widest(m) < std::max(in, 1L);
  }
  /// Widths of the halo when every block starts at a multiple of the stride: the same on every rank.
  constexpr long halo_below() const { return below; }
  constexpr long halo_above() const {
    const long a = span() - stride - below;
    return a > 0 ? a : 0;
  }
  /// True if outputs read only their own inputs, whatever the aligned blocks are: no halo.
  constexpr bool local() const { return halo_below() == 0 && halo_above() == 0; }
};

/// One window per spatial dim. A value: each call returns a changed copy.
struct Stencil {
  Window d{}, h{}, w{};
  friend constexpr bool operator==(const Stencil&, const Stencil&) = default;

  constexpr const Window& operator[](int i) const { return i == 0 ? d : i == 1 ? h : w; }
  constexpr Window& operator[](int i) { return i == 0 ? d : i == 1 ? h : w; }

  /// Padding with which stride 1 keeps the extents; an even span gets the larger half above, as in the field.
  constexpr Stencil same() const {
    Stencil s = *this;
    for (int i = 0; i < 3; ++i) {
      s[i].below = int(s[i].span() - 1) / 2;
      s[i].above = int(s[i].span() - 1) - s[i].below;
    }
    return s;
  }
  constexpr Stencil pad(int both) const { return pad(both, both); }
  constexpr Stencil pad(int below, int above) const {
    Stencil s = *this;
    for (int i = 0; i < 3; ++i) s[i].below = below, s[i].above = above;
    return s;
  }
  /// Padding of one dim (d, h or w), each side its own.
  constexpr Stencil pad(Dim dim, int below, int above) const {
    TESSERA_REQUIRE(dim >= Dim::d, "Stencil: padding in dim ", dim_name(dim),
                    "; a window slides along d, h and w only");
    Stencil s = *this;
    Window& x = s[static_cast<int>(dim) - 2];
    x.below = below, x.above = above;
    return s;
  }
  constexpr Stencil strided(int all) const { return strided(all, all, all); }
  constexpr Stencil strided(int sd, int sh, int sw) const {
    Stencil s = *this;
    s.d.stride = sd, s.h.stride = sh, s.w.stride = sw;
    return s;
  }
  constexpr Stencil dilated(int all) const { return dilated(all, all, all); }
  constexpr Stencil dilated(int dd, int dh, int dw) const {
    Stencil s = *this;
    s.d.dilation = dd, s.h.dilation = dh, s.w.dilation = dw;
    return s;
  }
  /// What the padding holds: in all dims, in one, or on each side of one.
  constexpr Stencil padded_with(Padding mode) const {
    Stencil s = *this;
    for (int i = 0; i < 3; ++i) s[i].mode = mode;
    return s;
  }
  constexpr Stencil padded_with(Dim dim, Padding mode) const { return padded_with(dim, mode, mode); }
  constexpr Stencil padded_with(Dim dim, Padding below, Padding above) const {
    TESSERA_REQUIRE(dim >= Dim::d, "Stencil: padding in dim ", dim_name(dim),
                    "; a window slides along d, h and w only");
    Stencil s = *this;
    s[static_cast<int>(dim) - 2].mode = {below, above};
    return s;
  }
  /// With one more output where strides leave a rest; see Rounding.
  constexpr Stencil ceil() const {
    Stencil s = *this;
    for (int i = 0; i < 3; ++i) s[i].rounding = Rounding::up;
    return s;
  }
  constexpr Stencil periodic() const { return padded_with(Padding::periodic); }

  /// What stands beyond the borders of a tensor of rank N, whose last dims are d, h and w.
  template <int N> constexpr Borders<N> borders() const {
    Borders<N> b;
    for (int i = 0; i < 3; ++i) b[N - 3 + i] = (*this)[i].mode;
    return b;
  }

  constexpr bool valid() const { return d.valid() && h.valid() && w.valid(); }
  /// The global extents of the output.
  constexpr Index<3> output(const Index<3>& in) const { return {{d.output(in[0]), h.output(in[1]), w.output(in[2])}}; }
  constexpr Index<3> kernel() const { return {{d.k, h.k, w.k}}; }
  constexpr Index<3> strides() const { return {{d.stride, h.stride, w.stride}}; }
  constexpr Index<3> dilations() const { return {{d.dilation, h.dilation, w.dilation}}; }
};

/// A cubic window of `k` cells a side; then .same(), .pad(..), .strided(..), .dilated(..), .padded_with(..).
constexpr Stencil window(int k) {
  Stencil s;
  s.d.k = s.h.k = s.w.k = k;
  return s;
}
constexpr Stencil window(int kd, int kh, int kw) {
  Stencil s;
  s.d.k = kd, s.h.k = kh, s.w.k = kw;
  return s;
}

/// Throws usage_error, from global facts only, if a window does not fit: names what, dim, span and size.
inline void require_fits(const Stencil& s, const Index<3>& in, const std::string& what) {
  for (int i = 0; i < 3; ++i) {
    const Window& x = s[i];
    const char name = dim_name(static_cast<Dim>(i + 2));
    TESSERA_REQUIRE(x.valid(), what, ": dim ", name, " has kernel ", x.k, ", stride ", x.stride, ", dilation ",
                    x.dilation, ", padding ", x.below, "/", x.above,
                    "; kernel, stride and dilation must be at least 1 and padding at least 0");
    TESSERA_REQUIRE(x.rounding_fits(), what, ": dim ", name, ": ceil() needs padding with zeros above");
    TESSERA_REQUIRE(in[i] <= 0 || x.output(in[i]) > 0, what, ": dim ", name, ": the window spans ", x.span(),
                    " (kernel ", x.k, ", dilation ", x.dilation, ") but the input has size ", in[i], " with padding ",
                    x.below, "/", x.above, "; use a smaller kernel or dilation, or more padding");
    TESSERA_REQUIRE(x.can_fill(Padding::periodic, in[i]), what, ": dim ", name, ": periodic padding ", x.below, "/",
                    x.above, " is wider than the input of size ", in[i], "; use at most one period");
    TESSERA_REQUIRE(x.can_fill(Padding::reflect, in[i]), what, ": dim ", name, ": reflecting padding ", x.below, "/",
                    x.above, " is not narrower than the input of size ", in[i],
                    "; use at most size - 1, or Padding::replicate");
  }
}

} // namespace tessera
