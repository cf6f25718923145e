// tensor/gather.hpp: the whole tensor on one or all ranks, by name only: nothing gathers silently.
//
// May know: base, layout, space, comm, tensor.
// Example: std::vector<float> all = gather(x);   // every rank gets every element, logical row-major order
#pragma once

#include <tessera/tensor/tensor.hpp>
#include <vector>

namespace tessera {

/// Every element, on every rank, logical row-major (n slowest, w fastest). Axes that hold addends are summed; of
/// replicas the first is taken. Collective. For tests, small results and checkpoints.
template <class T, int N, class Space> std::vector<T> gather(const Tensor<T, N, Space>& x) {
  if constexpr (!Space::host_accessible) return gather(host_copy(x));
  const Extents<N>& e = x.extents();
  std::vector<T> mine;
  mine.reserve(std::size_t(x.box().volume()));
  for_each_index(whole(x.box().extents()), [&, v = x.view()](const Index<N>& i) { mine.push_back(v[i]); });
  const auto all = x.grid().world().all_gather(std::span<const T>(mine));

  std::vector<T> out(std::size_t(product(e)), T{});
  auto linear = [&](const Index<N>& i) {
    long o = 0;
    for (int k = 0; k < N; ++k) o = o * e[k] + i[k];
    return std::size_t(o);
  };
  const unsigned replicas = x.layout().mask(Placement::Kind::rep);
  for (int r = 0; r < x.grid().ranks(); ++r) {
    const auto coords = x.grid().shape().coords(r);
    bool first = true;
    for (int a = 0; a < x.layout().axes; ++a)
      if ((replicas >> a & 1u) && coords[std::size_t(a)] != 0) first = false;
    if (!first) continue;
    std::size_t k = 0;
    for_each_index(x.map().box(r), [&](const Index<N>& i) {
      T& sum = out[linear(i)];
      sum = static_cast<T>(sum + all[std::size_t(r)][k++]);
    });
  }
  return out;
}

/// Each rank takes its box from `whole_tensor`, which every rank gives in logical row-major order. Local.
template <class T, int N, class Space> void scatter(Tensor<T, N, Space>& x, const std::vector<T>& whole_tensor) {
  TESSERA_REQUIRE(long(whole_tensor.size()) == product(x.extents()), "scatter: ", whole_tensor.size(),
                  " elements given for a tensor of ", x.extents(), "; give all of them, row-major");
  fill(x, [&](const Index<N>& i) {
    long o = 0;
    for (int k = 0; k < N; ++k) o = o * x.extents()[k] + i[k];
    return whole_tensor[std::size_t(o)];
  });
}

} // namespace tessera
