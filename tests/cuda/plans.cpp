// Whether cuDNN has an engine for every convolution that the two example networks build, on GPUs that are only
// described: no GPU is needed. What it says of speed or of results on a real one is for tests/gpu.sh.
#include "support/convolutions.hpp"
#include "support/ranks.hpp"
#include "support/sweep.hpp"

#include <cosmoflow/model.hpp>
#include <map>
#include <tessera/kernel/cudnn_convolution.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;
using namespace tessera::kernel::cudnn;
using kernel::Activation;
using kernel::Conv;
using kernel::Number;
using kernel::PlanPolicy;

namespace {

inline constexpr Layout over_ndhw = place(Dim::n, Dim::d, Dim::h, Dim::w);
constexpr kernel::Pass passes[] = {kernel::Pass::forward, kernel::Pass::backward_data, kernel::Pass::backward_weights};

void add(std::vector<Conv>& all, const NetworkPlan& plan, int ranks) {
  for (int r = 0; r < ranks; ++r)
    for (const Conv& p : convolutions(plan, r))
      if (std::ranges::find(all, p) == all.end()) all.push_back(p);
}
template <int... Sides> std::vector<Conv> cosmoflow_convolutions(std::integer_sequence<int, Sides...>) {
  std::vector<Conv> all;
  for (const int ranks : {1, 2, 4}) {
    const GridShape shape = shape_of({1, ranks, 1, 1});
    (add(all, NetworkPlan(shape, describe(CosmoFlow<Sides>::net, CosmoFlow<Sides>::input, over_ndhw), 1), ranks), ...);
  }
  return all;
}

/// A convolution of the 3D U-Net of the paper for 128^3: channels in and out, side of its input, window.
struct Block {
  int ci, co, side;
  Stencil stencil = window(3).same();
};
std::vector<Conv> unet_convolutions() {
  const Stencil halved = window(2).strided(2); // the matching convolutions of the up-convolutions
  std::vector<Conv> all;
  for (const Block& b :
       {Block{1, 32, 128}, Block{32, 64, 128}, Block{64, 64, 64}, Block{64, 128, 64}, Block{128, 128, 32},
        Block{128, 256, 32}, Block{256, 256, 16}, Block{256, 512, 16}, Block{512, 512, 32, halved}, Block{768, 256, 32},
        Block{256, 256, 32}, Block{256, 256, 64, halved}, Block{384, 128, 64}, Block{128, 128, 64},
        Block{128, 128, 128, halved}, Block{192, 64, 128}, Block{64, 64, 128}, Block{64, 3, 128, window(1)}})
    for (const int ranks : {1, 2, 4})
      add(all,
          NetworkPlan(shape_of({1, ranks, 1, 1}),
                      describe({conv(b.co, b.stencil)}, {.c = b.ci, .d = b.side, .h = b.side, .w = b.side}, over_ndhw),
                      1),
          ranks);
  return all;
}

/// Engines by name, to show what was chosen.
class Tally {
public:
  ConvolutionPlans::Report report() {
    return [this](const PlanReport& r) { ++count_[r.engine.empty() ? "none" : r.engine], last_ = r; };
  }
  const PlanReport& last() const { return last_; }
  int of(const std::string& engine) const { return count_.contains(engine) ? count_.at(engine) : 0; }
  std::string str() const {
    std::string s;
    for (const auto& [engine, n] : count_) s += text("\n  ", n, " x ", engine);
    return s;
  }

private:
  std::map<std::string, int> count_;
  PlanReport last_;
};

void every_pass_has_a_plan(const std::vector<Conv>& problems) {
  struct Case {
    std::string name;
    Number number;
    PlanPolicy::Math math;
  };
  for (const DeviceProperties& gpu : {h100(), a100()})
    for (const Case& c : {Case{"f32", Number::f32, PlanPolicy::Math::full},
                          {"tf32", Number::f32, PlanPolicy::Math::tf32},
                          {"bf16", Number::bf16, PlanPolicy::Math::tf32},
                          {"f16", Number::f16, PlanPolicy::Math::tf32}}) {
      Tally tally;
      ConvolutionPlans plans(Target(gpu), {.math = c.math}, tally.report());
      for (const Conv& p : problems)
        for (const kernel::Pass pass : passes)
          CHECK_MESSAGE(plans.find(dense_key(p, pass, c.number)) != nullptr, gpu.name, ": ", tally.last().str());
      MESSAGE(gpu.name, ", ", c.name, ", ", problems.size(), " convolutions in three passes:", tally.str());
    }
}

} // namespace

TEST_CASE(
    "cudnn: every convolution of CosmoFlow 32 to 512, whole and split along depth, has a plan for sm_90 and sm_80") {
  if (environment().world().rank() != 0) return; // a question about kernels, not about ranks
  const auto problems = cosmoflow_convolutions(std::integer_sequence<int, 32, 64, 128, 256, 512>{});
  CHECK(problems.size() > 100);
  every_pass_has_a_plan(problems);
}

TEST_CASE("cudnn: every convolution of the 3D U-Net has a plan; an up-convolution is the backward-data of its match") {
  if (environment().world().rank() != 0) return;
  every_pass_has_a_plan(unet_convolutions());
}

TEST_CASE("cudnn: bias and ReLU are part of the forward kernel; the other passes add to what stands there on request") {
  if (environment().world().rank() != 0) return;
  Tally tally;
  for (const auto math : {PlanPolicy::Math::full, PlanPolicy::Math::tf32}) {
    ConvolutionPlans plans(Target(h100()), {.math = math}, tally.report());
    for (Conv p : cosmoflow_convolutions(std::integer_sequence<int, 128>{})) {
      p.act = Activation::relu;
      CHECK_MESSAGE(plans.find(dense_key(p, kernel::Pass::forward, Number::f32, Finish::bias_and_activation)) !=
                        nullptr,
                    tally.last().str());
      ConvKey more = dense_key(p, kernel::Pass::backward_weights, Number::f32);
      more.mode = kernel::Gradient::accumulate;
      CHECK_MESSAGE(plans.find(more) != nullptr, tally.last().str());
    }
  }
}

TEST_CASE("cudnn: sums in a fixed order have a plan as well") {
  if (environment().world().rank() != 0) return;
  for (const auto math : {PlanPolicy::Math::full, PlanPolicy::Math::tf32}) {
    Tally tally;
    ConvolutionPlans plans(Target(h100()), {.math = math, .sums = PlanPolicy::Sums::reproducible}, tally.report());
    for (const auto& list : {cosmoflow_convolutions(std::integer_sequence<int, 64>{}), unet_convolutions()})
      for (const Conv& p : list)
        for (const kernel::Pass pass : passes)
          CHECK_MESSAGE(plans.find(dense_key(p, pass, Number::f32)) != nullptr, tally.last().str());
    MESSAGE(tally.str());
  }
}

namespace {
Conv small_conv() {
  return {.n = 2,
          .ci = 16,
          .co = 32,
          .in = {{9, 8, 8}},
          .out = {{8, 8, 8}},
          .k = {{3, 3, 3}},
          .below = {{0, 1, 1}},
          .above = {{1, 1, 1}}};
}
} // namespace

TEST_CASE("cudnn: the policy is obeyed, and the report says what it cost") {
  if (environment().world().rank() != 0) return;
  PlanReport last;
  const auto keep = [&](const PlanReport& r) { last = r; };
  const ConvKey key = dense_key(small_conv(), kernel::Pass::forward, Number::f32);

  CHECK(ConvolutionPlans(Target(h100()), {.math = PlanPolicy::Math::full}, keep).find(key));
  CHECK(last.engine.find("tensor cores") == std::string::npos);
  CHECK(last.forbidden > 0);
  CHECK(last.problem.find(small_conv().str()) != std::string::npos);

  const std::size_t wanted = last.workspace;
  REQUIRE(wanted > 0); // so that a limit just below it must bite
  const std::string before = last.engine;
  CHECK(ConvolutionPlans(Target(h100()), {.workspace = wanted - 1}, keep).find(key)); // the next engine
  CHECK(last.too_large > 0);
  CHECK(last.workspace < wanted);
  CHECK(last.engine != before);

  CHECK(ConvolutionPlans(Target(h100()), {.math = PlanPolicy::Math::tf32}, keep).find(key));
  CHECK(last.engine.find("tensor cores") != std::string::npos);
}

TEST_CASE("cudnn: what no engine does is said so") {
  if (environment().world().rank() != 0) return;
  PlanReport last;
  ConvolutionPlans plans(Target(h100()), {.workspace = 0}, [&](const PlanReport& r) { last = r; });
  ConvKey key = dense_key(small_conv(), kernel::Pass::forward, Number::f32);
  key.x_strides = {}; // all cells in one place: no memory looks like this
  CHECK(plans.find(key) == nullptr);
  CHECK(last.engine.empty());
  CHECK(last.str().find("no engine") != std::string::npos);
  CHECK(plans.find(key) == nullptr); // remembered
}

TEST_CASE("cudnn: plans are kept by problem, pass, type and strides, the most recently used ones") {
  if (environment().world().rank() != 0) return;
  int made = 0;
  ConvolutionPlans plans(
      Target(h100()), {}, [&](const PlanReport&) { ++made; }, 2);
  const ConvKey a = dense_key(small_conv(), kernel::Pass::forward, Number::f32);
  ConvKey b = a, c = a;
  b.number = Number::bf16;
  c.pass = kernel::Pass::backward_data;
  const auto first = plans.find(a);
  CHECK(plans.find(a) == first);
  CHECK(made == 1);
  plans.find(b);
  plans.find(a); // now b is the oldest
  plans.find(c);
  CHECK(plans.size() == 2);
  CHECK(made == 3);
  CHECK(plans.find(a) == first);
  CHECK(made == 3);
  plans.find(b);
  CHECK(made == 4);
  ConvKey wider = a; // a view into a wider block is another problem
  wider.x_strides[2] += 16;
  CHECK_FALSE(wider == a);
}

TEST_CASE("cudnn: cells that no window reads are hidden from it, and a block that no window touches is refused") {
  // Kernel 2 at stride 3 over 11 cells, two outputs: cells 0,1 and 3,4 are read; its shape formula would make four.
  const Conv p{
      .n = 1, .ci = 8, .co = 8, .in = {{11, 4, 4}}, .out = {{2, 4, 4}}, .k = {{2, 1, 1}}, .stride = {{3, 1, 1}}};
  CHECK(seen_by_cudnn(p).cells == kernel::Triple{{5, 4, 4}});
  CHECK(seen_by_cudnn(p).above == kernel::Triple{{0, 0, 0}});
  // One cell of padding above is asked for, but the last window needs none of it.
  const Conv q{.n = 1,
               .ci = 8,
               .co = 8,
               .in = {{6, 4, 4}},
               .out = {{3, 4, 4}},
               .k = {{3, 1, 1}},
               .stride = {{2, 1, 1}},
               .below = {{1, 0, 0}},
               .above = {{1, 0, 0}}};
  CHECK(seen_by_cudnn(q).cells == kernel::Triple{{6, 4, 4}});
  CHECK(seen_by_cudnn(q).above == kernel::Triple{{0, 0, 0}});
  const Conv off{
      .n = 1, .ci = 8, .co = 8, .in = {{2, 4, 4}}, .out = {{1, 4, 4}}, .k = {{2, 1, 1}}, .below = {{2, 0, 0}}};
  CHECK_THROWS_AS(seen_by_cudnn(off), usage_error);
}

TEST_CASE("cudnn: an error carries call, code, cuDNN's reason and the place") {
  try {
    Target(DeviceProperties{.name = "\"", .capability = 900});
    FAIL("properties that are no JSON were taken");
  } catch (const backend_error& e) {
    const std::string what = e.what();
    CHECK(what.find("cudnnBackendFinalize: CUDNN_STATUS_") == 0);
    CHECK(what.find("(code ") != what.npos);
    CHECK(what.find("tessera/kernel/cudnn_graph.hpp:") != what.npos);
  }
}
