// cosmoflow/training.hpp: the trainer of the network and its checkpoints. Compiled once, in training.cpp.
#pragma once

#include "network.hpp"
#include <tessera/train/checkpoint.hpp>

using CosmoFlowTrainer = tessera::Trainer<float, tessera::cpu, tessera::adam, tessera::mean_squared_error>;
extern template class tessera::Trainer<float, tessera::cpu, tessera::adam, tessera::mean_squared_error>;

extern template void tessera::save(CosmoFlowTrainer&, const std::string&,
                                   const std::map<std::string, tessera::io::Value>&);
extern template std::map<std::string, tessera::io::Value> tessera::resume(CosmoFlowTrainer&, const std::string&);
