// base/extents.hpp: Index, Extents and Box of a compile-time rank. Plain data: device code may use them.
//
// A Box is half open: it holds the indices lo <= i < hi. A box with hi <= lo in some dim is empty.
//
// May know: the standard library, base/config.hpp.
// Example: Box<3> b{{0, 0, 0}, {4, 4, 4}}; intersect(b, shifted(b, {2, 0, 0})).volume() == 32
#pragma once

#include <string>
#include <tessera/base/config.hpp>

namespace tessera {

/// N whole numbers, one for each dim in logical order. Serves as index, as extents and as offset.
template <int N> struct Index {
  long v[N > 0 ? N : 1] = {};

  TESSERA_HD constexpr long& operator[](int i) { return v[i]; }
  TESSERA_HD constexpr const long& operator[](int i) const { return v[i]; }
  friend constexpr bool operator==(const Index&, const Index&) = default;

  TESSERA_HD friend constexpr Index operator+(Index a, const Index& b) {
    for (int i = 0; i < N; ++i) a.v[i] += b.v[i];
    return a;
  }
  TESSERA_HD friend constexpr Index operator-(Index a, const Index& b) {
    for (int i = 0; i < N; ++i) a.v[i] -= b.v[i];
    return a;
  }

  /// "4x5x6"
  std::string str() const {
    std::string s;
    for (int i = 0; i < N; ++i) {
      if (i) s += 'x';
      s += std::to_string(v[i]);
    }
    return s;
  }
};
template <int N> using Extents = Index<N>;

/// One yes or no for each dim.
template <int N> struct Flags {
  bool v[N > 0 ? N : 1] = {};
  TESSERA_HD constexpr bool& operator[](int i) { return v[i]; }
  TESSERA_HD constexpr const bool& operator[](int i) const { return v[i]; }
  friend constexpr bool operator==(const Flags&, const Flags&) = default;
};

/// The product of all N numbers (1 for N = 0).
template <int N> TESSERA_HD constexpr long product(const Index<N>& e) {
  long p = 1;
  for (int i = 0; i < N; ++i) p *= e[i];
  return p;
}

/// The indices lo <= i < hi.
template <int N> struct Box {
  Index<N> lo, hi;

  TESSERA_HD constexpr long extent(int i) const { return hi[i] > lo[i] ? hi[i] - lo[i] : 0; }
  TESSERA_HD constexpr Extents<N> extents() const {
    Extents<N> e;
    for (int i = 0; i < N; ++i) e[i] = extent(i);
    return e;
  }
  TESSERA_HD constexpr long volume() const { return product(extents()); }
  TESSERA_HD constexpr bool empty() const { return volume() == 0; }
  TESSERA_HD constexpr bool contains(const Index<N>& p) const {
    for (int i = 0; i < N; ++i)
      if (p[i] < lo[i] || p[i] >= hi[i]) return false;
    return true;
  }
  TESSERA_HD constexpr bool contains(const Box& b) const {
    if (b.empty()) return true;
    for (int i = 0; i < N; ++i)
      if (b.lo[i] < lo[i] || b.hi[i] > hi[i]) return false;
    return true;
  }
  friend constexpr bool operator==(const Box&, const Box&) = default;

  /// "[0,4)x[2,6)"
  std::string str() const {
    std::string s;
    for (int i = 0; i < N; ++i)
      s += std::string(i ? "x" : "") + "[" + std::to_string(lo[i]) + "," + std::to_string(hi[i]) + ")";
    return s;
  }
};

template <int N> TESSERA_HD constexpr Box<N> intersect(Box<N> a, const Box<N>& b) {
  for (int i = 0; i < N; ++i) {
    if (b.lo[i] > a.lo[i]) a.lo[i] = b.lo[i];
    if (b.hi[i] < a.hi[i]) a.hi[i] = b.hi[i];
  }
  return a;
}

/// The smallest box that holds both; an empty one does not count.
template <int N> TESSERA_HD constexpr Box<N> hull(Box<N> a, const Box<N>& b) {
  if (b.empty()) return a;
  if (a.empty()) return b;
  for (int i = 0; i < N; ++i) {
    if (b.lo[i] < a.lo[i]) a.lo[i] = b.lo[i];
    if (b.hi[i] > a.hi[i]) a.hi[i] = b.hi[i];
  }
  return a;
}

template <int N> TESSERA_HD constexpr Box<N> shifted(Box<N> b, const Index<N>& by) { return {b.lo + by, b.hi + by}; }

/// The whole index space of `e`.
template <int N> TESSERA_HD constexpr Box<N> whole(const Extents<N>& e) { return {Index<N>{}, e}; }

/// Calls `f(index)` for every index of the box, last dim fastest.
template <int N, class F> constexpr void for_each_index(const Box<N>& b, F&& f) {
  if (b.empty()) return;
  Index<N> i = b.lo;
  for (;;) {
    f(static_cast<const Index<N>&>(i));
    int k = N - 1;
    for (; k >= 0; --k) {
      if (++i[k] < b.hi[k]) break;
      i[k] = b.lo[k];
    }
    if (k < 0) return;
  }
}

} // namespace tessera
