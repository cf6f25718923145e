#include "network.hpp"
#include "model.hpp"

template class tessera::AnyNetwork<float, tessera::cpu>;

namespace {
template <int... W>
std::unique_ptr<CosmoFlowNet> choose(int width, const tessera::Grid<4>& grid, const tessera::NetworkOptions& options) {
  std::unique_ptr<CosmoFlowNet> net;
  ((width == W ? void(net = std::make_unique<tessera::Network<CosmoFlow<W>, float, tessera::cpu>>(grid, options))
               : void()),
   ...);
  return net;
}
} // namespace

std::unique_ptr<CosmoFlowNet> make_network(int width, const tessera::Grid<4>& grid,
                                           const tessera::NetworkOptions& options) {
  return choose<32, 64, 128, 256, 512>(width, grid, options); // each checked when compiling
}
