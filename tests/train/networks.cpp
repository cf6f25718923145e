#include "net/networks.hpp"

template class tessera::AnyNetwork<double, tessera::reference>;
template class tessera::AnyNetwork<float, tessera::cpu>;
template class tessera::AnyNetwork<double, tessera::emulated>;
