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
  conv_transpose,
  pool,
  global_pool,
  upsample,
  activation,
  dropout,
  redistribute,
  flatten,
  dense,
  batch_norm,
  group_norm,
  pointwise,
  softmax,
  concat,
  add,
  user
};

/// Whether an average divides by the whole window or by its cells that are no padding with zeros.
enum class PaddingCounts : int { yes, no };

/// Where interpolation puts the outermost outputs: half a cell inside the border, or on the outermost cells.
enum class AlignCorners : int { no, yes };
/// Whether a normalisation scales and shifts its result by learned numbers, one pair a channel.
enum class Affine : int { yes, no };

/// Which ranks batch_norm takes statistics from together: all of them, each its own piece, those that hold parts of the
/// same samples, or those along some grid axes.
struct Scope {
  enum class Kind : int { all, piece, sample, axes } kind = Kind::all;
  unsigned axes = 0; ///< bit i for grid axis i
  friend constexpr bool operator==(const Scope&, const Scope&) = default;
};
inline constexpr Scope all_ranks{}, this_piece{Scope::Kind::piece, 0}, ranks_of_sample{Scope::Kind::sample, 0};
/// The ranks that differ along these axes of the grid only, counted from 0.
template <std::integral... Axes> constexpr Scope grid_axes(Axes... axes) {
  return {Scope::Kind::axes, (0U | ... | (axes >= 0 && axes < 31 ? 1U << axes : 1U << 31))};
}

struct LayerSpec {
  LayerKind kind{};
  Stencil stencil{};                                 ///< conv, pool
  Index<3> output_padding{};                         ///< conv_transpose: cells added above
  int channels = 0;                                  ///< conv, dense: of the output
  int conv_groups = 1;                               ///< conv: input and output channels fall into so many groups
  bool bias = false;                                 ///< conv, dense
  double bias_value = 0;                             ///< what biases start from
  Init init = Init::glorot_uniform;                  ///< conv, dense
  kernel::Activation activation{};                   ///< activation
  double slope = 0;                                  ///< leaky_relu; alpha of elu
  kernel::Pointwise function{};                      ///< pointwise; `custom` for a user layer that is one
  kernel::Pool pool{};                               ///< pool, global_pool
  PaddingCounts padding_counts = PaddingCounts::yes; ///< average pool
  int scale_d = 1, scale_h = 1, scale_w = 1;         ///< upsample
  kernel::Interpolation interpolation{};             ///< upsample
  AlignCorners align_corners = AlignCorners::no;     ///< upsample
  double keep = 1;                                   ///< dropout: the probability of keeping an element
  Layout layout{};                                   ///< to
  double epsilon = 0;                                ///< normalisations: added to the variance
  double momentum = 0;                               ///< batch_norm: of the running statistics
  Scope scope{};                                     ///< batch_norm: whose statistics
  Affine affine = Affine::yes;                       ///< normalisations
  int groups = 0;                                    ///< group_norm; see each_channel and all_channels
  int user = -1;                                     ///< user: which of the sequence's own layer types
  int from = -1;      ///< whose output it reads: that layer's position relative to this one; -1: the one before
  int other = 0;      ///< concat, add: whose output is the second operand, likewise
  int recomputed = 0; ///< at the first of this many layers that are computed again in the backward pass
  static constexpr int each_channel = 0, all_channels = -1; ///< values of `groups` that follow the input

  constexpr LayerSpec with_bias(double start = 0) const {
    LayerSpec s = *this;
    s.bias = true, s.bias_value = start;
    return s;
  }
  /// conv: output channels see the input channels of their own group only; weights (co, ci/groups, kd, kh, kw).
  /// .grouped(input channels) is a depthwise convolution.
  constexpr LayerSpec grouped(int in_groups) const {
    LayerSpec s = *this;
    s.conv_groups = in_groups;
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
    case LayerKind::conv_transpose: return "conv_transpose";
    case LayerKind::pool: return pool == kernel::Pool::max ? "max_pool" : "average_pool";
    case LayerKind::global_pool: return pool == kernel::Pool::max ? "global_max_pool" : "global_average_pool";
    case LayerKind::upsample: return "upsample";
    case LayerKind::activation:
      switch (activation) {
      case kernel::Activation::relu: return "relu";
      case kernel::Activation::elu: return "elu";
      case kernel::Activation::sigmoid: return "sigmoid";
      case kernel::Activation::tanh: return "tanh";
      default: return "leaky_relu";
      }
    case LayerKind::pointwise: return function == kernel::Pointwise::silu ? "silu" : "gelu";
    case LayerKind::softmax: return "softmax";
    case LayerKind::dropout: return "dropout";
    case LayerKind::redistribute: return "to";
    case LayerKind::flatten: return "flatten";
    case LayerKind::dense: return "dense";
    case LayerKind::batch_norm: return "batch_norm";
    case LayerKind::group_norm:
      return groups == each_channel ? "instance_norm" : groups == all_channels ? "layer_norm" : "group_norm";
    case LayerKind::concat: return "concat";
    case LayerKind::add: return "add";
    case LayerKind::user: return function == kernel::Pointwise::custom ? "pointwise" : "user layer";
    }
    return "?";
  }
};

/// A layer of the user's own: see layer/user.hpp.
template <class L>
concept LocalLayer = requires(const L& l) {
  { l.stencil() } -> std::convertible_to<Stencil>;
};

/// A pointwise function of the user's: a type with templates or overloads value(v) and derivative(v) for numbers v.
template <class F>
concept PointwiseFunction = std::is_class_v<F> && requires(const F& f, float v, double w) {
  { f.value(v) } -> std::convertible_to<float>;
  { f.derivative(v) } -> std::convertible_to<float>;
  { f.value(w) } -> std::convertible_to<double>;
  { f.derivative(w) } -> std::convertible_to<double>;
};
/// Such a function as a layer: it reads the one cell that it writes, and has no parameters.
template <PointwiseFunction F> struct Pointwise {
  F f{};
  constexpr Stencil stencil() const { return window(1); }
};
/// y = f.value(x), element by element, with your own derivative: seq(conv(8), pointwise(Swish{}), conv(8)).
template <PointwiseFunction F> constexpr Pointwise<F> pointwise(F f) { return {f}; }
/// Two functions as one: pointwise<swish, swish_derivative>().
template <auto Value, auto Derivative> struct FunctionPair {
  template <class V> constexpr V value(V v) const { return static_cast<V>(Value(v)); }
  template <class V> constexpr V derivative(V v) const { return static_cast<V>(Derivative(v)); }
};
template <auto Value, auto Derivative> constexpr Pointwise<FunctionPair<Value, Derivative>> pointwise() { return {}; }
/// Says what pointwise() takes.
template <class F>
requires(!PointwiseFunction<F>) constexpr LayerSpec pointwise(const F&) {
  static_assert(PointwiseFunction<F>, "tessera: pointwise(F{}) takes a type with const functions value(v) and "
                                      "derivative(v) for float and double v");
  return {};
}

/// Convolution to `channels` output channels, without bias unless .with_bias(). Weights (co, ci, kd, kh, kw).
constexpr LayerSpec conv(int channels, Stencil s = window(3).same()) {
  return {.kind = LayerKind::conv, .stencil = s, .channels = channels};
}
/// The adjoint of the convolution with stencil s from `channels` channels (Zeiler et al. 2010; ConvTranspose3d in
/// PyTorch): extents (in - 1) stride - padding + span + output padding. Padding cuts the output. Without bias unless
/// .with_bias(). Weights (ci, co, kd, kh, kw). Windows that do not overlap (kernel = stride) need no messages.
constexpr LayerSpec conv_transpose(int channels, Stencil s, Index<3> output_padding = {}) {
  return {.kind = LayerKind::conv_transpose, .stencil = s, .output_padding = output_padding, .channels = channels};
}
/// Volumes k times as large on each side: conv_transpose with kernel = stride = k.
constexpr LayerSpec up(int channels, int k = 2) { return conv_transpose(channels, window(k).strided(k)); }
/// Average over each window; zeros of the padding count in the divisor by default, as in the CosmoFlow papers. Padding
/// of other modes holds values like others: it always counts.
constexpr LayerSpec average_pool(Stencil s, PaddingCounts counts = PaddingCounts::yes) {
  return {.kind = LayerKind::pool, .stencil = s, .pool = kernel::Pool::average, .padding_counts = counts};
}
/// Maximum over each window; ties go to the first global index, zeros of the padding never win.
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
/// x for x > 0, alpha * (exp(x) - 1) otherwise.
constexpr LayerSpec elu(double alpha = 1) {
  return {.kind = LayerKind::activation, .activation = kernel::Activation::elu, .slope = alpha};
}
/// 1 / (1 + exp(-x))
constexpr LayerSpec sigmoid() { return {.kind = LayerKind::activation, .activation = kernel::Activation::sigmoid}; }
constexpr LayerSpec tanh() { return {.kind = LayerKind::activation, .activation = kernel::Activation::tanh}; }
/// x times the part of a standard normal distribution below x, by the error function; or its approximation by tanh.
enum class Gelu : int { erf, tanh };
constexpr LayerSpec gelu(Gelu how = Gelu::erf) {
  return {.kind = LayerKind::pointwise,
          .function = how == Gelu::erf ? kernel::Pointwise::gelu : kernel::Pointwise::gelu_tanh};
}
/// x * sigmoid(x), also known as swish.
constexpr LayerSpec silu() { return {.kind = LayerKind::pointwise, .function = kernel::Pointwise::silu}; }
/// exp(x) / the sum of exp(x) over the channels of the same cell.
constexpr LayerSpec softmax() { return {.kind = LayerKind::softmax}; }
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
/// and the variance of the whole batch on the ranks of `over`; in inference with running ones, which follow with weight
/// `momentum`. Variances as in PyTorch: biased to normalise, unbiased in the running statistics. Weights gamma (c),
/// biases beta (c), none with Affine::no.
struct BatchNorm {
  double epsilon = 1e-5, momentum = 0.1;
  Scope over{};
  Affine affine = Affine::yes;
};
constexpr LayerSpec batch_norm(BatchNorm how = {}) {
  return {.kind = LayerKind::batch_norm,
          .bias = how.affine == Affine::yes,
          .epsilon = how.epsilon,
          .momentum = how.momentum,
          .scope = how.over,
          .affine = how.affine};
}

/// The same with the mean and the variance of each sample's groups of channels, over all of its cells, wherever they
/// are; alike in training and inference. gamma and beta are per channel in all three.
struct GroupNorm {
  double epsilon = 1e-5;
  Affine affine = Affine::yes;
};
/// `groups` groups of adjacent channels (Wu and He 2018).
constexpr LayerSpec group_norm(int groups, GroupNorm how = {}) {
  return {.kind = LayerKind::group_norm,
          .bias = how.affine == Affine::yes,
          .epsilon = how.epsilon,
          .affine = how.affine,
          .groups = groups < 1 ? -2 : groups};
}
/// Each channel by itself (Ulyanov et al. 2016).
constexpr LayerSpec instance_norm(GroupNorm how = {}) {
  LayerSpec s = group_norm(1, how);
  s.groups = LayerSpec::each_channel;
  return s;
}
/// All channels and cells of a sample together (Ba et al. 2016).
constexpr LayerSpec layer_norm(GroupNorm how = {}) {
  LayerSpec s = group_norm(1, how);
  s.groups = LayerSpec::all_channels;
  return s;
}
/// How many groups a group_norm makes of `channels` channels.
constexpr long groups_of(const LayerSpec& s, long channels) {
  return s.groups == LayerSpec::each_channel ? channels : s.groups == LayerSpec::all_channels ? 1 : s.groups;
}

} // namespace tessera
