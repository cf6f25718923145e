// net/plan.hpp: NetworkPlan, everything a network needs to know before it allocates: steps, maps, blocks, memory.
//
// Pure arithmetic from global facts, the same on every rank, so what does not fit is refused before anything is
// allocated or sent. A convolution or dense layer takes in the activation that follows it. Edges are the tensors
// between the steps: edge 0 is the input, edge s+1 the output of step s; any number of later steps may read one. When
// each edge's values and gradient are needed is known here, so they share one arena (ArenaPlan).
//
// May know: base, layout, space, comm, tensor/grid.hpp, layer, net.
// Example: NetworkPlan plan(grid, layers, input, layout, batch);  plan.memory(rank, sizeof(float)).total();
#pragma once

#include <algorithm>
#include <optional>
#include <tessera/layer/join.hpp>
#include <tessera/layer/layer.hpp>
#include <tessera/layer/operand.hpp>
#include <tessera/layer/upsample.hpp>
#include <tessera/net/arena.hpp>
#include <tessera/net/walk.hpp>

namespace tessera {

/// A network as run-time values: its layers, and what the walk found.
struct NetworkDescription {
  std::vector<LayerSpec> layers;
  std::vector<LayerInfo> infos;
  Input input{};
  Layout layout{};
  WalkFault fault{};
};

/// Walks layers that are known at run time only; there are no user-written ones among them.
inline NetworkDescription describe(std::vector<LayerSpec> layers, const Input& input, const Layout& layout) {
  NetworkDescription d{std::move(layers), {}, input, layout, {}};
  d.infos.resize(d.layers.size());
  d.fault = walk_into(
      d.layers, input, layout, [](int, LayerInfo&) {}, d.infos);
  return d;
}
template <int N, class... U>
NetworkDescription describe(const Sequence<N, U...>& net, const Input& input, const Layout& layout) {
  const Walked<N> w = walk(net, input, layout);
  return {{net.layers.begin(), net.layers.end()}, {w.layers.begin(), w.layers.end()}, input, layout, w};
}

/// Bytes on one rank.
struct MemoryEstimate {
  std::uint64_t activations = 0; ///< the input, and the arena of all other values and their gradients
  std::uint64_t parameters = 0, optimizer = 0, halo_buffers = 0;
  std::uint64_t scratch = 0;    ///< operands copied because a kernel cannot use them where they lie
  std::uint64_t reductions = 0; ///< parts of other ranks' weight gradients on their way
  std::uint64_t total() const { return activations + parameters + optimizer + halo_buffers + scratch + reductions; }
};

/// One layer that runs, after activations have been taken in.
struct PlanStep {
  int layer = 0; ///< position in the network as written
  LayerSpec spec{};
  InputActivation fused{};
  Map<5> in{}, second{}, out{}; ///< second: of the second operand of concat and add
  std::size_t x = 0, other = 0; ///< the edges it reads
  int recomputed = 0;           ///< at the last step of a recomputed piece: how many steps before it run again
};

/// A contiguous piece of the parameters: a layer's weights or biases.
struct ParameterInfo {
  std::string name; ///< "3.conv.weight"
  int layer = 0;
  bool bias = false;
  Extents<5> extents{}; ///< (co, ci, kd, kh, kw), stored channels-last; biases (co, 1, 1, 1, 1)
  std::size_t offset = 0, count = 0;
  std::optional<double> start{}; ///< the value all begin with; none: drawn at random
};

class NetworkPlan;

/// Where each edge's values and gradient lie in the one arena of a rank, and the second addends of gradients that come
/// from several readers.
class ArenaPlan {
public:
  ArenaPlan() = default;
  ArenaPlan(const NetworkPlan& plan, int rank, std::size_t element);
  std::uint64_t bytes() const { return arena_.bytes(); }
  /// Byte offsets. Edge 0, the input, is the caller's and has none.
  std::uint64_t values(std::size_t e) const { return arena_.offset(e); }
  std::uint64_t gradient(std::size_t e) const { return arena_.offset(gradients_ + e); }
  /// Where step k writes the gradient of its first (0) or second (1) operand if another reader was there before.
  std::uint64_t addend(std::size_t k, int operand) const {
    return arena_.offset(addends_ + 2 * k + std::size_t(operand));
  }

private:
  std::size_t gradients_ = 0, addends_ = 0;
  Arena arena_;
};

class NetworkPlan {
public:
  NetworkPlan() = default;
  /// Throws usage_error, the same on every rank, if the network has a fault or does not match the grid.
  NetworkPlan(const GridShape& grid, const NetworkDescription& net, long batch)
      : grid_(grid), layers_(net.layers), infos_(net.infos), batch_(batch) {
    const Input& input = net.input;
    const Layout& layout = net.layout;
    const WalkFault& f = net.fault;
    TESSERA_REQUIRE(batch >= 1, "Network: a batch of ", batch, " samples; give at least 1");
    TESSERA_REQUIRE(layout.axes == grid.axes, "Network: its layout ", layout.str(), " places ", layout.axes,
                    " grid axes but the grid ", grid.str(), " has ", grid.axes);
    TESSERA_REQUIRE(f.fault == Fault::none, "Network: ", where(f, layout), fault_text(f.fault),
                    f.need > 0 ? text(" (needs ", f.need, ", has ", f.have, ")") : "");
    place_parameters();
    place_steps(layout, {{batch, input.c, input.d, input.h, input.w}});
    find_recomputed();
  }

  const std::vector<PlanStep>& steps() const { return steps_; }
  const std::vector<LayerSpec>& layers() const { return layers_; }
  const std::vector<LayerInfo>& infos() const { return infos_; }
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  std::size_t parameter_count() const { return parameter_count_; }
  /// What layers keep from step to step besides parameters: running statistics.
  const std::vector<ParameterInfo>& states() const { return states_; }
  std::size_t state_count() const { return state_count_; }
  long batch() const { return batch_; }
  const GridShape& grid() const { return grid_; }
  const Map<5>& input() const { return steps_.front().in; }
  const Map<5>& output() const { return steps_.back().out; }

  /// The part of its (first) operand that step k needs on rank r: the rank's box and the halo around it.
  Box<5> block(std::size_t k, int r) const {
    const PlanStep& s = steps_[k];
    const Box<5> mine = s.in.box(r);
    if (s.spec.kind == LayerKind::upsample) return upsampling_need(s.spec, s.in, s.out, r);
    if (s.spec.kind == LayerKind::conv_transpose)
      return hull(mine, touching_input(s.out.box(r), s.spec.stencil, s.in.extents()));
    if (s.spec.kind != LayerKind::conv && s.spec.kind != LayerKind::pool && s.spec.kind != LayerKind::user) return mine;
    Box<5> out = s.out.box(r);
    out.lo[1] = 0, out.hi[1] = s.out.extents()[1];
    const Box<5> need = needed_input(out, s.spec.stencil, s.in.extents());
    return need.empty() ? mine : hull(mine, need);
  }
  /// What rank r keeps of edge e: its box, and all that the steps that read it need.
  Box<5> edge_block(std::size_t e, int r) const {
    Box<5> b = map_of(e).box(r);
    for (const std::size_t k : readers_[e])
      if (steps_[k].x == e) b = hull(b, block(k, r));
    return b;
  }
  std::size_t edges() const { return steps_.size() + 1; }
  const Map<5>& map_of(std::size_t e) const { return e == 0 ? input() : steps_[e - 1].out; }
  /// The steps that read edge e, in order; one that joins it with itself is there twice.
  const std::vector<std::size_t>& readers(std::size_t e) const { return readers_[e]; }
  /// True if the gradient that step k makes of an operand is added to what a later reader of the same edge has made:
  /// of all readers, the last one (by its first operand) comes first and overwrites.
  bool adds(std::size_t k, int operand) const {
    const std::size_t e = operand == 0 ? steps_[k].x : steps_[k].other;
    return readers_[e].back() != k || (operand == 1 && steps_[k].x == e);
  }

  /// True if the gradient of edge e takes the place of its values: average pooling reads each cell of its input just
  /// before it writes that cell's gradient, and the layer before it needs its output no more.
  bool in_place(std::size_t e) const {
    if (e == 0 || readers_[e].size() != 1) return false;
    const LayerSpec &after = steps_[readers_[e][0]].spec, &before = steps_[e - 1].spec;
    return after.kind == LayerKind::pool && after.pool == kernel::Pool::average &&
           (before.kind == LayerKind::conv || before.kind == LayerKind::batch_norm ||
            before.kind == LayerKind::group_norm);
  }

  /// What rank r will allocate for training with an optimizer that keeps `moments` values per parameter.
  MemoryEstimate memory(int r, std::size_t element, int moments) const {
    MemoryEstimate m;
    m.activations = std::uint64_t(edge_block(0, r).volume()) * element + ArenaPlan(*this, r, element).bytes();
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      m.halo_buffers += 2 * (std::uint64_t(block(k, r).volume()) - own_cells(k, r)) * element;
      m.scratch += scratch(k, r) * element;
    }
    m.parameters = (2 * std::uint64_t(parameter_count_) + state_count_) * element;
    m.optimizer = std::uint64_t(moments) * parameter_count_ * element;
    for (const PlanStep& s : steps_) {
      std::uint64_t ranks = 1, count = 0;
      const unsigned axes = s.out.layout().mask(Placement::Kind::split);
      for (std::size_t a = 0; a < std::size_t(grid_.axes); ++a)
        if (axes >> a & 1U) ranks *= std::uint64_t(grid_.size[a]);
      for (const ParameterInfo& p : parameters_)
        if (p.layer == s.layer) count += p.count;
      m.reductions += count * element * (ranks - 1) / ranks;
    }
    return m;
  }

  /// Floating-point operations of one training step over the whole batch: forward, weight gradients, and data gradients
  /// of all layers that do not read the input; convolutions and dense layers, 2 per multiply-add. Without what is
  /// recomputed.
  double training_flop() const {
    double f = 0;
    for (const PlanStep& s : steps_) f += infos_[std::size_t(s.layer)].flop * double(batch_) * (s.x == 0 ? 2 : 3);
    return f;
  }

  /// Ranks that own nothing of some layer's output: exact, but idle there. "" if there are none.
  std::string idle_ranks() const {
    for (const PlanStep& s : steps_)
      for (int i = 0; i < 3; ++i)
        if (s.out.partition(2 + i).any_empty() && s.out.extents()[0] > 0) {
          int idle = 0;
          for (int p = 0; p < s.out.partition(2 + i).parts(); ++p) idle += s.out.partition(2 + i)[p].empty();
          return text("from layer ", s.layer, " (", s.spec.name(), ") on, ", idle, " of ",
                      s.out.partition(2 + i).parts(), " blocks of dim ", dim_name(static_cast<Dim>(i + 2)),
                      " are empty (extent ", s.out.extents()[2 + i],
                      "): those ranks wait there; a to(place(...)) before it would use them");
        }
    return "";
  }

private:
  /// What a fault is about.
  std::string where(const WalkFault& f, const Layout& layout) const {
    if (f.fault == Fault::empty_network) return "";
    if (f.layer < 0) return text("its layout ", layout.str(), ": ");
    return text("layer ", f.layer, " (", layers_[std::size_t(f.layer)].name(), ")",
                f.need > 0 ? text(", dim ", dim_name(f.dim)) : "", ": ");
  }
  /// Elements that a redistribution there and back packs on rank r, because they do not lie together in its blocks.
  std::uint64_t buffered(const Map<5>& from, const Map<5>& to, const Box<5>& store_from, const Box<5>& store_to,
                         int r) const {
    std::uint64_t elements = 0;
    for (int peer = 0; peer < grid_.ranks(); ++peer) {
      if (peer == r) continue;
      const Box<5> leaves = intersect(from.box(r), to.box(peer)), comes = intersect(from.box(peer), to.box(r));
      if (!leaves.empty() && !lies_dense(leaves, store_from, Density::whole_batch))
        elements += 2 * std::uint64_t(leaves.volume());
      if (!comes.empty() && !lies_dense(comes, store_to, Density::whole_batch))
        elements += 2 * std::uint64_t(comes.volume());
    }
    return elements;
  }
  /// The cells of step k's input block that rank r fills by itself: what it holds, and padding that repeats or mirrors
  /// it.
  std::uint64_t own_cells(std::size_t k, int r) const {
    const PlanStep& s = steps_[k];
    const Box<5> mine = s.in.box(r), all = block(k, r);
    std::uint64_t cells = 1;
    for (int j = 0; j < 5; ++j) {
      std::uint64_t along = 0;
      for (long at = all.lo[j]; at < all.hi[j]; ++at) {
        const long source = j < 2 ? at : padded_source(at, s.in.extents()[j], s.spec.stencil[j - 2].mode);
        along += source >= mine.lo[j] && source < mine.hi[j];
      }
      cells *= along;
    }
    return cells;
  }
  /// Elements that step k copies on rank r, or keeps beside its tensors.
  std::uint64_t scratch(std::size_t k, int r) const {
    const PlanStep& s = steps_[k];
    const Box<5> out = s.out.box(r), store_in = edge_block(k, r), store_out = edge_block(k + 1, r);
    Box<5> in = s.in.box(r);
    Density what = Density::whole_batch;
    switch (s.spec.kind) {
    case LayerKind::user: {                                       // x and dx with their padding
      if (s.spec.function == kernel::Pointwise::custom) return 0; // works in place
      std::uint64_t cells = 2 * std::uint64_t(in.extent(0) * in.extent(1));
      for (int i = 0; i < 3; ++i)
        cells *= std::uint64_t(s.spec.stencil[i].reads({out.lo[2 + i], out.hi[2 + i]}).size());
      return cells;
    }
    case LayerKind::conv:
      in = needed_input(out, s.spec.stencil, s.in.extents());
      what = Density::each_sample;
      break;
    case LayerKind::conv_transpose:
      in = touching_input(out, s.spec.stencil, s.in.extents());
      what = Density::each_sample;
      break;
    case LayerKind::dense: break;
    case LayerKind::redistribute: return buffered(s.in, s.out, store_in, store_out, r);
    case LayerKind::concat:
    case LayerKind::add: {
      const Map<5> wanted = joined_map(s.in, s.second);
      const Box<5> moved = wanted.box(r);
      return wanted == s.in ? 0 : std::uint64_t(moved.volume()) + buffered(s.in, wanted, store_in, moved, r);
    }
    default: return 0;
    }
    return (lies_dense(in, store_in, what) ? 0 : std::uint64_t(in.volume())) +
           (lies_dense(out, store_out, what) ? 0 : std::uint64_t(out.volume()));
  }
  /// Block boundaries are multiples of the strides to come where the extent gives every rank such a block; else of the
  /// largest part of them that does.
  Extents<5> quantum(std::size_t first, const Layout& layout, const Index<3>& extents) const {
    const Index<3> strides = stride_quantum(layers_, first);
    Extents<5> q{{1, 1, 1, 1, 1}};
    for (int i = 0; i < 3; ++i) {
      long unit = strides[i];
      const long parts = Map<5>::parts_of(layout, grid_, 2 + i);
      while (unit > 1 && extents[i] < unit * parts) {
        long factor = 2;
        while (unit % factor != 0) ++factor;
        unit /= factor;
      }
      q[2 + i] = unit;
    }
    return q;
  }
  void place_steps(const Layout& layout, const Extents<5>& input) {
    const Map<5> first(layout, grid_, input, quantum(0, layout, {{input[2], input[3], input[4]}}));
    std::vector<std::size_t> edge_after(layers_.size() + 1, 0); // the edge that holds a layer's output
    std::vector<int> reads(layers_.size() + 1, 0);
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      ++reads[std::size_t(source(k, layers_[k].from))];
      if (layers_[k].joins()) ++reads[std::size_t(source(k, layers_[k].other))];
    }
    readers_.assign(1, {});
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const LayerSpec& s = layers_[k];
      PlanStep step{.layer = static_cast<int>(k), .spec = s};
      const auto map = [&](std::size_t e) -> const Map<5>& { return e == 0 ? first : steps_[e - 1].out; };
      step.x = edge_after[std::size_t(source(k, s.from))];
      step.in = map(step.x);
      readers_[step.x].push_back(steps_.size());
      if (s.joins()) {
        step.other = edge_after[std::size_t(source(k, s.other))];
        step.second = map(step.other);
        readers_[step.other].push_back(steps_.size());
      }
      step.out = output_of(step, k);
      const bool takes_in = s.kind == LayerKind::conv || s.kind == LayerKind::conv_transpose ||
                            s.kind == LayerKind::dense || s.kind == LayerKind::batch_norm ||
                            s.kind == LayerKind::group_norm;
      if (takes_in && k + 1 < layers_.size() && layers_[k + 1].kind == LayerKind::activation &&
          layers_[k + 1].from == -1 && reads[k + 1] == 1) {
        step.fused = {layers_[k + 1].activation, layers_[k + 1].slope};
        ++k;
      }
      steps_.push_back(std::move(step));
      readers_.emplace_back();
      edge_after[k + 1] = steps_.size();
    }
  }
  /// The map of what layer k makes.
  Map<5> output_of(const PlanStep& step, std::size_t k) const {
    const LayerSpec& s = step.spec;
    const Extents<4>& o = infos_[k].out;
    const Extents<5> extents{{batch_, o[0], o[1], o[2], o[3]}};
    switch (s.kind) {
    case LayerKind::conv:
    case LayerKind::pool:
    case LayerKind::user: return output_map(step.in, s.stencil, o[0]);
    case LayerKind::conv_transpose: return transposed_output_map(step.in, s.stencil, s.output_padding, o[0]);
    case LayerKind::redistribute:
      return Map<5>(s.layout, grid_, step.in.extents(), quantum(k + 1, s.layout, {{o[1], o[2], o[3]}}));
    case LayerKind::upsample: return upsampled_map(step.in, s.scales());
    case LayerKind::global_pool: {
      std::array<Partition, 5> parts = step.in.partitions();
      for (std::size_t i = 2; i < 5; ++i) parts[i] = Partition(1);
      return Map<5>(infos_[k].layout_out, grid_, extents, parts);
    }
    case LayerKind::flatten:
    case LayerKind::dense: {
      std::array<Partition, 5> parts = step.in.partitions();
      for (int i = 1; i < 5; ++i) parts[std::size_t(i)] = Partition(o[i - 1]);
      return Map<5>(step.in.layout(), grid_, extents, parts);
    }
    case LayerKind::concat:
    case LayerKind::add: { // the boundaries of the second operand: on a skip, those that did not go through strides
      std::array<Partition, 5> parts = step.second.partitions();
      parts[1] = Partition(o[0]);
      return Map<5>(step.second.layout(), grid_, extents, parts);
    }
    case LayerKind::activation:
    case LayerKind::batch_norm:
    case LayerKind::group_norm:
    case LayerKind::pointwise:
    case LayerKind::softmax:
    case LayerKind::dropout: break;
    }
    return step.in;
  }
  /// Turns the marks of recompute(...), which count layers, into counts of steps.
  void find_recomputed() {
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const auto first = int(k), last = first + layers_[k].recomputed;
      int steps = 0;
      PlanStep* end = nullptr;
      for (PlanStep& s : steps_)
        if (s.layer >= first && s.layer < last) ++steps, end = &s;
      if (end && steps > 1) end->recomputed = std::max(end->recomputed, steps - 1);
    }
  }
  void place_parameters() {
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const LayerInfo& i = infos_[k];
      const auto add = [&](std::vector<ParameterInfo>& to, std::size_t& total, const char* what, bool bias,
                           const Extents<5>& e, std::optional<double> start) {
        const long count = e[0] ? product(e) : 0;
        if (count == 0) return;
        to.push_back({text(k, ".", layers_[k].name(), ".", what), static_cast<int>(k), bias, e, total,
                      std::size_t(count), start});
        total += std::size_t(count);
      };
      const bool norm = layers_[k].kind == LayerKind::batch_norm || layers_[k].kind == LayerKind::group_norm;
      add(parameters_, parameter_count_, "weight", false, i.weights, norm ? std::optional(1.0) : std::nullopt);
      add(parameters_, parameter_count_, "bias", true, {{i.biases, 1, 1, 1, 1}}, layers_[k].bias_value);
      if (!norm) continue;
      add(states_, state_count_, "running_mean", true, {{i.state / 2, 1, 1, 1, 1}}, 0.0);
      add(states_, state_count_, "running_variance", true, {{i.state / 2, 1, 1, 1, 1}}, 1.0);
    }
  }

  GridShape grid_{};
  std::vector<LayerSpec> layers_;
  std::vector<LayerInfo> infos_;
  std::vector<PlanStep> steps_;
  std::vector<std::vector<std::size_t>> readers_; ///< of each edge
  std::vector<ParameterInfo> parameters_;
  std::vector<ParameterInfo> states_;
  std::size_t parameter_count_ = 0, state_count_ = 0;
  long batch_ = 0;
};

/// What the backward pass of a step reads besides dy. A kind that is not named here is taken to read both.
struct BackwardReads {
  bool input = true, output = true;
};
inline BackwardReads backward_reads(const PlanStep& s) {
  const bool fused = s.fused.kind != kernel::Activation::none;
  switch (s.spec.kind) {
  case LayerKind::conv:
  case LayerKind::conv_transpose:
  case LayerKind::dense:
  case LayerKind::batch_norm:
  case LayerKind::group_norm: return {true, fused};
  case LayerKind::pool:
  case LayerKind::pointwise: return {true, false};
  case LayerKind::activation:
  case LayerKind::softmax: return {false, true};
  case LayerKind::dropout:
  case LayerKind::redistribute:
  case LayerKind::flatten:
  case LayerKind::global_pool:
  case LayerKind::upsample:
  case LayerKind::concat:
  case LayerKind::add: return {false, false};
  case LayerKind::user: return {true, s.spec.function != kernel::Pointwise::custom};
  default: return {true, true};
  }
}

// Time: step s runs forward at s, the loss at S (the number of steps), step s runs backward at 2S - s. A recomputed
// piece runs again at the time of the backward pass of its last step.
inline ArenaPlan::ArenaPlan(const NetworkPlan& plan, int rank, std::size_t element)
    : gradients_(plan.edges()), addends_(2 * plan.edges()) {
  const std::vector<PlanStep>& steps = plan.steps();
  const auto count = long(steps.size());
  const auto back = [&](std::size_t s) { return 2 * count - long(s); };
  std::vector<ArenaBlock> blocks(addends_ + 2 * steps.size());
  std::vector<long> again(plan.edges(), 0); // when an edge is computed a second time; 0: never
  for (std::size_t k = 0; k < steps.size(); ++k)
    for (std::size_t i = k - std::size_t(steps[k].recomputed); i < k; ++i)
      again[i + 1] = std::max(again[i + 1], back(k));
  // What is read backward before it would be computed again is kept.
  for (std::size_t e = 1; e < plan.edges(); ++e)
    for (const std::size_t k : plan.readers(e))
      if (backward_reads(steps[k]).input && back(k) < again[e]) again[e] = 0;
  for (std::size_t e = 1; e < plan.edges(); ++e) {
    const std::size_t maker = e - 1;
    const auto bytes = std::uint64_t(plan.edge_block(e, rank).volume()) * element;
    ArenaBlock &values = blocks[e], &gradient = blocks[gradients_ + e];
    values.bytes = bytes;
    long forward = long(maker), backward = 0;
    if (backward_reads(steps[maker]).output) backward = back(maker);
    for (const std::size_t k : plan.readers(e)) {
      forward = std::max(forward, long(k));
      if (backward_reads(steps[k]).input) backward = std::max(backward, back(k));
      if (!again[e]) backward = std::max(backward, again[k + 1]);
    }
    if (plan.in_place(e)) backward = back(maker);
    if (e + 1 == plan.edges()) forward = back(maker); // what forward() returned
    values.lives = {{long(maker), backward && !again[e] ? std::max(forward, backward) : forward}};
    if (again[e]) values.lives.push_back({again[e], std::max(again[e], backward)});
    if (plan.in_place(e)) continue;
    gradient.bytes = bytes;
    gradient.lives = {{plan.readers(e).empty() ? count : back(plan.readers(e).back()), back(maker)}};
  }
  for (std::size_t k = 0; k < steps.size(); ++k)
    for (int operand = 0; operand < (steps[k].spec.joins() ? 2 : 1); ++operand) {
      const std::size_t e = operand == 0 ? steps[k].x : steps[k].other;
      if (e == 0 || !plan.adds(k, operand)) continue;
      ArenaBlock& addend = blocks[addends_ + 2 * k + std::size_t(operand)];
      addend.bytes = std::uint64_t(plan.edge_block(e, rank).volume()) * element;
      addend.lives = {{back(k), back(k)}};
    }
  arena_ = Arena(blocks);
}

} // namespace tessera
