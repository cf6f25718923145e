// kernel/cublaslt.hpp: dense layers on a GPU, as matrix products through cuBLASLt.
//
// The one file that includes cublasLt.h. cuBLASLt counts columns first, so a row-major matrix is its own transpose
// there; product_of() says which product each pass is. Bias and ReLU ride on the forward product; a leaky ReLU, which
// cuBLASLt does not know, and the bias gradient are left to kernels of the caller.
//
// May know: base, space, kernel/problem.hpp, plan_policy.hpp.
// Example: CublasltDense<float> dense(problem, Number::f32, device);  dense.forward(x, w, bias, y, stream);
#pragma once

#include <array>
#include <cstdio>
#include <cublasLt.h>
#include <optional>
#include <string>
#include <tessera/kernel/plan_policy.hpp>
#include <tessera/kernel/problem.hpp>
#include <tessera/space/cuda_calls.hpp>
#include <utility>
#include <vector>

namespace tessera::kernel {

/// D (m x n) = op(A) op(B) + beta D with columns stored one after another; `lda` etc. are the rows as stored.
struct Product {
  enum class Op { as_stored, transposed };
  Op a = Op::as_stored, b = Op::as_stored;
  long m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldd = 0;
  friend bool operator==(const Product&, const Product&) = default;
};

/// A pass of a dense layer as such a product. The operands A, B -> D are
///   forward: weights, x -> y;   backward-data: weights, dy -> dx;   backward-weights: x, dy -> dw.
constexpr Product product_of(const Dense& p, Pass pass) {
  constexpr auto stored = Product::Op::as_stored, transposed = Product::Op::transposed;
  switch (pass) {
  case Pass::forward: return {transposed, stored, p.co, p.n, p.ci, p.ci, p.ci, p.co};
  case Pass::backward_data: return {stored, stored, p.ci, p.n, p.co, p.ci, p.co, p.ci};
  default: return {stored, transposed, p.ci, p.co, p.n, p.ci, p.co, p.ci};
  }
}

namespace cublaslt {

inline void check(cublasStatus_t status, std::string_view call, std::string_view about = {},
                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_backend(call, cublasLtGetStatusName(status), status, about, file, line);
}
inline cudaDataType_t data_type(Number n) {
  return n == Number::f32 ? CUDA_R_32F : n == Number::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

struct Destroy {
  void operator()(cublasLtHandle_t h) const noexcept { cublasLtDestroy(h); }
  void operator()(cublasLtMatmulDesc_t d) const noexcept { cublasLtMatmulDescDestroy(d); }
  void operator()(cublasLtMatrixLayout_t d) const noexcept { cublasLtMatrixLayoutDestroy(d); }
  void operator()(cublasLtMatmulPreference_t d) const noexcept { cublasLtMatmulPreferenceDestroy(d); }
};
template <class H> using Owned = std::unique_ptr<std::remove_pointer_t<H>, Destroy>;

/// What stands behind the product.
enum class Finish { nothing, bias, relu, bias_and_relu };

} // namespace cublaslt

/// The current GPU as one thread uses it for matrix products: handle, policy, workspace.
class CublasltDevice {
public:
  explicit CublasltDevice(const PlanPolicy& policy = {}) : policy_(policy) {
    policy_.workspace = std::min(policy_.workspace, std::size_t{32} << 20); // more is of no use to a matrix product
    cublasLtHandle_t h = nullptr;
    cublaslt::check(cublasLtCreate(&h), "cublasLtCreate");
    handle_.reset(h);
  }
  cublasLtHandle_t handle() const { return handle_.get(); }
  const PlanPolicy& policy() const { return policy_; }
  /// For work in one stream at a time; a change of stream waits for the old one.
  void* workspace(cudaStream_t stream) {
    if (!workspace_ && policy_.workspace) workspace_ = device_memory(policy_.workspace, "workspace of cuBLASLt");
    if (std::exchange(stream_, stream) != stream && used_) check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    used_ = true;
    return workspace_.get();
  }

private:
  PlanPolicy policy_;
  cublaslt::Owned<cublasLtHandle_t> handle_;
  OwnedDeviceMemory workspace_;
  cudaStream_t stream_ = nullptr;
  bool used_ = false;
};

namespace cublaslt {

/// One matrix product, set up once. cuBLASLt proposes algorithms, best first; the first that runs is kept.
class Matmul {
public:
  Matmul(const Product& p, Number number, Finish finish, std::int64_t alignment, const CublasltDevice& device)
      : finish_(finish) {
    const cudaDataType_t type = data_type(number);
    const bool tf32 = number == Number::f32 && device.policy().math == PlanPolicy::Math::tf32;
    cublasLtMatmulDesc_t raw = nullptr;
    check(cublasLtMatmulDescCreate(&raw, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    operation_.reset(raw);
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.a == Product::Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.b == Product::Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (finish != Finish::nothing)
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, finish == Finish::bias   ? CUBLASLT_EPILOGUE_BIAS
                                         : finish == Finish::relu ? CUBLASLT_EPILOGUE_RELU
                                                                  : CUBLASLT_EPILOGUE_RELU_BIAS);
    if (biased()) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    const bool ta = p.a == Product::Op::transposed, tb = p.b == Product::Op::transposed;
    a_ = layout(type, ta ? p.k : p.m, ta ? p.m : p.k, p.lda);
    b_ = layout(type, tb ? p.n : p.k, tb ? p.k : p.n, p.ldb);
    d_ = layout(type, p.m, p.n, p.ldd);
    propose(alignment, device);
  }
  /// D = A B + beta D, with bias and activation as set up. Starts in the stream.
  void run(const void* a, const void* b, const void* bias, void* d, float beta, CublasltDevice& device,
           cudaStream_t stream) {
    if (biased()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float alpha = 1;
    for (; best_ < algorithms_.size(); ++best_) {
      const auto& chosen = algorithms_[best_];
      const cublasStatus_t status =
          cublasLtMatmul(device.handle(), operation_.get(), &alpha, a, a_.get(), b, b_.get(), &beta, d, d_.get(), d,
                         d_.get(), &chosen.algo, device.workspace(stream), chosen.workspaceSize, stream);
      if (status == CUBLAS_STATUS_SUCCESS) return;
      if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
        check(status, "cublasLtMatmul");
    }
    throw backend_error("cublasLtMatmul: none of the proposed algorithms runs");
  }
  std::size_t proposed() const { return algorithms_.size(); }

private:
  bool biased() const { return finish_ == Finish::bias || finish_ == Finish::bias_and_relu; }
  template <class V> void set(cublasLtMatmulDescAttributes_t what, const V& value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), what, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", text("attribute ", int(what)));
  }
  static Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, long rows, long columns, long ld) {
    cublasLtMatrixLayout_t raw = nullptr;
    check(cublasLtMatrixLayoutCreate(&raw, type, std::uint64_t(rows), std::uint64_t(columns), ld),
          "cublasLtMatrixLayoutCreate", text(rows, " x ", columns));
    return Owned<cublasLtMatrixLayout_t>(raw);
  }
  void propose(std::int64_t alignment, const CublasltDevice& device) {
    cublasLtMatmulPreference_t raw = nullptr;
    check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
    const Owned<cublasLtMatmulPreference_t> preference(raw);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(raw, what, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute", text("attribute ", int(what)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(device.policy().workspace));
    for (const auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(what, std::uint32_t(alignment));
    if (device.policy().sums == PlanPolicy::Sums::reproducible) // one kernel, or parts summed in order; no atomics
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    algorithms_.resize(8);
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(device.handle(), operation_.get(), a_.get(), b_.get(), d_.get(), d_.get(), raw,
                                         int(algorithms_.size()), algorithms_.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    algorithms_.resize(std::size_t(count));
  }

  Finish finish_;
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> a_, b_, d_;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms_;
  std::size_t best_ = 0;
};

} // namespace cublaslt

/// One dense layer on a GPU; operands are device memory, row-major and dense, weights (co, ci).
template <class T> class CublasltDense {
public:
  CublasltDense(const Dense& p, Number number, CublasltDevice& device) : p_(p), number_(number), device_(&device) {
    TESSERA_REQUIRE(p.n >= 0 && p.ci >= 0 && p.co >= 0, "dense: negative extents ", p.n, ", ", p.ci, " -> ", p.co);
    TESSERA_REQUIRE(bytes_of(number) == long(sizeof(T)), "dense: elements of ", sizeof(T), " bytes, but numbers of ",
                    bytes_of(number));
  }
  const Dense& problem() const { return p_; }
  /// Nothing to compute: the caller fills what a pass would have made.
  bool idle() const { return p_.n == 0 || p_.ci == 0 || p_.co == 0; }

  /// What forward() did.
  enum class Done {
    all,   ///< y = act(bias + W x)
    linear ///< y = bias + W x; the activation is left to the caller
  };
  /// `bias` may be null.
  [[nodiscard]] Done forward(const T* x, const T* w, const T* bias, T* y, cudaStream_t stream) {
    using cublaslt::Finish;
    const bool relu = p_.act == Activation::relu;
    const Finish finish =
        bias ? (relu ? Finish::bias_and_relu : Finish::bias) : (relu ? Finish::relu : Finish::nothing);
    matmul(Pass::forward, finish, common_alignment({w, x, y, bias})).run(w, x, bias, y, 0, *device_, stream);
    return p_.act == Activation::leaky_relu ? Done::linear : Done::all;
  }
  /// dx = dy W
  void backward_data(const T* dy, const T* w, T* dx, cudaStream_t stream) {
    matmul(Pass::backward_data, cublaslt::Finish::nothing, common_alignment({w, dy, dx}))
        .run(w, dy, nullptr, dx, 0, *device_, stream);
  }
  /// dW = or += dy^T x
  void backward_weights(const T* x, const T* dy, T* dw, Gradient mode, cudaStream_t stream) {
    matmul(Pass::backward_weights, cublaslt::Finish::nothing, common_alignment({x, dy, dw}))
        .run(x, dy, nullptr, dw, mode == Gradient::accumulate ? 1.F : 0.F, *device_, stream);
  }

private:
  cublaslt::Matmul& matmul(Pass pass, cublaslt::Finish finish, std::int64_t alignment) {
    TESSERA_REQUIRE(!idle(), "dense: ", p_.n, " samples, ", p_.ci, " -> ", p_.co,
                    ": there is nothing to compute; ask idle() first");
    const Key key{pass, finish, alignment};
    for (auto& [known, m] : mine_)
      if (known == key) return m;
    auto& m =
        mine_.emplace_back(key, cublaslt::Matmul(product_of(p_, pass), number_, finish, alignment, *device_)).second;
    if (std::getenv("TESSERA_LOG_PLANS"))
      std::fprintf(stderr, "tessera: cuBLASLt: dense %ldx%ld -> %ld, pass %d: %zu algorithms proposed\n", p_.n, p_.ci,
                   p_.co, int(pass), m.proposed());
    return m;
  }
  struct Key {
    Pass pass;
    cublaslt::Finish finish;
    std::int64_t alignment;
    friend bool operator==(const Key&, const Key&) = default;
  };
  Dense p_;
  Number number_;
  CublasltDevice* device_;
  std::vector<std::pair<Key, cublaslt::Matmul>> mine_;
};

} // namespace tessera::kernel
