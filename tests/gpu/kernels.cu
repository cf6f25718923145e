// The device code of a program: the library's kernels for float and double, and the losses that run there.
#include <tessera/kernel/device/instances.cuh>
#include <tessera/train/loss.hpp>

template struct tessera::kernel::device::Instances<float>;
template struct tessera::kernel::device::Instances<double>;
template struct tessera::kernel::device::LossInstances<tessera::mean_squared_error, float>;
template struct tessera::kernel::device::LossInstances<tessera::mean_squared_error, double>;
template struct tessera::kernel::device::LossInstances<tessera::mean_absolute_error, float>;
