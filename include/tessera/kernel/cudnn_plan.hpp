// kernel/cudnn_plan.hpp: Plan, an engine of cuDNN that runs a graph, and the policy that chooses it.
//
// cuDNN proposes engines, best first. Taken is the first that the policy admits (arithmetic, order of sums, workspace)
// and that cuDNN can finish; the report says which that is and why those before it were passed over.
//
// May know: base, kernel/problem.hpp, cudnn_graph.hpp.
// Example: PlanReport report;  std::optional<Plan> p = choose_plan(graph, target, {.workspace = 256u << 20}, report);
#pragma once

#include <algorithm>
#include <iterator>
#include <list>
#include <tessera/kernel/cudnn_graph.hpp>
#include <tessera/kernel/plan_policy.hpp>

namespace tessera::kernel::cudnn {

inline cudnnDataType_t data_type(Number n) {
  return n == Number::f32 ? CUDNN_DATA_FLOAT : n == Number::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/// How the choice went.
struct PlanReport {
  std::string problem, engine; ///< `engine` is empty if there is none
  std::size_t workspace = 0;   ///< bytes
  int proposed = 0, forbidden = 0, too_large = 0, refused = 0;
  std::string reason; ///< cuDNN's, of the last refusal
  std::string str() const {
    const std::string passed =
        text(proposed, " proposed, ", forbidden, " forbidden by the policy, ", too_large,
             " with too large a workspace, ", refused, " refused", reason.empty() ? "" : ": ", reason);
    if (engine.empty()) return text(problem, ": no engine (", passed, ")");
    return text(problem, ": ", engine, ", workspace ", workspace, " bytes (", passed, ")");
  }
};

/// An engine set up for one graph.
class Plan {
public:
  Plan(Descriptor plan, std::vector<std::int64_t> ids, std::string engine)
      : plan_(std::move(plan)), ids_(std::move(ids)), engine_(std::move(engine)),
        workspace_(std::size_t(plan_.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE))) {}
  std::size_t workspace() const { return workspace_; }
  const std::string& engine() const { return engine_; }

  /// Starts it in the handle's stream. `pointers` in the order in which the graph's tensors in memory were added.
  void run(cudnnHandle_t handle, std::span<const void* const> pointers, void* workspace) const {
    std::array<void*, most_tensors> raw{};
    TESSERA_REQUIRE(pointers.size() == ids_.size() && ids_.size() <= most_tensors, "cuDNN plan ", engine_, ": ",
                    pointers.size(), " pointers for ", ids_.size(), " tensors");
    for (std::size_t i = 0; i < pointers.size(); ++i) raw[i] = const_cast<void*>(pointers[i]);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(ids_))
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::span<void* const>(raw.data(), pointers.size()))
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
        .finalize("pointers");
    check(cudnnBackendExecute(handle, plan_.raw(), pack.raw()), "cudnnBackendExecute", engine_);
  }

private:
  static constexpr std::size_t most_tensors = 8;
  Descriptor plan_;
  std::vector<std::int64_t> ids_;
  std::string engine_;
  std::size_t workspace_;
};

namespace detail {

/// The engine configurations of one mode, best first; none if the mode cannot serve the graph.
inline std::vector<Descriptor> proposals(const Graph& graph, const Target& target, cudnnBackendHeurMode_t mode) {
  constexpr std::int64_t most = 64;
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor()).set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  target.tell(heuristic, std::nullopt, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  if (!heuristic.try_finalize()) return {};
  std::vector<Descriptor> list;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) raw.push_back(list.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(heuristic.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most,
                               &count, raw.data()) != CUDNN_STATUS_SUCCESS)
    return {};
  list.erase(list.begin() + std::min(count, most), list.end());
  return list;
}

/// What an engine says of itself.
struct EngineNotes {
  std::int64_t index = 0;
  std::vector<cudnnBackendNumericalNote_t> numerical;
  std::vector<cudnnBackendBehaviorNote_t> behaviour;

  bool has(cudnnBackendNumericalNote_t n) const { return std::ranges::find(numerical, n) != numerical.end(); }
  bool has(cudnnBackendBehaviorNote_t n) const { return std::ranges::find(behaviour, n) != behaviour.end(); }
  bool admitted(const PlanPolicy& policy, Number number) const {
    if (policy.sums == PlanPolicy::Sums::reproducible && has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
    // bfloat16 and half products are exact in float; what must not happen is a sum kept in less than float.
    if (has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
    if (number != Number::f32 || policy.math == PlanPolicy::Math::tf32) return true;
    return !has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) && !has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  }
  std::string str() const {
    std::string s = text("engine ", index);
    if (has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) s += ", tensor cores";
    if (has(CUDNN_NUMERICAL_NOTE_FFT)) s += ", FFT";
    if (has(CUDNN_NUMERICAL_NOTE_WINOGRAD)) s += ", Winograd";
    if (has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) s += ", atomics";
    if (has(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)) s += ", compiled at run time";
    return s;
  }
};
inline EngineNotes engine_notes(const Descriptor& configuration) {
  const Descriptor engine = configuration.get_descriptor(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  return {
      engine.get<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX),
      engine.get_all<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT),
      engine.get_all<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT)};
}

} // namespace detail

/// The first proposed engine that the policy admits and cuDNN can finish; nothing if there is none.
inline std::optional<Plan> choose_plan(const Graph& graph, const Target& target, const PlanPolicy& policy,
                                       Number number, PlanReport& report) {
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (const Descriptor& configuration : detail::proposals(graph, target, mode)) {
      ++report.proposed;
      const detail::EngineNotes notes = detail::engine_notes(configuration);
      if (!notes.admitted(policy, number)) {
        ++report.forbidden;
        continue;
      }
      Descriptor d(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      d.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      target.tell(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
      if (!d.try_finalize()) {
        ++report.refused;
        report.reason = last_reason();
        continue;
      }
      Plan plan(std::move(d), graph.ids(), notes.str());
      if (plan.workspace() > policy.workspace) {
        ++report.too_large;
        continue;
      }
      report.engine = plan.engine();
      report.workspace = plan.workspace();
      return plan;
    }
  return std::nullopt;
}

/// The most recently used values, up to a number. Found by ==, so keys need no order.
template <class Key, class Value> class RecentlyUsed {
public:
  explicit RecentlyUsed(std::size_t most) : most_(most) {}
  std::size_t size() const { return entries_.size(); }
  /// The value of `key`, made by make() if it is not there; the least recently used one goes for it.
  template <class Make> Value& get(const Key& key, const Make& make) {
    const auto at = std::ranges::find(entries_, key, &Entry::first);
    if (at != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, at);
    } else {
      entries_.emplace_front(key, make());
      if (entries_.size() > most_) entries_.pop_back();
    }
    return entries_.front().second;
  }

private:
  using Entry = std::pair<Key, Value>;
  std::size_t most_;
  std::list<Entry> entries_;
};

} // namespace tessera::kernel::cudnn
