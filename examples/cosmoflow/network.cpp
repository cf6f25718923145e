#include "network.hpp"

template class tessera::AnyNetwork<float, tessera::cpu>;

namespace {
template <cosmoflow::Norm N, int... W>
std::unique_ptr<CosmoFlowNet> choose(int width, const tessera::Grid<4>& grid, const tessera::NetworkOptions& options) {
  std::unique_ptr<CosmoFlowNet> net;
  ((width == W ? void(net = std::make_unique<tessera::Network<CosmoFlow<W, N>, float, tessera::cpu>>(grid, options))
               : void()),
   ...);
  return net;
}
} // namespace

std::unique_ptr<CosmoFlowNet> make_network(int width, cosmoflow::Norm norm, const tessera::Grid<4>& grid,
                                           const tessera::NetworkOptions& options) {
  using cosmoflow::Norm; // each width is checked when compiling
  return norm == Norm::batch ? choose<Norm::batch, 32, 64, 128, 256, 512>(width, grid, options)
                             : choose<Norm::none, 32, 64, 128, 256, 512>(width, grid, options);
}
