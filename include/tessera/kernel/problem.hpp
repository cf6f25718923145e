// kernel/problem.hpp: local problems as plain structs. A kernel never knows that its block is part of a larger tensor.
//
// The caller derives a problem from global indices: the input block already holds its halo, and `below`/`above` say how
// much zero padding the block still needs on each side (the global border on this rank; 0 where a neighbour's data
// is in the block). Both may differ per rank and per side.
//
// May know: base.
// Example: Conv p{.n = 1, .ci = 4, .co = 16, .in = {{8, 8, 8}}, .out = {{6, 6, 6}}, .k = {{3, 3, 3}}};  p.flop()
#pragma once

#include <string>
#include <tessera/base/error.hpp>
#include <tessera/base/extents.hpp>

namespace tessera::kernel {

/// Depth, height, width.
using Triple = Index<3>;

/// Activations whose derivative follows from their output, so that the operation before them can take them in and their
/// input is kept nowhere.
enum class Activation { none, relu, leaky_relu, elu, sigmoid, tanh };

/// Pointwise functions whose derivative needs their input; `custom` is a function of the user's.
enum class Pointwise { none, gelu, gelu_tanh, silu, custom };

/// A pass of a layer with weights.
enum class Pass { forward, backward_data, backward_weights };

/// One local convolution, cross-correlation form as in all deep-learning libraries:
///   y[n,o,q] = act( b[o] + sum_{i,k} w[o,i,k] * x[n, i, q*stride - below + k*dilation] ),  zero outside the block.
/// x: (n, ci, in), y: (n, co, out), w: (co, ci, k) stored co,d,h,w,ci; all channels-last.
/// With groups, output channel o reads only the ci/groups input channels of its group o / (co/groups), and the weights
/// are (co, ci/groups, k); groups == ci is a depthwise convolution.
/// Requires out <= (in + below + above - dilation*(k-1) - 1) / stride + 1; rows of x beyond the last window are unread.
struct Conv {
  long n = 0, ci = 0, co = 0;
  Triple in{}, out{}, k{}, stride{{1, 1, 1}}, dilation{{1, 1, 1}}, below{}, above{};
  Activation act = Activation::none; ///< fused into forward only; its derivative is the caller's business
  double slope = 0;                  ///< of leaky_relu; alpha of elu
  long groups = 1;                   ///< a divisor of ci and of co
  friend bool operator==(const Conv&, const Conv&) = default;

  /// Floating-point operations of one pass (forward, backward-data or backward-weights), 2 per multiply-add,
  /// counting taps that fall into the padding as the literature does.
  double flop() const {
    return 2.0 * double(n) * double(ci / groups) * double(co) * double(product(k)) * double(product(out));
  }
  std::string str() const {
    return text("conv ", n, "x", ci, "x", in, " -> ", co, "x", out, ", kernel ", k, ", stride ", stride, ", dilation ",
                dilation, ", padding ", below, "/", above, groups > 1 ? text(", groups ", groups) : "");
  }
};

enum class Pool { max, average };

/// What a backward pass does with the parameter gradients that stand in the target.
enum class Gradient { overwrite, accumulate };

/// One local pooling. The divisor of `average` is global: the window volume if padding counts (without what reaches
/// beyond the padding, if anything does), else the number of window cells inside the *global* tensor. `origin` and
/// `global` place the block in it. x: (n, c, in), y: (n, c, out). Output q of this block is the global output q +
/// out_origin; its window starts at the global input (q + out_origin) * stride - padding. Input cell i of the block is
/// the global cell i + in_origin.
struct Pooling {
  Pool kind = Pool::average;
  long n = 0, c = 0;
  Triple in{}, out{}, k{}, stride{{1, 1, 1}}, dilation{{1, 1, 1}};
  static constexpr long unlimited = long{1} << 48;
  Triple padding{};                                        ///< below, of the global problem
  Triple padding_above{{unlimited, unlimited, unlimited}}; ///< above: what lies beyond counts in no divisor
  Triple in_origin{}, out_origin{};                        ///< global index of the block's first input and output cell
  Triple global{};                                         ///< global input extents
  bool count_padding = true;
  friend bool operator==(const Pooling&, const Pooling&) = default;
};

/// How an upsampling finds values between cells.
enum class Interpolation { nearest, trilinear };

/// One local upsampling: output extents are the input's times `scale`. Nearest: y[q] = x[q / scale]. Trilinear: the
/// product over dims of linear interpolation at (q + 1/2) / scale - 1/2, or with aligned corners at
/// q * (global - 1) / (global * scale - 1); beyond the outermost cells their values. Origins and `global` as in
/// Pooling. x: (n, c, in), y: (n, c, out).
struct Upsampling {
  Interpolation kind = Interpolation::nearest;
  bool align_corners = false;
  long n = 0, c = 0;
  Triple in{}, out{}, scale{{1, 1, 1}};
  Triple in_origin{}, out_origin{}; ///< global index of the block's first input and output cell
  Triple global{};                  ///< global input extents
  friend bool operator==(const Upsampling&, const Upsampling&) = default;
};

/// One local dense layer: y[n,o] = act(b[o] + sum_i w[o,i] x[n,i]); everything row-major and dense.
struct Dense {
  long n = 0, ci = 0, co = 0;
  Activation act = Activation::none;
  double slope = 0;
  friend bool operator==(const Dense&, const Dense&) = default;
  double flop() const { return 2.0 * double(n) * double(ci) * double(co); }
};

} // namespace tessera::kernel
