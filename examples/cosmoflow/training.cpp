#include "training.hpp"

template class tessera::Trainer<float, tessera::cpu, tessera::adam, tessera::mean_squared_error>;
template void tessera::save(CosmoFlowTrainer&, const std::string&, const std::map<std::string, tessera::io::Value>&);
template std::map<std::string, tessera::io::Value> tessera::resume(CosmoFlowTrainer&, const std::string&);
