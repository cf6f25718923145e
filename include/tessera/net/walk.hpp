// net/walk.hpp: the walk through a network: shapes, layouts, parameters and faults, at compile time or at run time.
//
// Faults are data: the walk returns the first one, and Network asserts on it once, so a mistake prints one line that
// names the remedy instead of a template back-trace.
//
// May know: base, layout, kernel/problem.hpp, layer/spec.hpp, net/sequence.hpp.
// Example: constexpr auto w = walk(net, input, place(n, d, h, w));  static_assert(w.fault == Fault::none);
#pragma once

#include <numeric>
#include <span>
#include <tessera/net/sequence.hpp>
#include <vector>

namespace tessera {

/// What can be wrong with a network before it runs.
enum class Fault : int {
  none,
  empty_network,
  bad_window,
  window_larger_than_input,
  periodic_padding_too_wide,
  reflecting_padding_too_wide,
  ceil_without_zeros,
  ceil_without_window,
  no_channels,
  conv_groups_do_not_divide,
  groups_without_conv,
  bad_scale,
  flatten_splits_sample,
  dense_without_flatten,
  bad_keep_probability,
  negative_slope,
  negative_alpha,
  bad_normalisation,
  no_such_axis,
  groups_do_not_divide,
  one_value_per_group,
  unknown_layer,
  another_number_of_axes,
  pending_sum,
  split_channel,
  bad_reference,
  unused_output,
  sizes_differ,
  layouts_differ,
  bad_recomputation,
  transposed_padding,
  bad_output_padding,
  cut_away
};

/// The remedy, in words.
constexpr const char* fault_text(Fault f) {
  switch (f) {
  case Fault::none: return "no fault";
  case Fault::empty_network: return "the network has no layers";
  case Fault::bad_window: return "kernel, stride and dilation must be at least 1, padding at least 0";
  case Fault::window_larger_than_input:
    return "a window is larger than its padded input; use a smaller kernel, fewer poolings or a larger input";
  case Fault::periodic_padding_too_wide: return "periodic padding is wider than the input; use at most one period";
  case Fault::reflecting_padding_too_wide:
    return "reflecting padding is not narrower than the input; use at most size - 1, or Padding::replicate";
  case Fault::ceil_without_window: return "ceil() is for windows that slide; conv_transpose takes output padding";
  case Fault::ceil_without_zeros: return "ceil() needs padding with zeros: nothing else is known beyond the padding";
  case Fault::no_channels: return "a layer has no channels; give conv(channels) or dense(channels) at least 1";
  case Fault::conv_groups_do_not_divide:
    return "grouped(groups) needs at least 1 group, and divides the input and the output channels";
  case Fault::groups_without_conv: return "grouped(groups) is for conv(...); other layers have no groups of weights";
  case Fault::bad_scale: return "upsample(scale) needs scales of at least 1";
  case Fault::flatten_splits_sample:
    return "flatten needs whole samples on a rank; put to(place(n,...)) with only n and rep before it";
  case Fault::dense_without_flatten: return "dense needs 1x1x1 volumes; put flatten() before it";
  case Fault::bad_keep_probability: return "dropout(keep) needs 0 < keep <= 1";
  case Fault::unknown_layer: return "a user layer without its type; name it in seq(...) of the model";
  case Fault::negative_slope: return "leaky_relu(slope) needs slope >= 0: its derivative is recovered from its output";
  case Fault::negative_alpha: return "elu(alpha) needs alpha >= 0: its derivative is recovered from its output";
  case Fault::bad_normalisation: return "a normalisation needs epsilon > 0, batch_norm 0 < momentum <= 1";
  case Fault::no_such_axis:
    return "batch_norm takes statistics over a grid axis that the layout does not place; count axes from 0";
  case Fault::groups_do_not_divide:
    return "group_norm(groups) needs at least one group, and groups that divide the channels";
  case Fault::one_value_per_group:
    return "a group of one value per sample has no variance; use fewer groups, or normalise before the volume has "
           "shrunk to one cell";
  case Fault::another_number_of_axes:
    return "a layout places another number of grid axes than the network's; give "
           "to(place(...)) one placement per axis";
  case Fault::pending_sum: return "activations cannot be a pending sum; use rep or a split in place(...)";
  case Fault::split_channel: return "channels cannot be split here; split n, d, h or w";
  case Fault::bad_reference: return "it reads the output of a layer that does not come before it";
  case Fault::unused_output: return "no layer reads its output; leave it out, or join it with concat or add";
  case Fault::sizes_differ:
    return "the two operands differ in size; crop or pad the input so that it divides by all strides between them";
  case Fault::layouts_differ: return "the two operands differ in layout; put the same to(place(...)) into both paths";
  case Fault::transposed_padding: return "the padding of conv_transpose cuts its output and has no mode; use zeros";
  case Fault::bad_output_padding: return "output padding must be at least 0 and below the stride or the dilation";
  case Fault::cut_away: return "padding cuts away the whole output; use less";
  case Fault::bad_recomputation: return "recompute(...) needs at least one layer, and reaches past the end";
  }
  return "?";
}

/// One layer as the walk sees it. Shapes are c,d,h,w of one sample.
struct LayerInfo {
  Extents<4> in{}, out{};
  Layout layout_in{}, layout_out{};
  Extents<5> weights{}; ///< (co, ci, kd, kh, kw); product 0 for none
  long biases = 0;
  long state = 0;  ///< values kept from step to step that are no parameters
  double flop = 0; ///< forward, one sample, convolutions and dense layers
  constexpr long parameters() const { return (weights[0] ? product(weights) : 0) + biases; }
};

struct WalkFault {
  Fault fault = Fault::none;
  int layer = -1;
  Dim dim = Dim::n;
  long need = 0, have = 0;
};

namespace detail {

constexpr Fault check_layout(const Layout& l, int axes) {
  if (l.axes != axes) return Fault::another_number_of_axes;
  if (l.has_sum()) return Fault::pending_sum;
  if (l.splits(Dim::c)) return Fault::split_channel;
  return Fault::none;
}

/// The output of a layer: shape and layout.
struct EdgeInfo {
  Extents<4> shape{};
  Layout layout{};
};

/// The shape after `s`, whose operands are `first` and, if it joins, `second`; the first fault, if any, goes to
/// `fault`.
template <class Rules>
constexpr LayerInfo infer(const LayerSpec& s, const EdgeInfo& first, const EdgeInfo& second, const Rules& rules,
                          WalkFault& fault) {
  const Extents<4>& in = first.shape;
  const Layout& layout = first.layout;
  LayerInfo i{.in = in, .out = in, .layout_in = layout, .layout_out = layout};
  const auto fail = [&](Fault f, Dim dim = Dim::n, long need = 0, long have = 0) {
    if (fault.fault == Fault::none) fault = {f, -1, dim, need, have};
  };
  const auto slide = [&](const Stencil& st) {
    if (!st.valid()) return fail(Fault::bad_window);
    for (int k = 0; k < 3; ++k) {
      const Dim dim = static_cast<Dim>(k + 2);
      if (!st[k].rounding_fits()) fail(Fault::ceil_without_zeros, dim);
      if (!st[k].can_fill(Padding::periodic, in[k + 1]))
        fail(Fault::periodic_padding_too_wide, dim, st[k].widest(Padding::periodic), in[k + 1]);
      if (!st[k].can_fill(Padding::reflect, in[k + 1]))
        fail(Fault::reflecting_padding_too_wide, dim, st[k].widest(Padding::reflect), in[k + 1] - 1);
      i.out[k + 1] = st[k].output(in[k + 1]);
      if (i.out[k + 1] < 1)
        fail(Fault::window_larger_than_input, dim, st[k].span(), in[k + 1] + st[k].below + st[k].above);
    }
  };
  if (s.conv_groups != 1 && s.kind != LayerKind::conv) fail(Fault::groups_without_conv);
  switch (s.kind) {
  case LayerKind::conv:
    if (s.channels < 1) fail(Fault::no_channels);
    slide(s.stencil);
    i.out[0] = s.channels;
    if (s.conv_groups < 1 || in[0] % s.conv_groups != 0 || s.channels % s.conv_groups != 0) {
      fail(Fault::conv_groups_do_not_divide);
      break;
    }
    i.weights = {{s.channels, in[0] / s.conv_groups, s.stencil.d.k, s.stencil.h.k, s.stencil.w.k}};
    i.biases = s.bias ? s.channels : 0;
    i.flop = 2.0 * double(product(i.weights)) * double(i.out[1] * i.out[2] * i.out[3]);
    break;
  case LayerKind::conv_transpose:
    if (s.channels < 1) fail(Fault::no_channels);
    if (!s.stencil.valid()) {
      fail(Fault::bad_window);
      break;
    }
    i.out[0] = s.channels;
    for (int k = 0; k < 3; ++k) {
      const Window& v = s.stencil[k];
      const Dim dim = static_cast<Dim>(k + 2);
      if (v.mode != Padding::zeros) fail(Fault::transposed_padding, dim);
      if (v.rounding != Rounding::down) fail(Fault::ceil_without_window, dim);
      const long more = s.output_padding[k], most = v.stride > v.dilation ? v.stride : v.dilation;
      if (more < 0 || more >= most) fail(Fault::bad_output_padding, dim, most, more);
      i.out[k + 1] = v.transposed_output(in[k + 1], more);
      if (i.out[k + 1] < 1) fail(Fault::cut_away, dim, v.below + v.above, i.out[k + 1] + v.below + v.above);
    }
    i.weights = {{in[0], s.channels, s.stencil.d.k, s.stencil.h.k, s.stencil.w.k}};
    i.biases = s.bias ? s.channels : 0;
    i.flop = 2.0 * double(product(i.weights)) * double(in[1] * in[2] * in[3]);
    break;
  case LayerKind::pool: slide(s.stencil); break;
  case LayerKind::global_pool: // the ranks that split the volume all hold the result
    i.out = {{in[0], 1, 1, 1}};
    for (int a = 0; a < layout.axes; ++a)
      if (layout[a].splits(Dim::d) || layout[a].splits(Dim::h) || layout[a].splits(Dim::w))
        i.layout_out[a] = Placement(Placement::Kind::rep);
    break;
  case LayerKind::upsample:
    for (int k = 0; k < 3; ++k) {
      if (s.scales()[k] < 1) fail(Fault::bad_scale, static_cast<Dim>(k + 2));
      i.out[k + 1] = in[k + 1] * s.scales()[k];
    }
    break;
  case LayerKind::user:
    slide(s.stencil);
    if (s.user < 0) fail(Fault::unknown_layer);
    rules(s.user, i);
    break;
  case LayerKind::activation:
    if (s.slope < 0) fail(s.activation == kernel::Activation::elu ? Fault::negative_alpha : Fault::negative_slope);
    break;
  case LayerKind::pointwise: break;
  case LayerKind::softmax:
    if (layout.splits(Dim::c)) fail(Fault::split_channel);
    break;
  case LayerKind::dropout:
    if (!(s.keep > 0 && s.keep <= 1)) fail(Fault::bad_keep_probability);
    break;
  case LayerKind::batch_norm:
    if (!(s.epsilon > 0) || !(s.momentum > 0 && s.momentum <= 1)) fail(Fault::bad_normalisation);
    if (s.scope.axes >> layout.axes) fail(Fault::no_such_axis);
    if (s.affine == Affine::yes) i.weights = {{in[0], 1, 1, 1, 1}}, i.biases = in[0];
    i.state = 2 * in[0];
    break;
  case LayerKind::group_norm: {
    const long groups = groups_of(s, in[0]);
    if (!(s.epsilon > 0)) fail(Fault::bad_normalisation);
    if (layout.splits(Dim::c)) fail(Fault::split_channel);
    if (groups < 1 || in[0] % groups != 0)
      fail(Fault::groups_do_not_divide, Dim::c, groups < 1 ? 1 : groups, in[0]);
    else if (product(in) == groups)
      fail(Fault::one_value_per_group);
    if (s.affine == Affine::yes) i.weights = {{in[0], 1, 1, 1, 1}}, i.biases = in[0];
    break;
  }
  case LayerKind::redistribute:
    if (const Fault f = check_layout(s.layout, layout.axes); f != Fault::none) fail(f);
    i.layout_out = s.layout;
    break;
  case LayerKind::flatten:
    if (layout.splits(Dim::d) || layout.splits(Dim::h) || layout.splits(Dim::w)) fail(Fault::flatten_splits_sample);
    i.out = {{product(in), 1, 1, 1}};
    break;
  case LayerKind::dense:
    if (s.channels < 1) fail(Fault::no_channels);
    if (in[1] * in[2] * in[3] != 1) fail(Fault::dense_without_flatten);
    i.out[0] = s.channels;
    i.weights = {{s.channels, in[0], 1, 1, 1}};
    i.biases = s.bias ? s.channels : 0;
    i.flop = 2.0 * double(s.channels) * double(in[0]);
    break;
  case LayerKind::concat:
  case LayerKind::add:
    for (int k = s.kind == LayerKind::add ? 0 : 1; k < 4; ++k)
      if (in[k] != second.shape[k]) fail(Fault::sizes_differ, static_cast<Dim>(k + 1), second.shape[k], in[k]);
    if (!(layout == second.layout)) fail(Fault::layouts_differ);
    if (s.kind == LayerKind::concat) i.out[0] += second.shape[0];
    break;
  }
  return i;
}

} // namespace detail

/// The edge that layer k reads by a relative position: edge 0 is the input of the network, edge j+1 the output of layer
/// j.
constexpr int source(std::size_t k, int relative) { return static_cast<int>(k) + relative + 1; }

/// Walks `layers` from `input` laid out as `layout`; fills `infos` (one per layer) as far as the first fault.
/// rules(user, info) sets the output channels and the weights of a user's layer.
template <class Rules>
constexpr WalkFault walk_into(std::span<const LayerSpec> layers, const Input& input, const Layout& layout,
                              const Rules& rules, std::span<LayerInfo> infos) {
  WalkFault fault;
  if (layers.empty()) return {.fault = Fault::empty_network};
  if (const Fault f = detail::check_layout(layout, layout.axes); f != Fault::none) return {.fault = f};
  const auto edge = [&](std::size_t e) {
    return e == 0 ? detail::EdgeInfo{{{input.c, input.d, input.h, input.w}}, layout}
                  : detail::EdgeInfo{infos[e - 1].out, infos[e - 1].layout_out};
  };
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const LayerSpec& s = layers[k];
    if (source(k, s.from) < 0 || source(k, s.from) > int(k) ||
        (s.joins() && (source(k, s.other) < 0 || source(k, s.other) > int(k))))
      return {.fault = Fault::bad_reference, .layer = static_cast<int>(k)};
    if (s.recomputed < 0 || k + std::size_t(s.recomputed) > layers.size())
      return {.fault = Fault::bad_recomputation, .layer = static_cast<int>(k)};
    const detail::EdgeInfo first = edge(std::size_t(source(k, s.from)));
    infos[k] = detail::infer(s, first, s.joins() ? edge(std::size_t(source(k, s.other))) : first, rules, fault);
    if (fault.fault != Fault::none) {
      fault.layer = static_cast<int>(k);
      return fault;
    }
  }
  for (std::size_t e = 1; e < layers.size(); ++e) {
    bool used = false;
    for (std::size_t k = e; k < layers.size(); ++k)
      used = used || source(k, layers[k].from) == int(e) || (layers[k].joins() && source(k, layers[k].other) == int(e));
    if (!used) return {.fault = Fault::unused_output, .layer = static_cast<int>(e - 1)};
  }
  return fault;
}

template <int N> struct Walked : WalkFault {
  std::array<LayerInfo, std::size_t(N)> layers{};
  constexpr long parameters() const {
    long p = 0;
    for (const LayerInfo& l : layers) p += l.parameters();
    return p;
  }
};

namespace detail {
/// The shape rule of a user's layer: what it says of itself, else channels kept and no weights.
template <class L> constexpr void user_rule(const L& l, LayerInfo& i) {
  const int in = static_cast<int>(i.in[0]);
  if constexpr (requires { l.channels(in); }) i.out[0] = l.channels(in);
  if constexpr (requires { l.parameters(in); }) i.weights = l.parameters(in);
}
} // namespace detail

template <int N, class... U>
constexpr Walked<N> walk(const Sequence<N, U...>& net, const Input& input, const Layout& layout) {
  Walked<N> w;
  const auto rules = [&](int user, LayerInfo& info) {
    std::apply(
        [&](const U&... l) {
          int i = 0;
          ((i++ == user ? detail::user_rule(l, info) : void()), ...);
        },
        net.users);
  };
  static_cast<WalkFault&>(w) = walk_into(net.layers, input, layout, rules, w.layers);
  return w;
}

/// By how much a layer makes volumes smaller, per spatial dim.
constexpr Index<3> reduction(const LayerSpec& s) {
  const bool slides = s.kind == LayerKind::conv || s.kind == LayerKind::pool || s.kind == LayerKind::user;
  return slides ? s.stencil.strides() : Index<3>{{1, 1, 1}};
}

/// By how much a layer makes volumes larger, per spatial dim.
constexpr Index<3> enlargement(const LayerSpec& s) {
  if (s.kind == LayerKind::upsample) return s.scales();
  return s.kind == LayerKind::conv_transpose ? s.stencil.strides() : Index<3>{{1, 1, 1}};
}

/// What block boundaries at the input of layer `first` should be multiples of, per spatial dim, so that they stay
/// aligned along every path up to the next redistribution: the products of the strides, less what layers that enlarge
/// volumes bring in themselves.
inline Index<3> stride_quantum(std::span<const LayerSpec> layers, std::size_t first = 0) {
  Index<3> quantum{{1, 1, 1}};
  // Sizes per edge are those of edge `first` times enlarged / reduced; 0: not derived from it.
  std::vector<Index<3>> reduced(layers.size() + 1), enlarged(reduced);
  reduced[first] = enlarged[first] = quantum;
  for (std::size_t k = first; k < layers.size(); ++k) {
    const auto in = std::size_t(source(k, layers[k].from));
    if (reduced[in][0] == 0 || layers[k].kind == LayerKind::redistribute || layers[k].kind == LayerKind::global_pool)
      continue;
    for (int i = 0; i < 3; ++i) {
      reduced[k + 1][i] = reduced[in][i] * reduction(layers[k])[i];
      enlarged[k + 1][i] = enlarged[in][i] * enlargement(layers[k])[i];
      const long common = std::gcd(reduced[k + 1][i], enlarged[k + 1][i]);
      reduced[k + 1][i] /= common, enlarged[k + 1][i] /= common;
      quantum[i] = std::lcm(quantum[i], reduced[k + 1][i]);
    }
  }
  return quantum;
}

} // namespace tessera
