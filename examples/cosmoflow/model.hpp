// cosmoflow/model.hpp: the CosmoFlow network of arXiv 2007.12856 for cubes of 32 to 512 cells a side.
//
// Change it here: it is a value. The words (conv, average_pool, ...) are in tessera/layer/spec.hpp.
#pragma once

#include <tessera/net/network.hpp>

namespace cosmoflow {
using namespace tessera;

/// Whether batch normalisation stands between a convolution and its activation.
enum class Norm { none, batch };

template <Norm N, int Channels, int Stride> constexpr auto convolution() {
  constexpr auto c = conv(Channels, window(3).pad(1).strided(Stride));
  if constexpr (N == Norm::batch)
    return seq(c, batch_norm());
  else
    return c;
}
/// Convolution 3^3 and LeakyReLU, then an average pooling by two while the cube has more than two cells a side.
template <Norm N, int Channels, int Side, int Stride = 1> constexpr auto block() {
  constexpr auto stage = seq(convolution<N, Channels, Stride>(), leaky_relu(0.01));
  if constexpr (Side / Stride > 2)
    return seq(stage, average_pool(window(3).pad(1).strided(2)));
  else
    return stage;
}
/// The side after a block that began with `side`.
constexpr int after(int side, int stride = 1) { return side / stride > 2 ? side / stride / 2 : side / stride; }

/// Grid axis 0 splits samples, 1 depth, 2 height, 3 width; before the dense layers whole samples come together.
inline constexpr Layout spatial = place(Dim::n, Dim::d, Dim::h, Dim::w);
inline constexpr Layout samples = place(Dim::n, Dim::n, Dim::n, Dim::n);

template <int W, Norm N> constexpr auto layers() {
  constexpr int s2 = after(W), s3 = after(s2), s4 = after(s3), s5 = after(s4, 2), s6 = after(s5), s7 = after(s6);
  return seq(block<N, 16, W>(), block<N, 32, s2>(), block<N, 64, s3>(), block<N, 128, s4, 2>(), block<N, 256, s5>(),
             block<N, 256, s6>(), block<N, 256, s7>(), to(samples), flatten(), //
             dropout(0.8), dense(2048).with_bias(0.1), leaky_relu(0.01),       //
             dropout(0.8), dense(256).with_bias(0.1), leaky_relu(0.01),        //
             dropout(0.8), dense(4).with_bias(0.1));
}
} // namespace cosmoflow

template <int W, cosmoflow::Norm N = cosmoflow::Norm::none> struct CosmoFlow {
  static constexpr tessera::Input input{.c = 4, .d = W, .h = W, .w = W};
  static constexpr tessera::Layout layout = cosmoflow::spatial;
  static constexpr auto net = cosmoflow::layers<W, N>();
};
