// unet3d/network.hpp: the network and its trainer for sizes that are known at run time. Compiled once, in network.cpp.
#pragma once

#include "model.hpp"
#include <memory>
#include <tessera/backend/cpu.hpp>
#include <tessera/net/network.hpp>

using UNet = tessera::AnyNetwork<float, tessera::cpu>;
extern template class tessera::AnyNetwork<float, tessera::cpu>;

/// The network for one volume of these extents at a time. Collective.
std::unique_ptr<UNet> make_network(int base, int classes, const tessera::Extents<3>& extents,
                                   const tessera::Grid<4>& grid, std::uint64_t seed);
