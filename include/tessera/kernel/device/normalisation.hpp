// kernel/device/normalisation.hpp: the passes of batch normalisation; kernel/normalisation.hpp says what they compute.
//
// Numbers per channel (sums, means, factors) are host memory, as for every backend: the host combines them over ranks.
//
// May know: base, space, kernel.
// Example: channel_sums<Space, float>(x, sums);  ...  normalise<Space, float>(x, mean, scale, beta, act, 0, y);
#pragma once

#include <initializer_list>
#include <tessera/kernel/device/sums.hpp>

namespace tessera::kernel::device {

/// Arrays of one number a channel, brought to the space for the kernels that follow on the calling thread's stream.
/// The host goes on at once; the arrays may change then.
template <class Space, class T> class PerChannel {
public:
  PerChannel(std::initializer_list<const T*> arrays, long channels) : channels_(channels) {
    Room& r = room();
    const auto each = std::size_t(channels), all = each * arrays.size();
    if (r.on_host.size() < all) {
      r.copied.synchronize();
      r.on_host = Buffer<T, typename Space::pinned>(all);
      r.there = Buffer<T, Space>(all);
    }
    r.copied.synchronize(); // the last copy out of this memory
    T* to = r.on_host.data();
    for (const T* a : arrays) to = std::copy_n(a, each, to);
    const auto stream = Space::stream();
    if (all) Space::copy_from_host(r.there.data(), r.on_host.data(), all * sizeof(T), stream);
    r.copied.record(stream);
  }
  const T* operator[](long k) const { return room().there.data() + k * channels_; }

private:
  struct Room {
    Buffer<T, typename Space::pinned> on_host;
    Buffer<T, Space> there;
    typename Space::Event copied;
  };
  static Room& room() {
    thread_local Room r;
    return r;
  }
  long channels_;
};

template <class Space, class T> void channel_sums(const View<const T, 5>& x, double* sums) {
  column_sums_to_host<Space>(Elements<T>{x}, sums);
}
template <class Space, class T> void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
  const PerChannel<Space, T> there({mean}, x.extents[1]);
  column_sums_to_host<Space>(SquaredDeviations<T>{x, there[0]}, sums);
}
template <class Space, class T>
void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
  check_extents("dy", dy.extents, x.extents);
  const PerChannel<Space, T> there({mean}, x.extents[1]);
  column_sums_to_host<Space>(GradientAndDeviation<T>{x, dy, there[0]}, sums);
}

/// y = act(scale * (x - mean) + beta)
template <class T> struct Normalise {
  View<const T, 5> x;
  View<T, 5> y;
  const T *mean, *scale, *beta;
  Activation act;
  double slope;
  template <class V> void operands(const V& visit) {
    visit(x.data), visit(y.data), visit(mean), visit(scale), visit(beta);
  }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, y.extents);
    const long c = at[1];
    y[at] = activate(act, slope, static_cast<T>(scale[c] * (x[at] - mean[c]) + beta[c]));
  }
};
template <class Space, class T>
void normalise(const View<const T, 5>& x, const T* mean, const T* scale, const T* beta, Activation a, double slope,
               const View<T, 5>& y) {
  check_extents("y", y.extents, x.extents);
  const PerChannel<Space, T> there({mean, scale, beta}, x.extents[1]);
  launch<Space>(y.size(), Normalise<T>{x, y, there[0], there[1], there[2], a, slope});
}

/// dx = a * dy + b * (x - mean) + e
template <class T> struct NormalisationBackward {
  View<const T, 5> x, dy;
  View<T, 5> dx;
  const T *mean, *a, *b, *e;
  template <class V> void operands(const V& visit) {
    visit(x.data), visit(dy.data), visit(dx.data), visit(mean), visit(a), visit(b), visit(e);
  }
  TESSERA_HD void operator()(long i) const {
    const Index<5> at = index_of(i, dx.extents);
    const long c = at[1];
    dx[at] = a[c] * dy[at] + b[c] * (x[at] - mean[c]) + e[c];
  }
};
template <class Space, class T>
void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                            const T* b, const T* e, const View<T, 5>& dx) {
  check_extents("dx", dx.extents, x.extents);
  const PerChannel<Space, T> there({mean, a, b, e}, x.extents[1]);
  launch<Space>(dx.size(), NormalisationBackward<T>{x, dy, dx, there[0], there[1], there[2], there[3]});
}

} // namespace tessera::kernel::device
