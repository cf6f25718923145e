// cosmoflow/network.hpp: the network for a width that is known at run time. Compiled once, in network.cpp.
#pragma once

#include "model.hpp"
#include <memory>
#include <tessera/backend/cpu.hpp>

/// Whatever the width, what runs is one type.
using CosmoFlowNet = tessera::AnyNetwork<float, tessera::cpu>;
extern template class tessera::AnyNetwork<float, tessera::cpu>;

/// The network for cubes of `width` cells a side: 32, 64, 128, 256 or 512. Collective.
std::unique_ptr<CosmoFlowNet> make_network(int width, cosmoflow::Norm norm, const tessera::Grid<4>& grid,
                                           const tessera::NetworkOptions& options);
