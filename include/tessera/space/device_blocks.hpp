// space/device_blocks.hpp: Blocks for memory that the host cannot touch, as functors launched on a stream.
//
// A functor is what every device kernel of the library is: plain members, operator()(i) for one element, and
// operands(visit), which names each pointer it holds, so that a space can check and translate them. The elements of a
// launch run in any order and at the same time.
//
// May know: base, space/blocks.hpp.
// Example: launch<emulated_device>(count, CopyRuns<float>{from, to, runs});   Blocks<emulated_device>::copy(a, b);
#pragma once

#include <tessera/space/blocks.hpp>

namespace tessera {

namespace device {

/// A memory space whose memory only kernels and copies on its streams touch.
template <class S>
concept DeviceSpace = !S::host_accessible;

/// Runs f(0), ..., f(count - 1) on the calling thread's stream of the space.
template <DeviceSpace Space, class F> void launch(long count, const F& f) {
  if (count > 0) Space::launch(Space::stream(), count, f);
}

/// i / by, with the remainder left in i. Divisions of 32 bits are several times faster on a GPU.
TESSERA_HD constexpr long divide(long& i, long by) {
  if (((static_cast<unsigned long>(i) | static_cast<unsigned long>(by)) >> 32) == 0) {
    const unsigned a = static_cast<unsigned>(i), b = static_cast<unsigned>(by), q = a / b;
    i = static_cast<long>(a - q * b);
    return static_cast<long>(q);
  }
  const long q = i / by;
  i -= q * by;
  return q;
}

/// Where element i of two blocks lies, walked together.
struct Offsets {
  long a = 0, b = 0;
};
TESSERA_HD constexpr Offsets offsets(const tessera::detail::Runs& r, long i) {
  Offsets o;
  for (int k = r.loops - 1; k > 0; --k) {
    const long outer = divide(i, r.count[k]);
    o.a += i * r.step_a[k], o.b += i * r.step_b[k];
    i = outer;
  }
  o.a += i * r.step_a[0], o.b += i * r.step_b[0];
  return o;
}

template <class T> struct CopyRuns {
  const T* from;
  T* to;
  tessera::detail::Runs runs;
  template <class V> void operands(const V& visit) { visit(from), visit(to); }
  TESSERA_HD void operator()(long i) const {
    const Offsets o = offsets(runs, i);
    to[o.b] = from[o.a];
  }
};
template <class T> struct AddRuns {
  const T* from;
  T* to;
  tessera::detail::Runs runs;
  template <class V> void operands(const V& visit) { visit(from), visit(to); }
  TESSERA_HD void operator()(long i) const {
    const Offsets o = offsets(runs, i);
    to[o.b] = static_cast<T>(to[o.b] + from[o.a]);
  }
};
template <class T> struct FillRuns {
  T* to;
  T value;
  tessera::detail::Runs runs;
  template <class V> void operands(const V& visit) { visit(to); }
  TESSERA_HD void operator()(long i) const { to[offsets(runs, i).b] = value; }
};

} // namespace device

/// On the calling thread's stream; what the host does not see at once.
template <class Space>
requires(!Space::host_accessible) struct Blocks<Space> {
  template <class T, int N> static void copy(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
    if (to.empty()) return;
    const detail::Runs r = detail::runs_of(from, to);
    if (r.loops == 1 && r.step_a[0] == 1 && r.step_b[0] == 1)
      Space::copy(to.data, from.data, std::size_t(r.count[0]) * sizeof(T));
    else
      device::launch<Space>(to.size(), device::CopyRuns<T>{from.data, to.data, r});
  }
  template <class T, int N> static void add(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
    if (!to.empty())
      device::launch<Space>(to.size(), device::AddRuns<T>{from.data, to.data, detail::runs_of(from, to)});
  }
  template <class T, int N> static void fill(const View<T, N>& to, T value) {
    if (!to.empty()) device::launch<Space>(to.size(), device::FillRuns<T>{to.data, value, detail::runs_of(to, to)});
  }
};

} // namespace tessera
