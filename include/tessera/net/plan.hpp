// net/plan.hpp: NetworkPlan, everything a network needs to know before it allocates: steps, maps, blocks, memory.
//
// Pure arithmetic from global facts, the same on every rank, so what does not fit is refused before anything is
// allocated or sent. A convolution or dense layer takes in the activation that follows it.
//
// May know: base, layout, space, comm, tensor/grid.hpp, layer, net.
// Example: NetworkPlan plan(grid, layers, input, layout, batch);  plan.memory(rank, sizeof(float)).total();
#pragma once

#include <algorithm>
#include <optional>
#include <tessera/layer/layer.hpp>
#include <tessera/layer/operand.hpp>
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
  std::uint64_t activations = 0, gradients = 0, parameters = 0, optimizer = 0, halo_buffers = 0;
  std::uint64_t scratch = 0;    ///< operands copied because a kernel cannot use them where they lie
  std::uint64_t reductions = 0; ///< parts of other ranks' weight gradients on their way
  std::uint64_t total() const {
    return activations + gradients + parameters + optimizer + halo_buffers + scratch + reductions;
  }
};

/// One layer that runs, after activations have been taken in.
struct PlanStep {
  int layer = 0; ///< position in the network as written
  LayerSpec spec{};
  InputActivation fused{};
  Map<5> in, out;
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
    Map<5> now(layout, grid, {{batch, input.c, input.d, input.h, input.w}},
               quantum(0, layout, {{input.d, input.h, input.w}}));
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const LayerSpec& s = layers_[k];
      PlanStep step{static_cast<int>(k), s, {}, now, now};
      const Extents<4>& o = infos_[k].out;
      switch (s.kind) {
      case LayerKind::conv:
      case LayerKind::pool:
      case LayerKind::user: step.out = output_map(now, s.stencil, o[0]); break;
      case LayerKind::redistribute:
        step.out = Map<5>(s.layout, grid, now.extents(), quantum(k + 1, s.layout, {{o[1], o[2], o[3]}}));
        break;
      case LayerKind::flatten:
      case LayerKind::dense: {
        std::array<Partition, 5> parts = now.partitions();
        for (int i = 1; i < 5; ++i) parts[std::size_t(i)] = Partition(o[i - 1]);
        step.out = Map<5>(now.layout(), grid, {{batch, o[0], o[1], o[2], o[3]}}, parts);
        break;
      }
      case LayerKind::activation:
      case LayerKind::batch_norm:
      case LayerKind::dropout: break;
      }
      const bool takes_in = s.kind == LayerKind::conv || s.kind == LayerKind::dense || s.kind == LayerKind::batch_norm;
      if (takes_in && k + 1 < layers_.size() && layers_[k + 1].kind == LayerKind::activation) {
        step.fused = {layers_[k + 1].activation, layers_[k + 1].slope};
        ++k;
      }
      now = step.out;
      steps_.push_back(std::move(step));
    }
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

  /// The block that rank r keeps of the input of step k: its box and the halo the step needs.
  Box<5> block(std::size_t k, int r) const {
    const PlanStep& s = steps_[k];
    const Box<5> mine = s.in.box(r);
    if (s.spec.kind != LayerKind::conv && s.spec.kind != LayerKind::pool && s.spec.kind != LayerKind::user) return mine;
    Box<5> out = s.out.box(r);
    out.lo[1] = 0, out.hi[1] = s.out.extents()[1];
    const Box<5> need = needed_input(out, s.spec.stencil, s.in.extents());
    return need.empty() ? mine : hull(mine, need);
  }
  /// The block of edge e on rank r: edge 0 is the input, edge k+1 the output of step k.
  Box<5> edge_block(std::size_t e, int r) const { return e < steps_.size() ? block(e, r) : output().box(r); }
  std::size_t edges() const { return steps_.size() + 1; }

  /// True if the gradient of edge e takes the place of its values: average pooling reads each cell of its input just
  /// before it writes that cell's gradient, and the layer before it needs its output no more.
  bool in_place(std::size_t e) const {
    if (e == 0 || e >= steps_.size()) return false;
    const LayerSpec &after = steps_[e].spec, &before = steps_[e - 1].spec;
    return after.kind == LayerKind::pool && after.pool == kernel::Pool::average &&
           (before.kind == LayerKind::conv || before.kind == LayerKind::batch_norm);
  }

  /// What rank r will allocate for training with an optimizer that keeps `moments` values per parameter.
  MemoryEstimate memory(int r, std::size_t element, int moments) const {
    MemoryEstimate m;
    std::uint64_t largest[2] = {0, 0};
    for (std::size_t e = 0; e < edges(); ++e) {
      const auto bytes = std::uint64_t(edge_block(e, r).volume()) * element;
      m.activations += bytes;
      if (e > 0 && !in_place(e)) largest[e % 2] = std::max(largest[e % 2], bytes);
      if (e == steps_.size()) continue;
      m.halo_buffers += 2 * (bytes - own_cells(e, r) * element);
      m.scratch += scratch(e, r) * element;
    }
    m.gradients = largest[0] + largest[1];
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
  /// of all but the first layer; convolutions and dense layers, 2 per multiply-add.
  double training_flop() const {
    double f = 0;
    bool first = true;
    for (const PlanStep& s : steps_) {
      const double one = infos_[std::size_t(s.layer)].flop * double(batch_);
      f += first ? 2 * one : 3 * one;
      first = false;
    }
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
  /// The cells of step k's input block that rank r fills by itself: what it holds, and padding that repeats or mirrors it.
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
    case LayerKind::user: { // x and dx with their padding
      std::uint64_t cells = 2 * std::uint64_t(in.extent(0) * in.extent(1));
      for (int i = 0; i < 3; ++i)
        cells *= std::uint64_t(s.spec.stencil[i].reads({out.lo[2 + i], out.hi[2 + i]}).size());
      return cells;
    }
    case LayerKind::conv:
      in = needed_input(out, s.spec.stencil, s.in.extents());
      what = Density::each_sample;
      break;
    case LayerKind::dense: break;
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
      const bool norm = layers_[k].kind == LayerKind::batch_norm;
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
  std::vector<ParameterInfo> parameters_;
  std::vector<ParameterInfo> states_;
  std::size_t parameter_count_ = 0, state_count_ = 0;
  long batch_ = 0;
};

} // namespace tessera
