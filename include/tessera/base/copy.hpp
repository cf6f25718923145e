// base/copy.hpp: copying and adding blocks between views of equal extents, in the fewest and longest runs.
//
// The order of traversal comes from the strides, and neighbouring dims that lie contiguous in both views become one
// run.
//
// May know: the standard library, base/view.hpp.
// Example: copy_block(x.box(interior), dense);   add_block(margin, owner);
#pragma once

#include <cstring>
#include <tessera/base/view.hpp>
#include <type_traits>

namespace tessera {

namespace detail {
/// Nested loops over two views, outermost first; the innermost is a run of `length` elements.
struct Runs {
  static constexpr int most = 6;
  int loops = 0;
  long count[most] = {}, step_a[most] = {}, step_b[most] = {};
};

/// Loops that visit both blocks in the memory order of `b`, with dims merged where both continue each other.
template <class A, class B, int N> constexpr Runs runs_of(const View<A, N>& a, const View<B, N>& b) {
  int order[N > 0 ? N : 1] = {};
  int used = 0;
  for (int k = 0; k < N; ++k) {
    if (b.extents[k] == 1) continue;
    int at = used++;
    for (; at > 0 && b.strides[order[at - 1]] < b.strides[k]; --at) order[at] = order[at - 1];
    order[at] = k;
  }
  Runs r;
  for (int i = 0; i < used; ++i) {
    const int k = order[i];
    if (r.loops > 0 && r.step_a[r.loops - 1] == a.strides[k] * b.extents[k] &&
        r.step_b[r.loops - 1] == b.strides[k] * b.extents[k]) {
      r.count[r.loops - 1] *= b.extents[k];
      r.step_a[r.loops - 1] = a.strides[k];
      r.step_b[r.loops - 1] = b.strides[k];
    } else {
      r.count[r.loops] = b.extents[k];
      r.step_a[r.loops] = a.strides[k];
      r.step_b[r.loops] = b.strides[k];
      ++r.loops;
    }
  }
  if (r.loops == 0) r = {1, {1}, {1}, {1}};
  return r;
}

} // namespace detail

/// Calls f(pa, step_a, pb, step_b, count) for runs of elements that cover two views of equal extents.
template <class A, class B, int N, class F> void for_each_run(const View<A, N>& a, const View<B, N>& b, const F& f) {
  if (b.empty()) return;
  const detail::Runs r = detail::runs_of(a, b);
  const int inner = r.loops - 1;
  long at[detail::Runs::most] = {}; // an odometer, because recursion would be unrolled into code nobody needs
  A* pa = a.data;
  B* pb = b.data;
  for (;;) {
    f(pa, r.step_a[inner], pb, r.step_b[inner], r.count[inner]);
    int k = inner - 1;
    for (; k >= 0; --k) {
      pa += r.step_a[k], pb += r.step_b[k];
      if (++at[k] < r.count[k]) break;
      pa -= r.step_a[k] * r.count[k], pb -= r.step_b[k] * r.count[k];
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

/// to = from, element by element. The extents are equal and the blocks do not overlap.
template <class T, int N> void copy_block(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
  for_each_run(from, to, [](const T* a, long sa, T* b, long sb, long count) {
    if (sa == 1 && sb == 1) {
      std::memcpy(b, a, std::size_t(count) * sizeof(T));
      return;
    }
    for (long i = 0; i < count; ++i) b[i * sb] = a[i * sa];
  });
}

/// to += from, element by element.
template <class T, int N> void add_block(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
  for_each_run(from, to, [](const T* a, long sa, T* b, long sb, long count) {
    if (sa == 1 && sb == 1) {
      for (long i = 0; i < count; ++i) b[i] = static_cast<T>(b[i] + a[i]);
      return;
    }
    for (long i = 0; i < count; ++i) b[i * sb] = static_cast<T>(b[i * sb] + a[i * sa]);
  });
}

/// Every element = value.
template <class T, int N> void fill_block(const View<T, N>& to, std::type_identity_t<T> value) {
  for_each_run(to, to, [value](const T*, long, T* b, long sb, long count) {
    for (long i = 0; i < count; ++i) b[i * sb] = value;
  });
}

} // namespace tessera
