// Operands of kernel tests: blocks of random numbers in channels-last memory with gaps, random problems, and the error
// a sum of products may have in float.
#pragma once

#include "../support/sweep.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <tessera/kernel/reference.hpp>
#include <vector>

namespace tessera::test {

/// Where a block may have gaps between its elements.
enum class Gaps { none, between_samples, everywhere };

/// A channels-last block with its memory. Channels are always contiguous.
template <class T> struct Block {
  std::vector<T> memory;
  View<T, 5> view;

  Block(const Extents<5>& e, Gaps gaps, Random& random) {
    Index<5> s{};
    long step = 1;
    for (const int k : {1, 4, 3, 2, 0}) {
      s[k] = step;
      step *= e[k];
      const bool may = gaps == Gaps::everywhere || (gaps == Gaps::between_samples && k == 2);
      if (may && random.one_in(2)) step += random.in(1, 3);
    }
    memory.assign(static_cast<std::size_t>(step) + 1, std::numeric_limits<T>::quiet_NaN());
    view = View<T, 5>(memory.data(), e, s);
  }
  explicit Block(const Extents<5>& e) : memory(static_cast<std::size_t>(product(e)) + 1), view(memory.data(), e) {}
  Block(Block&&) = default; // a moved vector keeps its memory, so the view stays right

  View<const T, 5> read() const { return view; }
  void randomise(Random& random) {
    for_each_index(whole(view.extents), [&](const Index<5>& i) { view[i] = static_cast<T>(random.real()); });
  }
};

/// The same numbers in another type, dense; with `absolute`, their absolute values.
enum class Sign { kept, absolute };
template <class U, class T> Block<U> converted(const View<const T, 5>& v, Sign sign = Sign::kept) {
  Block<U> b(v.extents);
  for_each_index(whole(v.extents), [&](const Index<5>& i) {
    b.view[i] = static_cast<U>(sign == Sign::absolute ? std::abs(v[i]) : v[i]);
  });
  return b;
}

/// The largest |a - b| / (eps * sqrt(terms) * scale) over all elements: float sums of `terms` products whose absolute
/// values add up to `scale`, in any order, stay well below 1.
inline double worst(const View<const float, 5>& a, const View<const double, 5>& b, const View<const double, 5>& scale,
                    double terms) {
  const double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  double w = 0;
  for_each_index(whole(a.extents), [&](const Index<5>& i) {
    const double bound = eps * std::sqrt(std::max(1.0, terms)) * scale[i] + 1e-30;
    const double error = std::abs(static_cast<double>(a[i]) - b[i]) / bound;
    w = error <= w ? w : error; // a NaN gets through
  });
  return w;
}

template <class T> double dot(const View<const T, 5>& a, const View<const T, 5>& b) {
  double s = 0;
  for_each_index(whole(a.extents),
                 [&](const Index<5>& i) { s += static_cast<double>(a[i]) * static_cast<double>(b[i]); });
  return s;
}

/// Rows of x that no window reads: none beyond what a stride rounds away, or some more along depth, or along all dims.
enum class Unread { rounding, depth, all };

inline kernel::Conv random_convolution(Random& random, Unread unread) {
  constexpr long channels[] = {1, 3, 4, 8, 16, 17};
  kernel::Conv p;
  p.n = random.in(0, 3);
  p.ci = channels[random.pick(0, 5)];
  p.co = channels[random.pick(0, 5)];
  for (int i = 0; i < 3; ++i) {
    p.k[i] = random.in(1, 5);
    p.stride[i] = random.in(1, 3);
    p.dilation[i] = random.in(1, 3);
    p.in[i] = random.one_in(40) ? 0 : random.in(1, 9);
    p.below[i] = random.in(0, std::min(4L, kernel::span(p.k[i], p.dilation[i]) - 1));
    p.above[i] = random.in(0, std::min(4L, kernel::span(p.k[i], p.dilation[i]) - 1));
    const long room = p.in[i] + p.below[i] + p.above[i] - kernel::span(p.k[i], p.dilation[i]);
    p.out[i] = room < 0 ? 0 : room / p.stride[i] + 1;
    if (unread == Unread::all || (unread == Unread::depth && i == 0)) p.out[i] -= random.in(0, std::min(2L, p.out[i]));
  }
  p.act = static_cast<kernel::Activation>(random.in(0, 2));
  p.slope = 0.25;
  return p;
}

} // namespace tessera::test
