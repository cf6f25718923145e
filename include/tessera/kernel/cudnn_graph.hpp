// kernel/cudnn_graph.hpp: cuDNN's graph API as a few values: Descriptor, Target (a GPU, present or only described),
// Graph (tensors and operations) and Plan (an engine that runs a graph).
//
// The one file that includes cudnn.h. Plans are made for a Target, which is a handle of a GPU that is there or the
// properties of one that is not, so that a machine without a GPU can find out which convolutions have a kernel.
//
// Who owns what: Descriptor, Graph and Plan own what they made. A Plan holds its own copy of the graph. Not thread
// safe: an object belongs to one thread at a time, and a handle to one thread.
//
// May know: base.
// Example: Graph g;  g.tensor(1, ...);  g.convolution(Pass::forward, geometry, {1, 2, 3});  g.finish(target);
//          std::optional<Plan> p = choose_plan(g, target, PlanPolicy{}, report);
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cudnn.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/base/vendor.hpp>
#include <tessera/kernel/problem.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::kernel::cudnn {

static_assert(CUDNN_VERSION >= 90800, "tessera: cuDNN 9.8 or newer is needed");

/// Throws backend_error unless the call succeeded.
inline void check(cudnnStatus_t status, std::string_view call, std::string_view about = {},
                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> reason{};
  cudnnGetLastErrorString(reason.data(), reason.size());
  fail_backend(call, cudnnGetErrorString(status), status, text(about, about.empty() ? "" : ": ", reason.data()), file,
               line);
}

namespace detail {
/// cuDNN's tag of a value's type.
template <class V> constexpr cudnnBackendAttributeType_t attribute_type() {
  if constexpr (std::is_same_v<V, std::int64_t>)
    return CUDNN_TYPE_INT64;
  else if constexpr (std::is_same_v<V, std::int32_t>)
    return CUDNN_TYPE_INT32;
  else if constexpr (std::is_same_v<V, double>)
    return CUDNN_TYPE_DOUBLE;
  else if constexpr (std::is_same_v<V, float>)
    return CUDNN_TYPE_FLOAT;
  else if constexpr (std::is_same_v<V, bool>)
    return CUDNN_TYPE_BOOLEAN;
  else if constexpr (std::is_same_v<V, char>)
    return CUDNN_TYPE_CHAR;
  else if constexpr (std::is_same_v<V, void*>)
    return CUDNN_TYPE_VOID_PTR;
  else if constexpr (std::is_same_v<V, cudnnHandle_t>)
    return CUDNN_TYPE_HANDLE;
  else if constexpr (std::is_same_v<V, cudnnDataType_t>)
    return CUDNN_TYPE_DATA_TYPE;
  else if constexpr (std::is_same_v<V, cudnnConvolutionMode_t>)
    return CUDNN_TYPE_CONVOLUTION_MODE;
  else if constexpr (std::is_same_v<V, cudnnPointwiseMode_t>)
    return CUDNN_TYPE_POINTWISE_MODE;
  else if constexpr (std::is_same_v<V, cudnnReduceTensorOp_t>)
    return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
  else if constexpr (std::is_same_v<V, cudnnBackendHeurMode_t>)
    return CUDNN_TYPE_HEUR_MODE;
  else if constexpr (std::is_same_v<V, cudnnBackendNumericalNote_t>)
    return CUDNN_TYPE_NUMERICAL_NOTE;
  else if constexpr (std::is_same_v<V, cudnnBackendBehaviorNote_t>)
    return CUDNN_TYPE_BEHAVIOR_NOTE;
  else
    static_assert(sizeof(V) == 0, "no cuDNN attribute has this type");
}
} // namespace detail

/// One of cuDNN's descriptors: made, given attributes, finalised, read.
class Descriptor {
public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t raw = nullptr;
    check(cudnnBackendCreateDescriptor(type, &raw), "cudnnBackendCreateDescriptor", text("type ", int(type)));
    raw_.reset(raw);
  }
  cudnnBackendDescriptor_t raw() const { return raw_.get(); }

  template <class V>
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const V> values, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    check(
        cudnnBackendSetAttribute(raw(), name, detail::attribute_type<V>(), std::int64_t(values.size()), values.data()),
        "cudnnBackendSetAttribute", text("attribute ", int(name)), file, line);
    return *this;
  }
  template <class V>
  Descriptor& set(cudnnBackendAttributeName_t name, V value, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    return set(name, std::span<const V>(&value, 1), file, line);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    const cudnnBackendDescriptor_t raw = other.raw();
    return set_descriptors(name, {&raw, 1}, file, line);
  }
  /// Of descriptors: their type is that of any pointer, so that set() cannot tell.
  Descriptor& set_descriptors(cudnnBackendAttributeName_t name, std::span<const cudnnBackendDescriptor_t> values,
                              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    check(cudnnBackendSetAttribute(raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::int64_t(values.size()),
                                   values.data()),
          "cudnnBackendSetAttribute", text("attribute ", int(name)), file, line);
    return *this;
  }

  /// False, with cuDNN's reason in last_reason(), if cuDNN cannot do what the attributes ask for.
  [[nodiscard]] bool try_finalize() { return cudnnBackendFinalize(raw()) == CUDNN_STATUS_SUCCESS; }
  Descriptor& finalize(std::string_view what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    check(cudnnBackendFinalize(raw()), "cudnnBackendFinalize", what, file, line);
    return *this;
  }

  template <class V> V get(cudnnBackendAttributeName_t name) const {
    V value{};
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(raw(), name, detail::attribute_type<V>(), 1, &count, &value),
          "cudnnBackendGetAttribute", text("attribute ", int(name)));
    return value;
  }
  template <class V> std::vector<V> get_all(cudnnBackendAttributeName_t name, std::int64_t most) const {
    std::vector<V> values(static_cast<std::size_t>(most));
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(raw(), name, detail::attribute_type<V>(), most, &count, values.data()),
          "cudnnBackendGetAttribute", text("attribute ", int(name)));
    values.resize(static_cast<std::size_t>(std::min(count, most)));
    return values;
  }
  /// A descriptor of `type` that this one refers to.
  Descriptor get_descriptor(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const {
    Descriptor d(type);
    cudnnBackendDescriptor_t raw = d.raw();
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(this->raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
          "cudnnBackendGetAttribute", text("attribute ", int(name)));
    return d;
  }

private:
  struct Destroy {
    void operator()(void* p) const noexcept { cudnnBackendDestroyDescriptor(p); }
  };
  std::unique_ptr<void, Destroy> raw_;
};

/// Why the last call on this thread failed, in cuDNN's words.
inline std::string last_reason() {
  std::array<char, 1024> reason{};
  cudnnGetLastErrorString(reason.data(), reason.size());
  return reason.data();
}

/// What cuDNN's planner wants to know about a GPU. Fields as in CUDA's cudaDeviceProp.
struct DeviceProperties {
  std::string name;
  int capability = 0; ///< 900 for sm_90
  int multiprocessors = 0;
  long shared_memory_per_block = 48L << 10, shared_memory_per_block_opt_in = 0;
  long l2_bytes = 0, memory_bytes = 0;
  int clock_khz = 0, memory_clock_khz = 0;
  int threads_per_multiprocessor = 2048, blocks_per_multiprocessor = 32;

  /// The form CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION reads. The limits not named above are the same on all GPUs
  /// since sm_70.
  std::string json() const {
    return text(R"({"deviceVer":)", capability, R"(,"cudaDeviceId":0,"driverVer":13000,"deviceName":")", name,
                R"(","maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536)",
                R"(,"multiProcessorCount":)", multiprocessors, R"(,"warpSize":32,"maxSharedMemoryPerBlock":)",
                shared_memory_per_block, R"(,"maxSharedMemoryPerBlockOptin":)", shared_memory_per_block_opt_in,
                R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":)",
                blocks_per_multiprocessor, R"(,"maxThreadsPerBlock":1024,"maxThreadsPerSM":)",
                threads_per_multiprocessor, R"(,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1)",
                R"(,"smClockRateKHz":)", clock_khz, R"(,"memClockRateKHz":)", memory_clock_khz, R"(,"l2CacheSize":)",
                l2_bytes, R"(,"totalGlobalMem":)", memory_bytes, "}");
  }
};

/// Two GPUs that clusters have, for planning without one.
inline DeviceProperties h100() {
  return {.name = "NVIDIA H100",
          .capability = 900,
          .multiprocessors = 132,
          .shared_memory_per_block_opt_in = 232448,
          .l2_bytes = 50L << 20,
          .memory_bytes = 80L << 30,
          .clock_khz = 1980000,
          .memory_clock_khz = 2619000};
}
inline DeviceProperties a100() {
  return {.name = "NVIDIA A100",
          .capability = 800,
          .multiprocessors = 108,
          .shared_memory_per_block_opt_in = 166912,
          .l2_bytes = 40L << 20,
          .memory_bytes = 80L << 30,
          .clock_khz = 1410000,
          .memory_clock_khz = 1593000};
}

/// The GPU that plans are for: one that is there, by a handle, or one that is only described.
class Target {
public:
  /// `key` names the kind of GPU in plan caches. The handle must outlive this object and its plans.
  Target(cudnnHandle_t handle, std::string key) : handle_(handle), key_(std::move(key)) {}
  explicit Target(const DeviceProperties& p) : key_(p.name) {
    const std::string json = p.json();
    properties_ = std::make_shared<Descriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties_->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, std::span<const char>(json.data(), json.size()))
        .finalize(text("properties of ", p.name));
  }
  const std::string& key() const { return key_; }
  bool present() const { return handle_ != nullptr; }

  /// Tells a descriptor about the GPU, in whichever of the two attributes applies.
  void tell(Descriptor& d, std::optional<cudnnBackendAttributeName_t> by_handle,
            std::optional<cudnnBackendAttributeName_t> by_properties) const {
    if (handle_ && by_handle) d.set(*by_handle, handle_);
    if (!handle_ && by_properties) d.set(*by_properties, *properties_);
  }

private:
  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<Descriptor> properties_;
  std::string key_;
};

/// The geometry of a convolution as cuDNN takes it.
struct ConvGeometry {
  std::array<std::int64_t, 3> stride{}, dilation{}, below{}, above{};
};

/// A tensor of a graph: five extents and strides in elements. A virtual one lives only inside the kernel.
struct TensorSpec {
  enum class Storage { memory, inside };
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 5> extents{}, strides{};
  std::int64_t alignment = 16; ///< bytes, of the address
  Storage storage = Storage::memory;
};

/// Tensors and operations, built in order, then finished for a target.
class Graph {
public:
  void tensor(const TensorSpec& t) {
    Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, t.id)
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, t.type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(t.extents))
        .set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(t.strides))
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, t.alignment)
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, t.storage == TensorSpec::Storage::inside)
        .finalize("tensor");
    tensors_.emplace_back(t.id, std::move(d));
    if (t.storage == TensorSpec::Storage::memory) ids_.push_back(t.id);
  }

  struct ConvTensors {
    std::int64_t x, w, y; ///< ids of the tensors, of their gradients where a pass makes or reads these
  };
  /// What the pass makes = its function of the other two + beta * what stands there.
  void convolution(Pass pass, const ConvGeometry& g, const ConvTensors& t, float beta = 0) {
    Descriptor c(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    using Span = std::span<const std::int64_t>;
    c.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{3})
        .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
        .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Span(g.stride))
        .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Span(g.dilation))
        .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Span(g.below))
        .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Span(g.above))
        .finalize("convolution");
    const Names n = names(pass);
    Descriptor op(n.operation);
    op.set(n.convolution, c)
        .set(n.x, find(t.x))
        .set(n.w, find(t.w))
        .set(n.y, find(t.y))
        .set(n.alpha, 1.0F)
        .set(n.beta, beta)
        .finalize("convolution");
    keep(std::move(c), std::move(op));
  }
  /// out = a + b, b broadcast along the dims where it has one cell.
  void add(std::int64_t a, std::int64_t b, std::int64_t out) {
    Descriptor p(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    p.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
        .finalize("addition");
    Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, find(a))
        .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, find(b))
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, find(out))
        .finalize("addition");
    keep(std::move(p), std::move(op));
  }
  /// out = in where positive, else slope * in.
  void leaky_relu(std::int64_t in, double slope, std::int64_t out) {
    Descriptor p(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    p.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_RELU_FWD).set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    if (slope != 0) p.set(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, slope);
    p.finalize("activation");
    Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, find(in))
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, find(out))
        .finalize("activation");
    keep(std::move(p), std::move(op));
  }
  /// out = the sum of in along the dims where out has one cell.
  void sum(std::int64_t in, std::int64_t out) {
    Descriptor r(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    r.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
        .finalize("sum");
    Descriptor op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, r)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, find(in))
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, find(out))
        .finalize("sum");
    keep(std::move(r), std::move(op));
  }

  /// No more operations; false if cuDNN knows no such graph at all.
  [[nodiscard]] bool finish(const Target& target) {
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const Descriptor& op : operations_) raw.push_back(op.raw());
    graph_.emplace(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph_->set_descriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, raw);
    target.tell(*graph_, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, std::nullopt);
    return graph_->try_finalize();
  }
  const Descriptor& descriptor() const { return *graph_; }
  /// Of the tensors in memory, in the order they were added.
  const std::vector<std::int64_t>& ids() const { return ids_; }

private:
  struct Names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
  };
  static Names names(Pass pass) {
    switch (pass) {
    case Pass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Pass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    }
  }
  const Descriptor& find(std::int64_t id) const {
    for (const auto& [known, d] : tensors_)
      if (known == id) return d;
    throw usage_error(text("cuDNN graph: there is no tensor ", id, "; add it before the operation that uses it"));
  }
  void keep(Descriptor settings, Descriptor operation) {
    settings_.push_back(std::move(settings));
    operations_.push_back(std::move(operation));
  }

  std::vector<std::pair<std::int64_t, Descriptor>> tensors_;
  std::vector<Descriptor> settings_, operations_;
  std::vector<std::int64_t> ids_;
  std::optional<Descriptor> graph_;
};

} // namespace tessera::kernel::cudnn
