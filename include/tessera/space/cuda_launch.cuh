// space/cuda_launch.cuh: the one kernel of the library, which runs a functor for each element. For nvcc, with
// --expt-relaxed-constexpr.
//
// May know: base, space.
// Example: template void tessera::cuda_device::launch(const Stream&, long, MyFunctor);   // in a .cu file
#pragma once

#include <algorithm>
#include <tessera/space/cuda.hpp>

namespace tessera {

namespace detail {
/// Blocks of 256 threads, at least two on a multiprocessor: said, because ptxas otherwise spills registers of some
/// functors to have room for more.
template <class F> __global__ void __launch_bounds__(256, 2) run_elements(long count, F f) {
  const long step = static_cast<long>(gridDim.x) * blockDim.x;
  for (long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) f(i);
}
} // namespace detail

template <class F> void cuda_device::launch(const Stream& s, long count, F f) {
  constexpr long threads = 256, most_blocks = 1L << 20;
  if (count <= 0) return;
  const auto blocks = static_cast<unsigned>(std::min((count + threads - 1) / threads, most_blocks));
  detail::run_elements<<<blocks, static_cast<unsigned>(threads), 0, s.handle()>>>(count, f);
  check_cuda(cudaGetLastError(), "kernel launch");
}

} // namespace tessera
