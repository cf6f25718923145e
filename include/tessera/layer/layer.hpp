// layer/layer.hpp: Layer, one step of a network on this rank, forward and backward, with its communication inside.
//
// One virtual call per layer and direction; geometry is decided when the layer is made, from global indices. The
// network owns all memory: a layer reads and writes tensors whose blocks are large enough for its halo (need()).
//
// May know: base, layout, space, comm, tensor, move, kernel/problem.hpp, layer/spec.hpp.
// Example: layer->forward(pass, x, y);   layer->backward(pass, x, y, dy, &dx);
#pragma once

#include <functional>
#include <memory>
#include <tessera/layer/spec.hpp>
#include <tessera/move/halo.hpp>

namespace tessera {

enum class Mode : int { training, inference };

/// What one pass through the network knows; handed to every layer.
template <class T> struct Pass {
  Mode mode = Mode::training;
  std::uint64_t seed = 0; ///< of dropout masks
  std::uint64_t step = 0; ///< training steps so far
  int layer = 0;          ///< position in the network
  bool again = false;     ///< a forward pass repeated in the backward pass: the same values, and nothing else happens
  std::span<const T> weights{};
  std::span<const T> biases{};
  std::span<T> weight_gradients{};
  std::span<T> bias_gradients{};
  std::span<T> state{}; ///< values that a layer keeps from step to step and that belong in checkpoints
  /// Called once by a layer with parameters as soon as its gradients are complete on this rank.
  std::function<void()> gradients_ready{};
  /// Moves pending communication on; called between kernels.
  std::function<void()> poke{};
};

/// The activation whose output a layer reads; the reader can apply its derivative on the way back.
struct InputActivation {
  kernel::Activation kind = kernel::Activation::none;
  double slope = 0;
};

/// What a layer moves and copies on this rank in one training step.
struct LayerTraffic {
  Traffic forward, backward;
  std::uint64_t dense_copies = 0; ///< operands copied because a kernel cannot read them in place
};

template <class T, class Space = host> class Layer {
public:
  using Field = Tensor<T, 5, Space>;
  virtual ~Layer() = default;

  /// The box of the input this rank must hold: its block of the map and the halo around it.
  virtual Box<5> need() const = 0;
  /// y = layer(x). Exchanges the halo of x, which stays in x for the backward pass.
  virtual void forward(Pass<T>& pass, Field& x, Field& y) = 0;
  /// The messages of forward() alone: gives x, whose own block was computed again, its halo back.
  virtual void exchange_again(Field&) {}
  /// From dy (the gradient of the loss with respect to y, which it may overwrite): parameter gradients, and *dx unless
  /// dx is null (the first layer of a network needs none). Gradients keep the layout of their tensors. Where the plan
  /// says so (NetworkPlan::in_place), *dx lies in the memory of x, and y in that of dy.
  virtual void backward(Pass<T>& pass, Field& x, const Field& y, Field& dy, Field* dx) = 0;
  /// The same for layers with two operands (LayerSpec::joins()); either gradient may be null. dy is not changed.
  virtual void join(Pass<T>& pass, Field& x, Field& other, Field& y) {
    (void)pass, (void)x, (void)other, (void)y;
    throw usage_error("a layer with one operand was called with two");
  }
  virtual void join_backward(Pass<T>& pass, const Field& dy, Field* dx, Field* dother) {
    (void)pass, (void)dy, (void)dx, (void)dother;
    throw usage_error("a layer with one operand was called with two");
  }
  /// Asks the layer to multiply the dx it writes by the derivative of the activation that made x. False: it cannot, and
  /// the layer that made x does it in a pass of its own.
  virtual bool absorb(InputActivation) { return false; }
  /// Tells a layer with a fused activation that the layer after it absorbed the derivative.
  virtual void activation_is_absorbed() {}
  virtual LayerTraffic traffic() const { return {}; }
  /// Bytes of scratch memory it holds.
  virtual std::size_t scratch_bytes() const { return 0; }
};

/// The part of a window's geometry that one rank works on: the box it reads and the zero padding its kernel adds.
struct LocalWindow {
  Box<5> input; ///< what the kernel reads, in global indices
  Index<3> below{}, above{};
};

/// For the outputs `out` of a stencil on a tensor of extents `in`: what is read, and how much of the windows lies
/// outside the tensor on each side (zeros that the kernel pads; sides of other modes are never clipped).
inline LocalWindow local_window(const Box<5>& out, const Stencil& s, const Extents<5>& in) {
  LocalWindow l;
  l.input = needed_input(out, s, in);
  if (out.empty()) return l;
  for (int i = 0; i < 3; ++i) {
    const Interval reads = s[i].reads({out.lo[2 + i], out.hi[2 + i]});
    l.below[i] = l.input.lo[2 + i] - reads.lo;
    l.above[i] = reads.hi - l.input.hi[2 + i];
  }
  return l;
}

/// The cells of `outer` outside `inner` (dims d,h,w), as boxes that do not overlap.
inline std::vector<Box<5>> shell(Box<5> outer, const Box<5>& inner) {
  std::vector<Box<5>> boxes;
  for (int k = 2; k < 5; ++k) { // peel the rims off, dim after dim, until the inner box remains
    Box<5> low = outer, high = outer;
    low.hi[k] = inner.lo[k];
    high.lo[k] = inner.hi[k];
    if (!low.empty()) boxes.push_back(low);
    if (!high.empty()) boxes.push_back(high);
    outer.lo[k] = inner.lo[k], outer.hi[k] = inner.hi[k];
  }
  return boxes;
}

/// The outputs of this rank in two parts: those whose inputs the rank owns, computed while the halo travels, and the
/// rims that need the halo. No rims if nothing is exchanged or no output is free of the halo.
struct OverlapParts {
  Box<5> interior;
  std::vector<Box<5>> rims;
};
inline OverlapParts overlap_parts(const Box<5>& out, const Box<5>& owned, const Stencil& s, const Extents<5>& in) {
  OverlapParts p{out, {}};
  if (out.empty() || owned.contains(needed_input(out, s, in))) return p;
  Box<5> interior = out;
  for (int k = 2; k < 5; ++k) {
    const auto inside = [&](long q) {
      Box<5> one = out;
      one.lo[k] = q, one.hi[k] = q + 1;
      const Box<5> n = needed_input(one, s, in);
      return n.lo[k] >= owned.lo[k] && n.hi[k] <= owned.hi[k];
    };
    while (interior.lo[k] < interior.hi[k] && !inside(interior.lo[k])) ++interior.lo[k];
    while (interior.hi[k] > interior.lo[k] && !inside(interior.hi[k] - 1)) --interior.hi[k];
  }
  if (interior.empty()) return p;
  p.rims = shell(out, interior);
  p.interior = interior;
  return p;
}

} // namespace tessera
