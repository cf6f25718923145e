// backend/cuda_plain.hpp: the plain backend of a GPU: its memory, and this library's own kernels on its streams.
//
// For element types that the vendor's libraries do not serve here (double), and to compare with. Its convolutions are
// not fast. A program links one file compiled by nvcc with the kernels for its element types
// (kernel/device/instances.cuh).
//
// May know: base, space, kernel, backend/device.hpp.
// Example: Network<Model, double, cuda_plain> net(grid);
#pragma once

#include <tessera/backend/device.hpp>
#include <tessera/space/cuda.hpp>

namespace tessera {

struct cuda_plain : device_backend<cuda_device> {
  static constexpr const char* name = "cuda, plain kernels";
};

} // namespace tessera
