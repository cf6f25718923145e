// base/view.hpp: View, a pointer with extents and strides. What kernels take, on the host and on a device.
//
// Logical order of dims is n,c,d,h,w (rank 5); memory order is channels-last: n,d,h,w,c. The strides say so.
// A View owns nothing. View<const T, N> reads, View<T, N> writes.
//
// May know: the standard library, base/extents.hpp.
// Example: View<float, 5> v(p, {1, 4, 8, 8, 8}); v(0, 3, 2, 2, 2) = 1;  v.box({{0,0,1,0,0}, {1,4,7,8,8}}) is an
// interior.
#pragma once

#include <tessera/base/extents.hpp>
#include <type_traits>

namespace tessera {

/// Strides, in elements, of a dense block in channels-last order. Rank 5 (n,c,d,h,w) is stored n,d,h,w,c; rank 4
/// (c,d,h,w) is stored d,h,w,c; ranks 1, 2 and 3 (c; n,c; d,h,w) are stored in logical order.
template <int N> TESSERA_HD constexpr Index<N> dense_strides(const Extents<N>& e) {
  constexpr int channel = N == 5 ? 1 : N == 4 ? 0 : N - 1;
  Index<N> s{};
  long step = 1;
  s[channel] = step;
  step *= e[channel];
  for (int i = N - 1; i >= 0; --i)
    if (i != channel) {
      s[i] = step;
      step *= e[i];
    }
  return s;
}

template <class T, int N> struct View {
  T* data = nullptr;
  Extents<N> extents{};
  Index<N> strides{};

  View() = default;
  /// A dense channels-last block.
  TESSERA_HD constexpr View(T* p, const Extents<N>& e) : data(p), extents(e), strides(dense_strides(e)) {}
  TESSERA_HD constexpr View(T* p, const Extents<N>& e, const Index<N>& s) : data(p), extents(e), strides(s) {}
  /// A reading view of a writing one. A template, so that it never counts as a copy constructor.
  template <class U>
  requires(!std::is_const_v<U> && std::is_same_v<const U, T>) TESSERA_HD constexpr View(const View<U, N>& v)
      : data(v.data), extents(v.extents), strides(v.strides) {}

  TESSERA_HD constexpr long offset(const Index<N>& i) const {
    long o = 0;
    for (int k = 0; k < N; ++k) o += i[k] * strides[k];
    return o;
  }
  TESSERA_HD constexpr T& operator[](const Index<N>& i) const { return data[offset(i)]; }
  template <class... I>
  requires(sizeof...(I) == N) TESSERA_HD constexpr T& operator()(I... i) const {
    return data[offset(Index<N>{{static_cast<long>(i)...}})];
  }
  TESSERA_HD constexpr long size() const { return product(extents); }
  TESSERA_HD constexpr bool empty() const { return size() == 0; }

  /// The part `b`, given in this view's own indices. An empty part may lie anywhere.
  TESSERA_HD constexpr View box(const Box<N>& b) const {
    return {b.empty() ? data : data + offset(b.lo), b.extents(), strides};
  }
  /// True if the elements form one dense channels-last block (dims of extent 1 may have any stride).
  TESSERA_HD constexpr bool dense() const {
    const Index<N> want = dense_strides(extents);
    for (int k = 0; k < N; ++k)
      if (extents[k] > 1 && strides[k] != want[k]) return false;
    return true;
  }
};

/// True if each sample (dim 0) of `v` by itself is dense: what vendor kernels need, called sample by sample.
template <class T, int N> TESSERA_HD constexpr bool dense_samples(View<T, N> v) {
  if (v.extents[0] > 1) v.extents[0] = 1;
  return v.dense();
}

} // namespace tessera
