// backend/cuda.hpp: the cuda backend: GPU memory, cuDNN, cuBLASLt, this library's own kernels, and NCCL between ranks.
//
// start_cuda() gives each rank its GPU and the group its way for device memory; call it once, before grids and networks
// are made. A program links one file compiled by nvcc with the kernels for its element types
// (kernel/device/instances.cuh), and cudart, cudnn, cublasLt and nccl.
//
// May know: base, space, kernel, comm, backend/cuda_plain.hpp, cuda_device.hpp.
// Example: const CudaStart s = start_cuda(env.world());  Grid<4> grid(s.world, {1, fit, 1, 1});
//          Network<CosmoFlow<64>, float, cuda> net(grid);
#pragma once

#include <tessera/backend/cuda_device.hpp>
#include <tessera/backend/cuda_plain.hpp>
#include <tessera/comm/host_staged.hpp>
#include <tessera/comm/nccl.hpp>
#include <tessera/kernel/cuda.hpp>

namespace tessera {

struct cuda : cuda_plain {
  static constexpr const char* name = "cuda";
  template <class T> using Convolution = kernel::CudaConvolution<T>;
  template <class T> using Dense = kernel::CudaDense<T>;
};

/// What start_cuda() has set up on this rank.
struct CudaStart {
  Communicator world; ///< the group it was given, with a way for device memory
  GpuChoice gpu;
  comm::TransportChoice transport;
  std::string str() const { return text(gpu.str(), "; ", transport.why); }
};

/// Collective. Throws no_gpu_error, the same on every rank, if a rank has no GPU.
inline CudaStart start_cuda(const Communicator& group) {
  CudaStart s;
  s.gpu = choose_gpu(group);
  s.transport = choose_transport(comm::gather_facts(group, s.gpu.identity, comm::Nccl::available));
  s.world = group.split(0); // the group that was given stays as it is
  comm::Endpoint& e = s.world.endpoint();
  switch (s.transport.way) {
  case comm::TransportChoice::Way::nccl:
    e.device_link = std::make_shared<comm::NcclLink>(e, [] { return cuda_device::stream().handle(); });
    break;
  case comm::TransportChoice::Way::host_staged:
  case comm::TransportChoice::Way::none: break; // exchanges and sums stage through pinned memory themselves
  }
  return s;
}

} // namespace tessera
