// net/network.hpp: Network, a planned network with its memory: forward, backward, and gradients on their way.
//
// AnyNetwork runs a list of layers whose geometry is a run-time value; Network<Model, T, Backend> checks a model when
// compiling and hands it over. Parameters and gradients are two flat arrays; each layer's gradients are all-reduced
// over the grid axes that split its output, from the moment they are complete, while the backward pass goes on. Nothing
// allocates after the first step of each batch size.
//
// May know: base to move, kernel and backend (through Backend), layer, net.
// Example: Network<CosmoFlow<64>, float, cpu> model(grid, {.batch = 4, .seed = 1});
#pragma once

#include <chrono>
#include <map>
#include <tessera/layer/make.hpp>
#include <tessera/layer/user.hpp>
#include <tessera/net/memory.hpp>

namespace tessera {

struct NetworkOptions {
  long batch = 1;         ///< samples per step over all ranks; smaller steps are allowed, larger ones are not
  std::uint64_t seed = 1; ///< of initial weights and dropout
  int moments = 2;        ///< per parameter, of the optimizer to come; counted before anything is allocated
};

/// Seconds that a layer took on this rank.
struct LayerTime {
  double forward = 0, backward = 0;
  double waited = 0; ///< of both, for messages
};

template <class T, class Backend> class AnyNetwork {
public:
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;
  using element_type = T;

  /// Makes the layer of a user-written type: (index of the type, input map, output map, extents of its weights).
  using UserLayers =
      std::function<std::unique_ptr<Layer<T, Space>>(int, const Map<5>&, const Map<5>&, const Extents<5>&)>;

  AnyNetwork(AnyGrid grid, NetworkDescription description, const NetworkOptions& options, UserLayers user_layers = {})
      : grid_(std::move(grid)), description_(std::move(description)), options_(options),
        user_layers_(std::move(user_layers)), plan_(grid_.shape(), description_, options.batch) {
    require_memory<Space>(grid_, plan_, sizeof(T), options.moments);
    parameters_ = Buffer<T, Space>(plan_.parameter_count());
    gradients_ = Buffer<T, Space>(plan_.parameter_count());
    if (!Space::host_accessible && grid_.ranks() > 1)
      gradients_on_host_ = Buffer<T, typename Space::pinned>(plan_.parameter_count());
    state_ = Buffer<T, Space>(plan_.state_count());
    places_ = ArenaPlan(plan_, grid_.rank(), sizeof(T));
    arena_ = Buffer<T, Space>(std::size_t(places_.bytes()) / sizeof(T));
    for (const PlanStep& s : plan_.steps()) grid_.over(s.out.layout().mask(Placement::Kind::split));
    initialise();
  }
  AnyNetwork(AnyNetwork&&) = delete; // layers and tensors point into it

  const AnyGrid& grid() const { return grid_; }
  const NetworkPlan& plan() const { return plan_; }
  const NetworkOptions& options() const { return options_; }

  /// A zero tensor for `samples` inputs (n,c,d,h,w) with the boundaries and the halo room the network wants.
  Field make_input(long samples) {
    const NetworkPlan& p = program(samples).plan;
    Field x(grid_, p.input());
    x.reserve(p.edge_block(0, grid_.rank()));
    return x;
  }
  Field make_input() { return make_input(options_.batch); }
  /// A zero tensor with the map of the network's output, for targets.
  Field make_target(long samples) { return Field(grid_, program(samples).plan.output()); }
  Field make_target() { return make_target(options_.batch); }
  /// Zero labels (n,1,d,h,w), one for each voxel of the network's output and laid out like it. L: an integer type.
  template <class L = std::uint8_t> Tensor<L, 5, Space> make_labels(long samples) {
    return Tensor<L, 5, Space>(grid_, label_map(program(samples).plan.output()));
  }
  template <class L = std::uint8_t> Tensor<L, 5, Space> make_labels() { return make_labels<L>(options_.batch); }

  /// The output for x, valid until the next call. `step` keys the dropout masks.
  const Field& forward(Field& x, Mode mode, std::uint64_t step = 0) {
    Program& p = bind(x);
    for (std::size_t k = 0; k < p.layers.size(); ++k) {
      const Clock clock(p.times[k].forward, p.times[k].waited);
      p.passes[k].mode = mode, p.passes[k].step = step;
      run_forward(p, k, x);
    }
    return p.values.back();
  }
  /// Where the gradient of the loss with respect to the output goes before backward().
  Field& output_gradient() { return current_->gradients.back(); }
  /// From output_gradient(): all parameter gradients, each on its way to being summed over the ranks.
  void backward(Field& x) {
    TESSERA_REQUIRE(current_ && current_->plan.input() == x.map(), "backward: call forward with the same tensor first");
    TESSERA_REQUIRE(!current_->spent, "backward: a second time after one forward pass; some gradients have taken the "
                                      "place of activations, so call forward again");
    Program& p = *current_;
    p.spent = true;
    started_.clear(); // of a step that ended in an exception
    for (std::size_t k = p.layers.size(); k-- > 0;) {
      const Clock clock(p.times[k].backward, p.times[k].waited);
      for (std::size_t i = k - std::size_t(p.plan.steps()[k].recomputed); i < k; ++i) {
        p.passes[i].again = true;
        run_forward(p, i, x);
        p.passes[i].again = false;
      }
      if (p.plan.steps()[k].recomputed > 0 && p.plan.steps()[k].x > 0 && !p.plan.steps()[k].spec.joins())
        p.layers[k]->exchange_again(value(p, p.plan.steps()[k].x, x));
      run_backward(p, k, x);
    }
  }

  /// A layer's parameters: where they lie, and the sum of their gradients on its way.
  struct Bucket {
    std::size_t offset = 0, count = 0;
    unsigned axes = 0; ///< the grid axes it is summed over
    Sum<T, Space> sum;
  };
  /// Calls f(offset, count) for each layer's parameters once their gradients have arrived, in the order they were
  /// started.
  template <class F> void for_each_gradient(F&& f) {
    for (Bucket& b : started_) {
      b.sum.wait();
      f(b.offset, b.count);
    }
    started_.clear();
  }

  /// Parameters, running statistics and gradients lie in the memory of the backend: see read_back and on_host
  /// (space/host_access.hpp) for those that the host cannot touch.
  std::span<T> parameters() { return {parameters_.data(), parameters_.size()}; }
  std::span<const T> parameters() const { return {parameters_.data(), parameters_.size()}; }
  /// Running statistics; plan().states() says which lies where.
  std::span<T> state() { return {state_.data(), state_.size()}; }
  std::span<T> gradients() { return {gradients_.data(), gradients_.size()}; }

  /// What the layers move on this rank in one training step of the full batch, in order.
  std::vector<std::pair<std::string, LayerTraffic>> traffic() {
    std::vector<std::pair<std::string, LayerTraffic>> all;
    Program& p = program(options_.batch);
    for (std::size_t k = 0; k < p.layers.size(); ++k)
      all.emplace_back(text(p.plan.steps()[k].layer, ".", p.plan.steps()[k].spec.name()), p.layers[k]->traffic());
    return all;
  }

  /// Where the time of this rank went, layer by layer, in the steps of the full batch since the last call.
  std::vector<std::pair<std::string, LayerTime>> times() {
    std::vector<std::pair<std::string, LayerTime>> all;
    Program& p = program(options_.batch);
    for (std::size_t k = 0; k < p.layers.size(); ++k)
      all.emplace_back(text(p.plan.steps()[k].layer, ".", p.plan.steps()[k].spec.name()),
                       std::exchange(p.times[k], LayerTime{}));
    return all;
  }

private:
  /// Adds the seconds of its life, and those of them spent waiting for messages.
  class Clock {
  public:
    Clock(double& seconds, double& waited) : seconds_(seconds), waited_(waited) {}
    Clock(const Clock&) = delete;
    ~Clock() {
      seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
      waited_ += comm::seconds_waited() - waited_before_;
    }

  private:
    double &seconds_, &waited_;
    double waited_before_ = comm::seconds_waited();
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };
  /// The layers for one batch size; all sizes share the memory.
  struct Program {
    NetworkPlan plan;
    std::vector<std::unique_ptr<Layer<T, Space>>> layers;
    std::vector<Pass<T>> passes;
    std::vector<LayerTime> times;
    std::vector<Field> values, gradients;      ///< of the outputs of the steps
    std::vector<std::array<Field, 2>> addends; ///< gradients to be added, of the operands of each step
    bool spent = true;                         ///< a backward pass has used up what the forward pass left
  };

  Program& program(long samples) {
    if (auto it = programs_.find(samples); it != programs_.end()) return it->second;
    TESSERA_REQUIRE(samples >= 1 && samples <= options_.batch, "Network: a step of ", samples,
                    " samples, but it was made for at most ", options_.batch, "; make it with a larger batch");
    Program p;
    p.plan = samples == options_.batch ? plan_ : NetworkPlan(grid_.shape(), description_, samples);
    const int r = grid_.rank();
    const auto at = [&](std::uint64_t byte) { return arena_.data() + byte / sizeof(T); };
    for (std::size_t k = 0; k < p.plan.steps().size(); ++k) {
      const PlanStep& s = p.plan.steps()[k];
      const std::size_t e = k + 1;
      const Box<5> block = p.plan.edge_block(e, r);
      p.values.emplace_back(grid_, s.out, block, at(places_.values(e)));
      p.gradients.emplace_back(grid_, s.out, block, at(p.plan.in_place(e) ? places_.values(e) : places_.gradient(e)));
      p.addends.emplace_back();
      for (int i = 0; i < (s.spec.joins() ? 2 : 1); ++i)
        if (const std::size_t in = i == 0 ? s.x : s.other; in > 0 && p.plan.adds(k, i))
          p.addends[k][std::size_t(i)] =
              Field(grid_, i == 0 ? s.in : s.second, p.plan.edge_block(in, r), at(places_.addend(k, i)));
    }
    for (const PlanStep& s : p.plan.steps()) {
      auto layer = s.spec.kind == LayerKind::user
                       ? user_layers_(s.spec.user, s.in, s.out, p.plan.infos()[std::size_t(s.layer)].weights)
                       : make_layer<T, Backend>(s.spec, s.fused, grid_, s.in, s.out, s.second);
      if (s.x > 0 && !s.spec.joins() && p.plan.readers(s.x).size() == 1) {
        const InputActivation before = p.plan.steps()[s.x - 1].fused;
        if (before.kind != kernel::Activation::none && layer->absorb(before))
          p.layers[s.x - 1]->activation_is_absorbed();
      }
      p.layers.push_back(std::move(layer));
      p.passes.push_back(pass_for(s));
    }
    p.times.resize(p.layers.size());
    return programs_.emplace(samples, std::move(p)).first->second;
  }
  Program& bind(Field& x) {
    Program& p = program(x.extents()[0]);
    TESSERA_REQUIRE(x.map() == p.plan.input(), "Network: the input has layout ", x.layout().str(), " and extents ",
                    x.extents(), " but the network wants ", p.plan.input().layout().str(), " and ",
                    p.plan.input().extents(), " with its own block boundaries; make it with make_input()");
    x.reserve(p.plan.edge_block(0, grid_.rank()));
    current_ = &p;
    p.spent = false;
    return p;
  }
  static Field& value(Program& p, std::size_t edge, Field& x) { return edge == 0 ? x : p.values[edge - 1]; }
  static void run_forward(Program& p, std::size_t k, Field& x) {
    const PlanStep& s = p.plan.steps()[k];
    if (s.spec.joins())
      p.layers[k]->join(p.passes[k], value(p, s.x, x), value(p, s.other, x), p.values[k]);
    else
      p.layers[k]->forward(p.passes[k], value(p, s.x, x), p.values[k]);
  }
  static void run_backward(Program& p, std::size_t k, Field& x) {
    const PlanStep& s = p.plan.steps()[k];
    Field* const first = gradient_of(p, k, 0);
    Field* const second = s.spec.joins() ? gradient_of(p, k, 1) : nullptr;
    if (s.spec.joins())
      p.layers[k]->join_backward(p.passes[k], p.gradients[k], first, second);
    else
      p.layers[k]->backward(p.passes[k], value(p, s.x, x), p.values[k], p.gradients[k], first);
    if (first && p.plan.adds(k, 0)) Blocks<Space>::add(std::as_const(*first).view(), p.gradients[s.x - 1].view());
    if (second && p.plan.adds(k, 1)) Blocks<Space>::add(std::as_const(*second).view(), p.gradients[s.other - 1].view());
  }
  /// Where step k writes the gradient of an operand; null for the input of the network, which needs none.
  static Field* gradient_of(Program& p, std::size_t k, int operand) {
    const std::size_t e = operand == 0 ? p.plan.steps()[k].x : p.plan.steps()[k].other;
    if (e == 0) return nullptr;
    return p.plan.adds(k, operand) ? &p.addends[k][std::size_t(operand)] : &p.gradients[e - 1];
  }

  Pass<T> pass_for(const PlanStep& s) {
    Pass<T> pass;
    pass.seed = options_.seed, pass.layer = s.layer;
    std::size_t offset = 0, count = 0;
    for (const ParameterInfo& i : plan_.parameters()) {
      if (i.layer != s.layer) continue;
      if (count == 0) offset = i.offset;
      count += i.count;
      (i.bias ? pass.biases : pass.weights) = std::span<const T>(parameters_.data() + i.offset, i.count);
      (i.bias ? pass.bias_gradients : pass.weight_gradients) = std::span<T>(gradients_.data() + i.offset, i.count);
    }
    const std::size_t states = std::size_t(plan_.infos()[std::size_t(s.layer)].state);
    for (const ParameterInfo& i : plan_.states())
      if (i.layer == s.layer && pass.state.empty()) pass.state = {state_.data() + i.offset, states};
    const Communicator& world = grid_.world();
    pass.poke = [this, &world] {
      world.progress();
      for (Bucket& b : started_) b.sum.test();
    };
    if (count > 0) {
      const unsigned axes = s.out.layout().mask(Placement::Kind::split);
      pass.gradients_ready = [this, offset, count, axes] {
        if (!started_.empty()) started_.back().sum.post(); // the device has most likely finished it by now
        Bucket& b = started_.emplace_back();
        b.offset = offset, b.count = count, b.axes = axes;
        b.sum.begin(grid_.over(axes), std::span<T>(gradients_.data() + offset, count),
                    gradients_on_host_.size() ? gradients_on_host_.data() + offset : nullptr);
      };
    }
    return pass;
  }
  void initialise() {
    for (const ParameterInfo& i : plan_.parameters()) {
      T* const at = parameters_.data() + i.offset;
      if (i.start)
        Backend::fill(at, i.count, static_cast<T>(*i.start));
      else
        Backend::initialise(at, i.extents, plan_.layers()[std::size_t(i.layer)].init, options_.seed,
                            std::uint64_t(i.layer));
    }
    for (const ParameterInfo& i : plan_.states())
      Backend::fill(state_.data() + i.offset, i.count, static_cast<T>(*i.start));
  }

  AnyGrid grid_;
  NetworkDescription description_;
  NetworkOptions options_;
  UserLayers user_layers_;
  NetworkPlan plan_;
  Buffer<T, Space> parameters_, gradients_, state_;
  Buffer<T, typename Space::pinned> gradients_on_host_; ///< on their way, where messages cannot take them from there
  ArenaPlan places_;                                    ///< for the full batch; smaller ones use the same places
  Buffer<T, Space> arena_;
  std::map<long, Program> programs_;
  Program* current_ = nullptr;
  std::vector<Bucket> started_;
};

/// A model is a struct with `input`, `layout` and `net`.
template <class M>
concept NetworkModel = requires {
  { M::input } -> std::convertible_to<Input>;
  { M::layout } -> std::convertible_to<Layout>;
  M::net.layers;
};

/// A network whose model is checked when compiling: shapes, layouts, windows. Model: a struct with static constexpr
/// `input` (Input), `layout` (Layout) and `net` (seq(...)).
template <class Model, class T, class Backend> class Network : public AnyNetwork<T, Backend> {
  static_assert(NetworkModel<Model>,
                "tessera: a model needs static constexpr members input (Input), layout (place(...)) "
                "and net (seq(...))");
  static constexpr auto walked = walk(Model::net, Model::input, Model::layout);
  static_assert(walked.fault != Fault::empty_network, "tessera: the network has no layers");
  static_assert(walked.fault != Fault::bad_window,
                "tessera: kernel, stride and dilation must be at least 1, padding at least 0");
  static_assert(
      walked.fault != Fault::window_larger_than_input,
      "tessera: a window is larger than its padded input; use a smaller kernel, fewer poolings or a larger input");
  static_assert(walked.fault != Fault::periodic_padding_too_wide,
                "tessera: periodic padding is wider than the input; use at most one period");
  static_assert(walked.fault != Fault::groups_without_conv, "tessera: grouped(groups) is for conv(...)");
  static_assert(walked.fault != Fault::ceil_without_window,
                "tessera: ceil() is for windows that slide; conv_transpose takes output padding");
  static_assert(walked.fault != Fault::ceil_without_zeros, "tessera: ceil() needs padding with zeros");
  static_assert(walked.fault != Fault::reflecting_padding_too_wide,
                "tessera: reflecting padding is not narrower than the input; use at most size - 1, or "
                "Padding::replicate");
  static_assert(walked.fault != Fault::no_channels,
                "tessera: a layer has no channels; give conv(channels) or dense(channels) at least 1");
  static_assert(walked.fault != Fault::conv_groups_do_not_divide,
                "tessera: grouped(groups) needs at least 1 group, and divides the input and the output channels");
  static_assert(walked.fault != Fault::bad_scale, "tessera: upsample(scale) needs scales of at least 1");
  static_assert(walked.fault != Fault::flatten_splits_sample,
                "tessera: flatten needs whole samples on a rank; put to(place(n,...)) with only n and rep before it");
  static_assert(walked.fault != Fault::dense_without_flatten,
                "tessera: dense needs 1x1x1 volumes; put flatten() before it");
  static_assert(walked.fault != Fault::bad_keep_probability, "tessera: dropout(keep) needs 0 < keep <= 1");
  static_assert(walked.fault != Fault::negative_slope, "tessera: leaky_relu(slope) needs slope >= 0");
  static_assert(walked.fault != Fault::negative_alpha, "tessera: elu(alpha) needs alpha >= 0");
  static_assert(walked.fault != Fault::bad_normalisation,
                "tessera: a normalisation needs epsilon > 0, batch_norm 0 < momentum <= 1");
  static_assert(walked.fault != Fault::no_such_axis,
                "tessera: batch_norm takes statistics over a grid axis that the layout does not place");
  static_assert(walked.fault != Fault::groups_do_not_divide,
                "tessera: group_norm(groups) needs at least one group, and groups that divide the channels");
  static_assert(walked.fault != Fault::one_value_per_group,
                "tessera: a group of one value per sample has no variance; use fewer groups or a larger volume");
  static_assert(walked.fault != Fault::unknown_layer, "tessera: a user layer without its type; name it in seq(...)");
  static_assert(walked.fault != Fault::another_number_of_axes,
                "tessera: to(place(...)) places another number of grid axes than the network's layout");
  static_assert(walked.fault != Fault::pending_sum, "tessera: activations cannot be a pending sum; use rep or a split");
  static_assert(walked.fault != Fault::split_channel, "tessera: channels cannot be split here; split n, d, h or w");
  static_assert(walked.fault != Fault::bad_reference,
                "tessera: a layer reads the output of one that does not come before it");
  static_assert(walked.fault != Fault::unused_output,
                "tessera: no layer reads the output of one in the middle; leave it out, or join it with concat or add");
  static_assert(walked.fault != Fault::sizes_differ,
                "tessera: concat or add joins operands of different sizes; crop or pad the input so that it divides by "
                "all strides between them");
  static_assert(walked.fault != Fault::layouts_differ,
                "tessera: concat or add joins operands of different layouts; put the same to(place(...)) into both");
  static_assert(walked.fault != Fault::transposed_padding,
                "tessera: the padding of conv_transpose cuts its output and has no mode; use zeros");
  static_assert(walked.fault != Fault::bad_output_padding,
                "tessera: output padding must be at least 0 and below the stride or the dilation");
  static_assert(walked.fault != Fault::cut_away, "tessera: padding cuts away the whole output; use less");
  static_assert(walked.fault != Fault::bad_recomputation, "tessera: recompute(...) needs at least one layer");

public:
  static constexpr long parameter_count = walked.parameters();
  template <int R>
  explicit Network(const Grid<R>& grid, const NetworkOptions& options = {})
      : AnyNetwork<T, Backend>(
            grid, describe(Model::net, Model::input, Model::layout), options,
            [grid = AnyGrid(grid)](int user, const Map<5>& in, const Map<5>& out, const Extents<5>& e) {
              return make_user_layer(grid, user, in, out, e, Model::net);
            }) {
    static_assert(R == Model::layout.axes,
                  "tessera: the model's layout places another number of axes than the grid has; give place(...) one "
                  "placement per grid axis");
  }

private:
  template <int N, class... U>
  static std::unique_ptr<Layer<T, typename Backend::space>>
  make_user_layer(const AnyGrid& grid, int user, const Map<5>& in, const Map<5>& out, const Extents<5>& weights,
                  const Sequence<N, U...>& net) {
    std::unique_ptr<Layer<T, typename Backend::space>> made;
    std::apply(
        [&](const U&... l) {
          int i = 0;
          ((i++ == user ? void(made = std::make_unique<UserLayer<T, Backend, U>>(l, grid, in, out, weights)) : void()),
           ...);
        },
        net.users);
    return made;
  }
};

} // namespace tessera
