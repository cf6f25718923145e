// kernel/normalisation.hpp: the passes of normalisation over the cells of one rank; the sums between them are the
// caller's to add up over ranks.
//
//   y = act(factor * (x - mean) + shift) per channel: batch, group, instance and layer normalisation differ in which
//   numbers these are.
//
// Sums are taken in double. Views may have any strides in n,d,h,w; channels are contiguous. Where there are few
// channels, several cells are taken together, so that vectors are full.
//
// May know: base, kernel/problem.hpp, pointwise.hpp, span.hpp, workspace.hpp.
// Example: channel_sums<float>(x, sums);  ...  normalise<float>(x, mean, factor, shift, Activation::relu, 0, y);
#pragma once

#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/span.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

namespace detail {

/// The channels of as many cells as fill a few vectors.
class Period {
public:
  explicit Period(long channels)
      : channels_(channels), length_(channels * std::max(1L, 128 / std::max(1L, channels))) {}
  long length() const { return length_; }
  /// Memory for `arrays` arrays of the period's length.
  template <class U> static std::size_t bytes(long arrays, long length) {
    return std::size_t(arrays) * (std::size_t(length) * sizeof(U) + host::alignment);
  }
  /// The numbers of the channels, repeated for every cell of the period.
  template <class T> const T* repeated(Carver& carver, const T* v) const {
    T* const to = carver.take<T>(length_);
    for (long i = 0; i < length_; i += channels_) std::copy_n(v, channels_, to + i);
    return to;
  }
  /// Sums, one for each element of the period.
  double* zeros(Carver& carver) const {
    double* const to = carver.take<double>(length_);
    std::fill_n(to, length_, 0.0);
    return to;
  }
  /// sums[c] = the sum over the period's cells.
  void fold(const double* of_period, double* sums) const {
    std::copy_n(of_period, channels_, sums);
    for (long i = channels_; i < length_; i += channels_)
      for (long c = 0; c < channels_; ++c) sums[c] += of_period[i + c];
  }
  /// f(first, many) for each part of `count` elements that lies in one period.
  template <class F> void for_each(long count, const F& f) const {
    for (long i = 0; i < count; i += length_) f(i, std::min(length_, count - i));
  }

private:
  long channels_, length_;
};

} // namespace detail

/// sums[c] = the sum of x over samples and cells.
template <class T> void channel_sums(const View<const T, 5>& x, double* sums) {
  const detail::Period period(x.extents[1]);
  Carver carver(workspace(period.bytes<double>(1, period.length())));
  double* const s = period.zeros(carver);
  for_each_span(
      [&](long count, const T* from) {
        period.for_each(count, [&](long at, long many) {
          for (long i = 0; i < many; ++i) s[i] += static_cast<double>(from[at + i]);
        });
      },
      x);
  period.fold(s, sums);
}

/// sums[c] = the sum of (x - mean[c])^2 over samples and cells.
template <class T> void channel_squares(const View<const T, 5>& x, const T* mean, double* sums) {
  const detail::Period period(x.extents[1]);
  Carver carver(workspace(period.bytes<double>(2, period.length())));
  double* const s = period.zeros(carver);
  const T* const centre = period.repeated(carver, mean);
  for_each_span(
      [&](long count, const T* from) {
        period.for_each(count, [&](long at, long many) {
          for (long i = 0; i < many; ++i) {
            const double off = static_cast<double>(from[at + i] - centre[i]);
            s[i] += off * off;
          }
        });
      },
      x);
  period.fold(s, sums);
}

/// y = act(factor[c] * (x - mean[c]) + shift[c]): the mean goes first, so that a large one costs no digits.
template <class T>
void normalise(const View<const T, 5>& x, const T* mean, const T* factor, const T* shift, Activation a, double slope,
               const View<T, 5>& y) {
  const detail::Period period(x.extents[1]);
  Carver carver(workspace(period.bytes<T>(3, period.length())));
  const T* const m = period.repeated(carver, mean);
  const T* const f = period.repeated(carver, factor);
  const T* const b = period.repeated(carver, shift);
  with_activation<T>(a, slope, [&](const auto& act) {
    for_each_span(
        [&](long count, T* to, const T* from) {
          period.for_each(count, [&](long at, long many) {
            map_elements(
                to + at, many, [&act](auto v, auto vm, auto vf, auto vb) { return act.value(vf * (v - vm) + vb); },
                from + at, m, f, b);
          });
        },
        y, x);
  });
}

/// sums[c] = sum of dy, sums[channels + c] = sum of dy * (x - mean[c]), over samples and cells.
template <class T>
void normalisation_sums(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, double* sums) {
  const detail::Period period(x.extents[1]);
  Carver carver(workspace(period.bytes<double>(3, period.length())));
  double *const s = period.zeros(carver), *const with_x = period.zeros(carver);
  const T* const centre = period.repeated(carver, mean);
  for_each_span(
      [&](long count, const T* from, const T* g) {
        period.for_each(count, [&](long at, long many) {
          for (long i = 0; i < many; ++i) {
            const double gi = static_cast<double>(g[at + i]);
            s[i] += gi;
            with_x[i] += gi * static_cast<double>(from[at + i] - centre[i]);
          }
        });
      },
      x, dy);
  period.fold(s, sums);
  period.fold(with_x, sums + x.extents[1]);
}

/// dx = a[c] * dy + b[c] * (x - mean[c]) + e[c]
template <class T>
void normalisation_backward(const View<const T, 5>& x, const View<const T, 5>& dy, const T* mean, const T* a,
                            const T* b, const T* e, const View<T, 5>& dx) {
  const detail::Period period(x.extents[1]);
  Carver carver(workspace(period.bytes<T>(4, period.length())));
  const T* const m = period.repeated(carver, mean);
  const T* const pa = period.repeated(carver, a);
  const T* const pb = period.repeated(carver, b);
  const T* const pe = period.repeated(carver, e);
  for_each_span(
      [&](long count, T* to, const T* from, const T* g) {
        period.for_each(count, [&](long at, long many) {
          map_elements(
              to + at, many,
              [](auto gv, auto v, auto vm, auto ca, auto cb, auto ce) { return ca * gv + (cb * (v - vm) + ce); },
              g + at, from + at, m, pa, pb, pe);
        });
      },
      dx, x, dy);
}

} // namespace tessera::kernel
