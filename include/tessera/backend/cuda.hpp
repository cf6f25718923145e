// backend/cuda.hpp: the cuda backend: the memory of a GPU and kernels on its streams.
//
// A program links one file compiled by nvcc with the kernels for its element types (kernel/device/instances.cuh).
//
// May know: base, space, kernel, backend/device.hpp.
// Example: Network<Model, float, cuda> net(grid);
#pragma once

#include <tessera/backend/device.hpp>
#include <tessera/space/cuda.hpp>

namespace tessera {

struct cuda : device_backend<cuda_device> {
  static constexpr const char* name = "cuda";
};

} // namespace tessera
