// layer/spec.hpp: LayerSpec, what a layer is before it runs: a constexpr value of plain scalars.
//
// Networks are values, not types: a sequence is an array of these, so 200 layers compile as fast as two. The functions
// here (conv, average_pool, ...) are the words of the network language; layers of your own are named in seq() as they
// are.
//
// May know: base, layout, kernel/problem.hpp, backend/initialise.hpp.
// Example: constexpr LayerSpec l = conv(16, window(3).same()).with_bias();
#pragma once

#include <concepts>
#include <string>
#include <tessera/backend/initialise.hpp>
#include <tessera/kernel/problem.hpp>
#include <tessera/layout/stencil.hpp>

namespace tessera {

enum class LayerKind : int {
  conv,
  pool,
  global_pool,
  upsample,
  activation,
  dropout,
  redistribute,
  flatten,
  dense,
  batch_norm,
  concat,
  add,
  user
};

/// Whether an average divides by the whole window or by its cells inside the global tensor.
enum class PaddingCounts : int { yes, no };

/// Where interpolation puts the outermost outputs: half a cell inside the border, or on the outermost cells.
enum class AlignCorners : int { no, yes };

struct LayerSpec {
  LayerKind kind{};
  Stencil stencil{};                                 ///< conv, pool
  int channels = 0;                                  ///< conv, dense: of the output
  int conv_groups = 1;                               ///< conv: input and output channels fall into so many groups
  bool bias = false;                                 ///< conv, dense
  double bias_value = 0;                             ///< what biases start from
  Init init = Init::glorot_uniform;                  ///< conv, dense
  kernel::Activation activation{};                   ///< activation
  double slope = 0;                                  ///< leaky_relu
  kernel::Pool pool{};                               ///< pool, global_pool
  PaddingCounts padding_counts = PaddingCounts::yes; ///< average pool
  int scale_d = 1, scale_h = 1, scale_w = 1;         ///< upsample
  kernel::Interpolation interpolation{};             ///< upsample
  AlignCorners align_corners = AlignCorners::no;     ///< upsample
  double keep = 1;                                   ///< dropout: the probability of keeping an element
  Layout layout{};                                   ///< to
  double epsilon = 0;                                ///< batch_norm: added to the variance
  double momentum = 0;                               ///< batch_norm: of the running statistics
  int user = -1;                                     ///< user: which of the sequence's own layer types
  int from = -1;      ///< whose output it reads: that layer's position relative to this one; -1: the one before
  int other = 0;      ///< concat, add: whose output is the second operand, likewise
  int recomputed = 0; ///< at the first of this many layers that are computed again in the backward pass

  constexpr LayerSpec with_bias(double start = 0) const {
    LayerSpec s = *this;
    s.bias = true, s.bias_value = start;
    return s;
  }
  /// conv: output channels see the input channels of their own group only; weights (co, ci/groups, kd, kh, kw).
  /// .grouped(input channels) is a depthwise convolution.
  constexpr LayerSpec grouped(int groups) const {
    LayerSpec s = *this;
    s.conv_groups = groups;
    return s;
  }
  /// upsample: by linear interpolation along each dim instead of the nearest cell.
  constexpr LayerSpec trilinear(AlignCorners corners = AlignCorners::no) const {
    LayerSpec s = *this;
    s.interpolation = kernel::Interpolation::trilinear, s.align_corners = corners;
    return s;
  }
  constexpr Index<3> scales() const { return {{scale_d, scale_h, scale_w}}; }
  constexpr LayerSpec initialised(Init how) const {
    LayerSpec s = *this;
    s.init = how;
    return s;
  }
  /// concat and add have two operands.
  constexpr bool joins() const { return kind == LayerKind::concat || kind == LayerKind::add; }
  constexpr const char* name() const {
    switch (kind) {
    case LayerKind::conv: return "conv";
    case LayerKind::pool: return pool == kernel::Pool::max ? "max_pool" : "average_pool";
    case LayerKind::global_pool: return pool == kernel::Pool::max ? "global_max_pool" : "global_average_pool";
    case LayerKind::upsample: return "upsample";
    case LayerKind::activation: return activation == kernel::Activation::relu ? "relu" : "leaky_relu";
    case LayerKind::dropout: return "dropout";
    case LayerKind::redistribute: return "to";
    case LayerKind::flatten: return "flatten";
    case LayerKind::dense: return "dense";
    case LayerKind::batch_norm: return "batch_norm";
    case LayerKind::concat: return "concat";
    case LayerKind::add: return "add";
    case LayerKind::user: return "user layer";
    }
    return "?";
  }
};

/// A layer of the user's own: see layer/user.hpp.
template <class L>
concept LocalLayer = requires(const L& l) {
  { l.stencil() } -> std::convertible_to<Stencil>;
};

/// Convolution to `channels` output channels, without bias unless .with_bias(). Weights (co, ci, kd, kh, kw).
constexpr LayerSpec conv(int channels, Stencil s = window(3).same()) {
  return {.kind = LayerKind::conv, .stencil = s, .channels = channels};
}
/// Average over each window; padding counts in the divisor by default, as in the CosmoFlow papers.
constexpr LayerSpec average_pool(Stencil s, PaddingCounts counts = PaddingCounts::yes) {
  return {.kind = LayerKind::pool, .stencil = s, .pool = kernel::Pool::average, .padding_counts = counts};
}
/// Maximum over each window; ties go to the first global index, padding never wins.
constexpr LayerSpec max_pool(Stencil s) { return {.kind = LayerKind::pool, .stencil = s, .pool = kernel::Pool::max}; }
/// Windows of k cells a side that do not overlap.
constexpr LayerSpec max_pool(int k) { return max_pool(window(k).strided(k)); }
constexpr LayerSpec average_pool(int k) { return average_pool(window(k).strided(k)); }
/// The average, or the maximum, of each sample's whole volume: 1x1x1, on all ranks that held parts of the sample. Grid
/// axes that split d, h or w replicate from here on, as after to(...); dense layers may follow.
constexpr LayerSpec global_average_pool() { return {.kind = LayerKind::global_pool, .pool = kernel::Pool::average}; }
constexpr LayerSpec global_max_pool() { return {.kind = LayerKind::global_pool, .pool = kernel::Pool::max}; }
/// Volumes `scale` times as large: each cell repeated, or .trilinear() as PyTorch does it.
constexpr LayerSpec upsample(int scale_d, int scale_h, int scale_w) {
  return {.kind = LayerKind::upsample, .scale_d = scale_d, .scale_h = scale_h, .scale_w = scale_w};
}
constexpr LayerSpec upsample(int scale) { return upsample(scale, scale, scale); }
constexpr LayerSpec relu() { return {.kind = LayerKind::activation, .activation = kernel::Activation::relu}; }
/// x for x > 0, slope * x otherwise.
constexpr LayerSpec leaky_relu(double slope) {
  return {.kind = LayerKind::activation, .activation = kernel::Activation::leaky_relu, .slope = slope};
}
/// In training keeps each element with probability `keep` and divides it by `keep`; the identity in inference.
/// The mask depends on seed, layer, step and the global index only.
constexpr LayerSpec dropout(double keep) { return {.kind = LayerKind::dropout, .keep = keep}; }
/// Redistributes the activations to another layout; the gradient travels back.
constexpr LayerSpec to(Layout l) { return {.kind = LayerKind::redistribute, .layout = l}; }
/// (n, c, d, h, w) -> (n, c*d*h*w, 1, 1, 1) in logical order, as in PyTorch; c, d, h, w are not split.
constexpr LayerSpec flatten() { return {.kind = LayerKind::flatten}; }
/// Fully connected, with bias (0 unless .with_bias(start)). Weights (co, ci). Follows flatten().
constexpr LayerSpec dense(int channels) { return {.kind = LayerKind::dense, .channels = channels, .bias = true}; }

/// The channels of the layer before, then those of the layer at relative position `other` (-1: the one before). Both
/// have the same d, h, w and layout. Networks rarely write it: see skip_concat() and branch().
constexpr LayerSpec concat(int other) { return {.kind = LayerKind::concat, .other = other}; }
/// The sum of two outputs of one shape, likewise: see residual().
constexpr LayerSpec add(int other) { return {.kind = LayerKind::add, .other = other}; }

/// gamma (x - mean) / sqrt(variance + epsilon) + beta per channel (Ioffe and Szegedy 2015). In training with the mean
/// and the variance of the whole batch on all ranks; in inference with running ones, which follow with weight
/// `momentum`. Variances as in PyTorch: biased to normalise, unbiased in the running statistics. Weights gamma (c),
/// biases beta (c).
struct BatchNorm {
  double epsilon = 1e-5, momentum = 0.1;
};
constexpr LayerSpec batch_norm(BatchNorm how = {}) {
  return {.kind = LayerKind::batch_norm, .bias = true, .epsilon = how.epsilon, .momentum = how.momentum};
}

} // namespace tessera
