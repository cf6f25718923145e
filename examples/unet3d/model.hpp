// unet3d/model.hpp: the 3D U-Net of Çiçek et al. 2016 in its same-padding form with three poolings (arXiv 2007.12856).
//
// `base` is the number of channels of the first convolution; the paper's network has 32. Batch normalisation takes the
// statistics of all ranks.
#pragma once

#include <tessera/net/graph.hpp>
#include <tessera/net/walk.hpp>

namespace unet3d {
using namespace tessera;
using namespace tessera::names;

inline constexpr Layout layout = place(n, d, h, w);

constexpr auto block(int a, int b) {
  return seq(conv(a).initialised(Init::he_normal), batch_norm(), relu(), //
             conv(b).initialised(Init::he_normal), batch_norm(), relu());
}
/// One resolution: down, what lies below, up again, and both side by side.
template <class Below> constexpr auto level(int c, const Below& below) {
  return seq(block(c, 2 * c), skip_concat(seq(max_pool(2), below, up(4 * c))), block(2 * c, 2 * c));
}
/// Logits of `classes` classes for each voxel. The extents of the input divide by 8.
constexpr auto network(int base, int classes) {
  return seq(level(base, level(2 * base, level(4 * base, block(8 * base, 16 * base)))), conv(classes, window(1)));
}

static_assert(walk(network(32, 3), {.c = 1, .d = 128, .h = 128, .w = 128}, layout).parameters() == 19'070'560);

} // namespace unet3d
