// kernel/softmax.hpp: softmax over the channels of each cell, and its gradient from its output.
//
// Cells are taken in blocks that stay in the first cache: the maxima are subtracted, the whole block is exponentiated
// as one row, then each cell is divided by its sum. With two to four channels, the loops over them are unrolled.
//
// May know: base, kernel/math.hpp, span.hpp.
// Example: softmax<float>(x, y);   softmax_backward<float>(y, dy, dx);
#pragma once

#include <algorithm>
#include <tessera/kernel/math.hpp>
#include <tessera/kernel/span.hpp>
#include <type_traits>

namespace tessera::kernel {

namespace detail {

/// Calls f(channels), with their number as a constant where it is small.
template <class F> void with_channels(long channels, const F& f) {
  switch (channels) {
  case 2: return f(std::integral_constant<long, 2>{});
  case 3: return f(std::integral_constant<long, 3>{});
  case 4: return f(std::integral_constant<long, 4>{});
  default: return f(channels);
  }
}

/// `cells` cells, x and y without gaps. y may be x.
template <class T, class Channels> void softmax_cells(Channels channels, long cells, const T* x, T* y) {
  for (long i = 0; i < cells; ++i) {
    const T* from = x + i * channels;
    T* to = y + i * channels;
    T most = from[0];
    for (long c = 1; c < channels; ++c) most = from[c] > most ? from[c] : most;
    for (long c = 0; c < channels; ++c) to[c] = from[c] - most;
  }
  map_elements<T>(
      y, cells * channels, [](auto v) { return exp(v); }, y);
  for (long i = 0; i < cells; ++i) {
    T* to = y + i * channels;
    T sum{};
    for (long c = 0; c < channels; ++c) sum += to[c];
    const T scale = T{1} / sum;
    for (long c = 0; c < channels; ++c) to[c] *= scale;
  }
}

} // namespace detail

/// y = exp(x) / the sum of exp(x) over the channels, in each cell; no x is too large for it. y may be x.
template <class T> void softmax(const View<const T, 5>& x, const View<T, 5>& y) {
  const long channels = x.extents[1];
  detail::with_channels(channels, [&](auto count_of_channels) {
    for_each_span(
        [&](long count, T* to, const T* from) {
          const long block = std::max(1L, 1024 / channels);
          for (long done = 0, cells = count / channels; done < cells; done += block)
            detail::softmax_cells(count_of_channels, std::min(block, cells - done), from + done * channels,
                                  to + done * channels);
        },
        y, x);
  });
}

/// dx = y (dy - the sum of y dy over the channels), in each cell; y is the softmax. dx may be dy.
template <class T> void softmax_backward(const View<const T, 5>& y, const View<const T, 5>& dy, const View<T, 5>& dx) {
  detail::with_channels(y.extents[1], [&](auto channels) {
    for_each_span(
        [&](long count, T* to, const T* out, const T* g) {
          for (long i = 0; i < count; i += channels, to += channels, out += channels, g += channels) {
            T sum{};
            for (long c = 0; c < channels; ++c) sum += out[c] * g[c];
            for (long c = 0; c < channels; ++c) to[c] = out[c] * (g[c] - sum);
          }
        },
        dx, y, dy);
  });
}

} // namespace tessera::kernel
