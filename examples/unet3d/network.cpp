#include "network.hpp"

template class tessera::AnyNetwork<float, tessera::cpu>;

std::unique_ptr<UNet> make_network(int base, int classes, const tessera::Extents<3>& e, const tessera::Grid<4>& grid,
                                   std::uint64_t seed) {
  const tessera::Input input{.c = 1, .d = int(e[0]), .h = int(e[1]), .w = int(e[2])};
  return std::make_unique<UNet>(grid, tessera::describe(unet3d::network(base, classes), input, unet3d::layout),
                                tessera::NetworkOptions{.batch = 1, .seed = seed});
}
