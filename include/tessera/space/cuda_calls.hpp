// space/cuda_calls.hpp: the CUDA runtime's functions, and how their codes become errors.
//
// The one file that includes the CUDA runtime's header. Plain C++: no kernels, any compiler.
//
// May know: base.
// Example: check_cuda(cudaMalloc(&p, bytes), "cudaMalloc", "a buffer");
#pragma once

#include <cuda_runtime_api.h>
#include <memory>
#include <tessera/base/vendor.hpp>
#include <type_traits>

namespace tessera {

/// Throws backend_error with call, code and the caller's place unless the call succeeded.
inline void check_cuda(cudaError_t code, std::string_view call, std::string_view about = {},
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (code == cudaSuccess) return;
  fail_backend(call, cudaGetErrorName(code), code, text(cudaGetErrorString(code), about.empty() ? "" : "; ", about),
               file, line);
}

namespace cuda_detail {
struct DestroyStream {
  void operator()(cudaStream_t s) const noexcept { cudaStreamDestroy(s); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t e) const noexcept { cudaEventDestroy(e); }
};
struct FreeDevice {
  void operator()(void* p) const noexcept { cudaFree(p); }
};
struct FreePinned {
  void operator()(void* p) const noexcept { cudaFreeHost(p); }
};
} // namespace cuda_detail

/// Owners of what the runtime hands out.
using OwnedStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, cuda_detail::DestroyStream>;
using OwnedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, cuda_detail::DestroyEvent>;
using OwnedDeviceMemory = std::unique_ptr<void, cuda_detail::FreeDevice>;

/// A stream that does not wait for the default stream.
inline OwnedStream make_stream() {
  cudaStream_t s = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return OwnedStream(s);
}
/// An event for ordering, without a time.
inline OwnedEvent make_event() {
  cudaEvent_t e = nullptr;
  check_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return OwnedEvent(e);
}
/// `after` goes on only when `before` has done what it was given so far.
inline void order(cudaStream_t before, cudaStream_t after, cudaEvent_t event) {
  check_cuda(cudaEventRecord(event, before), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(after, event, 0), "cudaStreamWaitEvent");
}
inline OwnedDeviceMemory device_memory(std::size_t bytes, std::string_view what) {
  void* p = nullptr;
  check_cuda(cudaMalloc(&p, bytes), "cudaMalloc", text(bytes, " bytes: ", what));
  return OwnedDeviceMemory(p);
}

} // namespace tessera
