// kernel/cudnn_convolution.hpp: convolutions through cuDNN, in the problem's own terms: a local block with its halo,
// its own padding on each side, stride, dilation; channels-last by strides, so that views into larger blocks do too.
//
// ConvolutionPlans finds and keeps plans for a GPU, present or described. CudnnDevice is the GPU of a thread with its
// handle and workspace. CudnnConvolution runs the passes of one problem on it, in a stream.
//
// Bias and activation are part of the forward kernel where cuDNN has such an engine. Where it has none, forward() says
// so and leaves y = w * x for a kernel of the caller. (cuDNN 9.19 has precompiled engines for bias and ReLU; a leaky
// ReLU needs one that is compiled at run time, which it offers for tensor cores only.)
//
// May know: base, space, kernel/problem.hpp, check.hpp, cudnn_graph.hpp, cudnn_plan.hpp.
// Example: CudnnConvolution conv(problem, Number::f32, device);  conv.forward(x, w, bias, y, stream);
#pragma once

#include <cstdio>
#include <functional>
#include <tessera/base/view.hpp>
#include <tessera/kernel/check.hpp>
#include <tessera/kernel/cudnn_plan.hpp>
#include <tessera/space/cuda_calls.hpp>

namespace tessera::kernel::cudnn {

/// What stands behind the product in a forward kernel.
enum class Finish { product, bias, activation, bias_and_activation };

/// Everything that decides which plan a pass needs.
struct ConvKey {
  Conv problem;
  Pass pass = Pass::forward;
  Number number = Number::f32;
  Finish finish = Finish::product;
  Gradient mode = Gradient::overwrite; ///< of backward-weights
  Index<5> x_strides{}, w_strides{}, y_strides{};
  std::int64_t alignment = 16; ///< bytes, of every operand
  friend bool operator==(const ConvKey&, const ConvKey&) = default;

  std::string str() const {
    constexpr const char* passes[] = {"forward", "backward-data", "backward-weights"};
    constexpr const char* numbers[] = {"f32", "bf16", "f16"};
    constexpr const char* finishes[] = {"", " + bias", " + activation", " + bias + activation"};
    return text(problem.str(), ", ", passes[int(pass)], ", ", numbers[int(number)], finishes[int(finish)],
                mode == Gradient::accumulate ? ", accumulated" : "");
  }
};

/// The key of a pass whose operands are dense.
inline ConvKey dense_key(const Conv& p, Pass pass, Number number, Finish finish = Finish::product) {
  return {.problem = p,
          .pass = pass,
          .number = number,
          .finish = finish,
          .x_strides = View<float, 5>(nullptr, x_extents(p)).strides,
          .w_strides = View<float, 5>(nullptr, w_extents(p)).strides,
          .y_strides = View<float, 5>(nullptr, y_extents(p)).strides};
}

/// The cells of the block that cuDNN is to see, and the padding it is to add above them: its shape formula leaves no
/// choice, so cells that no window reads are hidden from it.
struct Seen {
  Triple cells{}, above{};
};
inline Seen seen_by_cudnn(const Conv& p) {
  Seen s;
  for (int i = 0; i < 3; ++i) {
    const long reach = (p.out[i] - 1) * p.stride[i] + span(p.k[i], p.dilation[i]) - p.below[i];
    TESSERA_REQUIRE(reach > 0, p.str(), ": no window of dim ", i, " touches the block; there is nothing to compute");
    s.cells[i] = p.in[i] - reach < p.stride[i] ? p.in[i] : reach;
    s.above[i] = std::max(0L, reach - p.in[i]);
  }
  return s;
}

namespace detail {
inline std::array<std::int64_t, 3> three(const Triple& t) { return {t[0], t[1], t[2]}; }
inline std::array<std::int64_t, 5> five(const Extents<5>& e) { return {e[0], e[1], e[2], e[3], e[4]}; }
enum : std::int64_t { id_x = 1, id_w, id_y, id_bias, id_product, id_sum };
} // namespace detail

/// The graph of a pass; its tensors in memory are, in this order: x, w, [bias,] y (or their gradients).
inline Graph conv_graph(const ConvKey& k) {
  using namespace detail;
  using Storage = TensorSpec::Storage;
  const Conv& p = k.problem;
  const Seen seen = seen_by_cudnn(p);
  const auto type = data_type(k.number);
  const bool bias = k.finish == Finish::bias || k.finish == Finish::bias_and_activation;
  const bool act = k.finish == Finish::activation || k.finish == Finish::bias_and_activation;
  Extents<5> x = x_extents(p), b = y_extents(p);
  for (int i = 0; i < 3; ++i) x[2 + i] = seen.cells[i], b[2 + i] = 1;
  b[0] = 1;
  const auto in_memory = [&](std::int64_t id, const Extents<5>& e, const Index<5>& strides) {
    return TensorSpec{.id = id, .type = type, .extents = five(e), .strides = five(strides), .alignment = k.alignment};
  };
  const auto inside = [&](std::int64_t id) {
    return TensorSpec{.id = id,
                      .type = CUDNN_DATA_FLOAT,
                      .extents = five(y_extents(p)),
                      .strides = five(k.y_strides),
                      .storage = Storage::inside};
  };
  Graph g;
  g.tensor(in_memory(id_x, x, k.x_strides));
  g.tensor(in_memory(id_w, w_extents(p), k.w_strides));
  if (bias) g.tensor(in_memory(id_bias, b, View<float, 5>(nullptr, b).strides));
  g.tensor(in_memory(id_y, y_extents(p), k.y_strides));
  const ConvGeometry geometry{three(p.stride), three(p.dilation), three(p.below), three(seen.above)};
  if (k.finish == Finish::product) {
    g.convolution(k.pass, geometry, {id_x, id_w, id_y}, k.mode == Gradient::accumulate ? 1.F : 0.F);
    return g;
  }
  g.tensor(inside(id_product));
  g.convolution(Pass::forward, geometry, {id_x, id_w, id_product});
  std::int64_t last = id_product;
  if (bias) {
    if (act) g.tensor(inside(id_sum));
    g.add(last, id_bias, act ? id_sum : id_y);
    last = id_sum;
  }
  if (act) g.leaky_relu(last, p.act == Activation::relu ? 0 : p.slope, id_y);
  return g;
}

/// Plans for one GPU, the most recently used ones. What was chosen is reported once per plan.
class ConvolutionPlans {
public:
  using Report = std::function<void(const PlanReport&)>;
  /// With the environment variable TESSERA_LOG_PLANS set, reports go to standard error unless `report` is given.
  ConvolutionPlans(Target target, const PlanPolicy& policy, Report report = {}, std::size_t most = 512)
      : target_(std::move(target)), policy_(policy), report_(std::move(report)), plans_(most) {
    if (!report_ && std::getenv("TESSERA_LOG_PLANS"))
      report_ = [](const PlanReport& r) { std::fprintf(stderr, "tessera: cuDNN: %s\n", r.str().c_str()); };
  }
  const PlanPolicy& policy() const { return policy_; }
  std::size_t size() const { return plans_.size(); }

  /// Null if no engine does it. A layer keeps what it got; the cache may forget it.
  std::shared_ptr<const Plan> find(const ConvKey& key) {
    return plans_.get(key, [&] { return make(key); });
  }

private:
  std::shared_ptr<const Plan> make(const ConvKey& key) const {
    PlanReport report;
    report.problem = key.str();
    Graph g = conv_graph(key);
    std::shared_ptr<const Plan> made;
    if (!g.finish(target_))
      report.reason = last_reason();
    else if (auto plan = choose_plan(g, target_, policy_, key.number, report))
      made = std::make_shared<const Plan>(std::move(*plan));
    if (report_) report_(report);
    return made;
  }
  Target target_;
  PlanPolicy policy_;
  Report report_;
  RecentlyUsed<ConvKey, std::shared_ptr<const Plan>> plans_;
};

/// The current GPU as one thread uses it: handle, plans, workspace. Make it after choosing the GPU.
class CudnnDevice {
public:
  explicit CudnnDevice(const PlanPolicy& policy = {}, ConvolutionPlans::Report report = {})
      : handle_(make_handle()), plans_(Target(handle_.get(), gpu_name()), policy, std::move(report)) {}
  ConvolutionPlans& plans() { return plans_; }

  /// Starts the plan in the stream. The workspace serves one stream at a time; a change of stream waits for the old.
  void run(const Plan& plan, std::span<const void* const> pointers, cudaStream_t stream) {
    if (stream != stream_) {
      check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream");
      stream_ = stream;
    }
    if (plan.workspace() > workspace_bytes_) grow(plan.workspace());
    plan.run(handle_.get(), pointers, workspace_.get());
  }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

private:
  struct Destroy {
    void operator()(cudnnHandle_t h) const noexcept { cudnnDestroy(h); }
  };
  static cudnnHandle_t make_handle() {
    cudnnHandle_t h = nullptr;
    check(cudnnCreate(&h), "cudnnCreate");
    return h;
  }
  static std::string gpu_name() {
    int device = 0;
    cudaDeviceProp p{};
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
    return p.name;
  }
  void grow(std::size_t bytes) {
    workspace_.reset(); // waits for the work that uses it
    workspace_bytes_ = 0;
    workspace_ = device_memory(bytes, "workspace of cuDNN");
    workspace_bytes_ = bytes;
  }
  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroy> handle_;
  ConvolutionPlans plans_;
  cudaStream_t stream_ = nullptr;
  OwnedDeviceMemory workspace_;
  std::size_t workspace_bytes_ = 0;
};

/// One convolution problem on a GPU. Operands are device memory: float, or 16-bit numbers of the given kind. Views may
/// have any strides that cuDNN has an engine for; dense channels-last is what it is good at.
template <class T> class CudnnConvolution {
public:
  CudnnConvolution(const Conv& p, Number number, CudnnDevice& device) : p_(p), number_(number), device_(&device) {
    check_problem(p_);
    TESSERA_REQUIRE(bytes_of(number) == long(sizeof(T)), p.str(), ": elements of ", sizeof(T),
                    " bytes, but numbers of ", bytes_of(number));
    idle_ = p.n == 0 || p.ci == 0 || p.co == 0 || product(p.in) == 0 || product(p.out) == 0;
  }
  const Conv& problem() const { return p_; }
  /// Nothing to compute: the caller fills what a pass would have made.
  bool idle() const { return idle_; }

  /// What forward() did.
  enum class Done {
    all,     ///< y = act(bias + w * x)
    product, ///< y = w * x; bias and activation are left to the caller
    nothing  ///< no engine does it
  };
  [[nodiscard]] Done forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y,
                             cudaStream_t stream) {
    check_operands(x, w, y);
    const bool act = p_.act != Activation::none;
    const Finish wanted =
        bias ? (act ? Finish::bias_and_activation : Finish::bias) : (act ? Finish::activation : Finish::product);
    const std::int64_t alignment = common_alignment({x.data, w.data, y.data, bias});
    const ConvKey key{p_,        Pass::forward, number_,   wanted,   Gradient::overwrite,
                      x.strides, w.strides,     y.strides, alignment};
    const bool known = !act || p_.act == Activation::relu || p_.act == Activation::leaky_relu;
    if (wanted != Finish::product && known) // others are left to the caller
      if (const Plan* fused = plan(key)) {
        const std::array<const void*, 4> with{x.data, w.data, bias, y.data}, without{x.data, w.data, y.data, nullptr};
        device_->run(*fused, std::span(bias ? with : without).first(bias ? 4 : 3), stream);
        return Done::all;
      }
    ConvKey plain = key;
    plain.finish = Finish::product;
    if (!run(plain, {x.data, w.data, y.data}, stream)) return Done::nothing;
    return wanted == Finish::product ? Done::all : Done::product;
  }
  /// dx = the adjoint applied to dy. Writes the whole of dx. False, and nothing done, if no engine does it.
  [[nodiscard]] bool backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx,
                                   cudaStream_t stream) {
    check_operands(dx, w, dy);
    const ConvKey key{p_,
                      Pass::backward_data,
                      number_,
                      Finish::product,
                      Gradient::overwrite,
                      dx.strides,
                      w.strides,
                      dy.strides,
                      common_alignment({dx.data, w.data, dy.data})};
    if (!plan(key)) return false;
    if (seen_by_cudnn(p_).cells != p_.in) { // cells that no window reads: cuDNN does not see them
      TESSERA_REQUIRE(dense_samples(View<const T, 5>(dx)), p_.str(), ": dx has strides ", dx.strides,
                      " and cells that no window reads; each sample must be dense");
      for (long n = 0; n < p_.n; ++n)
        check_cuda(
            cudaMemsetAsync(dx.data + n * dx.strides[0], 0, std::size_t(p_.ci * product(p_.in)) * sizeof(T), stream),
            "cudaMemsetAsync");
    }
    return run(key, {dx.data, w.data, dy.data}, stream);
  }
  /// dw = or += the gradient of <dy, conv(x)>. False, and nothing done, if no engine does it.
  [[nodiscard]] bool backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw,
                                      Gradient mode, cudaStream_t stream) {
    check_operands(x, dw, dy);
    return run({p_, Pass::backward_weights, number_, Finish::product, mode, x.strides, dw.strides, dy.strides,
                common_alignment({x.data, dw.data, dy.data})},
               {x.data, dw.data, dy.data}, stream);
  }

private:
  void check_operands(const View<const T, 5>& x, const View<const T, 5>& w, const View<const T, 5>& y) const {
    TESSERA_REQUIRE(!idle_, p_.str(), ": there is nothing to compute; ask idle() first");
    check_extents("x", x.extents, x_extents(p_));
    check_extents("the weights", w.extents, w_extents(p_));
    check_extents("y", y.extents, y_extents(p_));
  }
  bool run(const ConvKey& key, const std::array<const void*, 3>& pointers, cudaStream_t stream) {
    const Plan* p = plan(key);
    if (p) device_->run(*p, pointers, stream);
    return p != nullptr;
  }
  /// Few keys per layer: one per pass and, rarely, alignment.
  const Plan* plan(const ConvKey& key) {
    if (p_.groups > 1) return nullptr; // plans are made for one group; the caller's own kernels do the others
    for (const auto& [known, plan] : mine_)
      if (known == key) return plan.get();
    return mine_.emplace_back(key, device_->plans().find(key)).second.get();
  }

  Conv p_;
  Number number_;
  CudnnDevice* device_;
  bool idle_ = false;
  std::vector<std::pair<ConvKey, std::shared_ptr<const Plan>>> mine_;
};

} // namespace tessera::kernel::cudnn
