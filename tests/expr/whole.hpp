// expr/whole.hpp: the oracle of expressions: whole tensors as plain arrays, element by element.
#pragma once

#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <functional>
#include <tessera/tensor/dist_tensor.hpp>
#include <tessera/tensor/gather.hpp>

namespace tessera::test {

/// A whole tensor; value(i) is what the padding says outside.
template <int N> struct Whole {
  Extents<N> extents{};
  std::function<double(const Index<N>&)> inside;

  double value(Index<N> i, Padding mode) const {
    for (int k = 0; k < N; ++k) {
      const long e = extents[k];
      if (i[k] >= 0 && i[k] < e) continue;
      i[k] = cell_at(i[k], e, mode);
      if (i[k] < 0) return 0;
    }
    return inside(i);
  }
  Whole shifted(int dim, long by, Padding mode = Padding::zeros) const {
    return {extents, [self = *this, dim, by, mode](Index<N> i) {
              i[dim] += by;
              return self.value(i, mode);
            }};
  }
  /// Computed once, so that steps do not pile up.
  Whole stored() const {
    std::vector<double> all;
    for_each_index(whole(extents), [&](const Index<N>& i) { all.push_back(inside(i)); });
    return {extents, [all, e = extents](const Index<N>& i) { return all[std::size_t(linear(i, e)) - 1]; }};
  }
};
template <int N>
Whole<N> combined(const Whole<N>& a, const Whole<N>& b, const std::function<double(double, double)>& f) {
  return {a.extents, [a, b, f](const Index<N>& i) { return f(a.inside(i), b.inside(i)); }};
}
template <int N> Whole<N> operator+(const Whole<N>& a, const Whole<N>& b) {
  return combined<N>(a, b, [](double x, double y) { return x + y; });
}
template <int N> Whole<N> operator*(double s, const Whole<N>& a) {
  return combined<N>(a, a, [s](double x, double) { return s * x; });
}

/// The largest difference between a distributed tensor and the oracle. Collective.
template <class T, int N> double difference(const Tensor<T, N, host>& x, const Whole<N>& want) {
  const std::vector<T> all = gather(x);
  double worst = 0;
  std::size_t k = 0;
  for_each_index(whole(want.extents), [&](const Index<N>& i) {
    worst = std::max(worst, std::abs(static_cast<double>(all[k++]) - want.inside(i)));
  });
  return worst;
}

/// Small whole numbers that differ from their neighbours: sums and products of few of them are exact.
template <int N> Whole<N> numbers(const Extents<N>& e, long salt = 0) {
  return {e, [e, salt](const Index<N>& i) {
            const auto x = static_cast<long>(linear(i, e)) + salt;
            return static_cast<double>((x * 7919 + x * x * 31) % 201 - 100);
          }};
}
template <class T, int N> void set(Tensor<T, N, host>& x, const Whole<N>& to) {
  fill(x, [&](const Index<N>& i) { return to.inside(i); });
}

inline std::array<int, 3> sizes_of(const std::vector<int>& s) { return {s[0], s[1], s[2]}; }

} // namespace tessera::test
