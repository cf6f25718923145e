// layer/make.hpp: from a planned step to the layer that runs it. A new kind of layer adds its line here.
//
// May know: base to move, layer.
// Example: auto layer = make_layer<float, cpu>(conv(16), {}, grid, x.map(), y.map());
#pragma once

#include <tessera/layer/conv.hpp>
#include <tessera/layer/conv_transpose.hpp>
#include <tessera/layer/global_pool.hpp>
#include <tessera/layer/join.hpp>
#include <tessera/layer/local.hpp>
#include <tessera/layer/normalise.hpp>
#include <tessera/layer/pointwise.hpp>
#include <tessera/layer/pool.hpp>
#include <tessera/layer/upsample.hpp>

namespace tessera {

/// The layer `spec` (with the activation it takes in) from `in`, and from `second` if it joins, to `out` on this rank.
/// Collective: plans communication.
template <class T, class Backend>
std::unique_ptr<Layer<T, typename Backend::space>> make_layer(const LayerSpec& spec, InputActivation fused,
                                                              const AnyGrid& grid, const Map<5>& in, const Map<5>& out,
                                                              const Map<5>& second = {}) {
  const Box<5> box = in.box(grid.rank());
  switch (spec.kind) {
  case LayerKind::conv: return std::make_unique<ConvLayer<T, Backend>>(spec, fused, grid, in, out);
  case LayerKind::conv_transpose: return std::make_unique<ConvTransposeLayer<T, Backend>>(spec, fused, grid, in, out);
  case LayerKind::pool: return std::make_unique<PoolLayer<T, Backend>>(spec, grid, in, out);
  case LayerKind::global_pool: return std::make_unique<GlobalPoolLayer<T, Backend>>(spec, grid, in);
  case LayerKind::upsample: return std::make_unique<UpsampleLayer<T, Backend>>(spec, grid, in, out);
  case LayerKind::activation: return std::make_unique<ActivationLayer<T, Backend>>(spec, box);
  case LayerKind::pointwise: return std::make_unique<PointwiseLayer<T, Backend>>(spec, box);
  case LayerKind::softmax: return std::make_unique<SoftmaxLayer<T, Backend>>(box);
  case LayerKind::dropout: return std::make_unique<DropoutLayer<T, Backend>>(spec, grid, in);
  case LayerKind::redistribute: return std::make_unique<RedistributeLayer<T, Backend>>(grid, in, out);
  case LayerKind::flatten: return std::make_unique<FlattenLayer<T, Backend>>(box);
  case LayerKind::dense: return std::make_unique<DenseLayer<T, Backend>>(spec, fused, grid, in);
  case LayerKind::batch_norm:
  case LayerKind::group_norm: return std::make_unique<NormLayer<T, Backend>>(spec, fused, grid, in);
  case LayerKind::concat:
  case LayerKind::add: return std::make_unique<JoinLayer<T, Backend>>(spec, grid, in, second, out);
  case LayerKind::user: break; // its type is known to the network's model only
  }
  throw usage_error(text("layer kind ", static_cast<int>(spec.kind), " is not known"));
}

} // namespace tessera
