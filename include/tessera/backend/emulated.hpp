// backend/emulated.hpp: the emulated backend: everything that runs on a device, on a device that any machine can
// emulate. For tests: slow, and unruly on purpose (space/emulated.hpp).
//
// May know: base, space, kernel, backend/device.hpp.
// Example: Network<Model, double, emulated> net(grid);
#pragma once

#include <tessera/backend/device.hpp>
#include <tessera/space/emulated.hpp>

namespace tessera {

struct emulated : device_backend<emulated_device> {
  static constexpr const char* name = "emulated";
};

} // namespace tessera
