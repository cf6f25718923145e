// space/cuda.hpp: cuda_device, the memory of a GPU, through the CUDA runtime. Plain C++: kernels are launched from
// space/cuda_launch.cuh, which nvcc compiles.
//
// Who owns what:
//  * A block belongs to whoever allocated it (Buffer). Blocks come from the device's pool in stream order: allocation
//  on
//    the calling thread's stream, freeing behind all work that the freeing thread has given to its streams; work on
//    other streams must have ended. The pool keeps what is freed.
//  * Each thread has two streams of its own, made when first asked for, which are destroyed with it. They do not wait
//    for the default stream. Handles are values and keep a stream alive.
//  * Host memory given to a copy stays as it is until the stream has run the copy (pinned memory sees to that when it
//  is
//    freed), and is pinned where the copy shall run beside the host. An error in a kernel is thrown by a later call.
//  * A thread works on one device: select() before it asks for streams or memory.
//
// May know: base, space.
// Example: Buffer<float, cuda_device> b(64);  Blocks<cuda_device>::fill(View<float, 1>(b.data(), {{64}}), 1.F);
#pragma once

#include <tessera/space/cuda_calls.hpp>
#include <tessera/space/device_blocks.hpp>

namespace tessera {

struct cuda_device {
  static constexpr std::string_view name = "CUDA device";
  static constexpr bool host_accessible = false;
  static constexpr std::size_t alignment = 256;

  /// The number of GPUs; 0 where there is none, or no driver.
  static int devices() {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  /// Makes a GPU the calling thread's, before it uses any other call.
  static void select(int device) {
    const int n = devices();
    TESSERA_REQUIRE(device >= 0 && device < n, "CUDA: device ", device, " is asked for, ", n, " are there");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  /// The calling thread's GPU among those of its machine.
  static std::string device_name() {
    int device = 0;
    char id[32] = "";
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetPCIBusId(id, sizeof id, device), "cudaDeviceGetPCIBusId");
    return text("GPU ", static_cast<const char*>(id));
  }
  /// Bytes that can be had on it: what is free, and what its pool keeps without using it.
  static std::uint64_t available_memory() {
    std::size_t free = 0, total = 0;
    std::uint64_t reserved = 0, used = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    check_cuda(cudaMemPoolGetAttribute(pool(), cudaMemPoolAttrReservedMemCurrent, &reserved),
               "cudaMemPoolGetAttribute");
    check_cuda(cudaMemPoolGetAttribute(pool(), cudaMemPoolAttrUsedMemCurrent, &used), "cudaMemPoolGetAttribute");
    return free + (reserved - used);
  }

  /// Host memory that the GPU copies from and to by itself. Freeing it waits for the thread's streams.
  struct pinned : host {
    static constexpr std::string_view name = "pinned host memory";
    static void* allocate(std::size_t bytes) {
      void* p = nullptr;
      const cudaError_t e = cudaMallocHost(&p, bytes);
      if (e == cudaErrorMemoryAllocation) fail_memory(bytes, "pinned host memory");
      check_cuda(e, "cudaMallocHost");
      return p;
    }
    static void deallocate(void* p, std::size_t) noexcept {
      drain();
      static_cast<void>(cudaFreeHost(p));
    }
  };

  class Stream {
  public:
    /// A new stream.
    Stream() {
      cudaStream_t s = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      stream_ = std::shared_ptr<CUstream_st>(s, [](cudaStream_t old) { static_cast<void>(cudaStreamDestroy(old)); });
    }
    /// Waits for all work it was given.
    void synchronize() const { check_cuda(cudaStreamSynchronize(handle()), "cudaStreamSynchronize"); }
    cudaStream_t handle() const { return stream_.get(); }
    friend bool operator==(const Stream&, const Stream&) = default;

  private:
    std::shared_ptr<CUstream_st> stream_;
  };

  /// Waiting for an event that was never recorded is no wait.
  class Event {
  public:
    void record(const Stream& s) {
      if (!event_) {
        cudaEvent_t e = nullptr;
        check_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
        event_ = std::shared_ptr<CUevent_st>(e, [](cudaEvent_t old) { static_cast<void>(cudaEventDestroy(old)); });
      }
      check_cuda(cudaEventRecord(event_.get(), s.handle()), "cudaEventRecord");
    }
    /// What the stream is given from now on runs after the event as it was last recorded.
    void wait(const Stream& s) const {
      if (event_) check_cuda(cudaStreamWaitEvent(s.handle(), event_.get(), 0), "cudaStreamWaitEvent");
    }
    bool ready() const {
      if (!event_) return true;
      const cudaError_t e = cudaEventQuery(event_.get());
      if (e != cudaErrorNotReady) check_cuda(e, "cudaEventQuery");
      return e == cudaSuccess;
    }
    void synchronize() const {
      if (event_) check_cuda(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
    }

  private:
    std::shared_ptr<CUevent_st> event_; ///< copies of an Event are one event, each recording seen by all
  };

  static Stream stream() { return own().current; }
  static Stream transfer_stream() { return own().transfer; }
  /// While it lives, the calling thread's kernels and copies go to another stream.
  class Current {
  public:
    explicit Current(const Stream& s) : before_(std::exchange(own().current, s)) {}
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() { own().current = before_; }

  private:
    Stream before_;
  };

  static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    const cudaError_t e = cudaMallocAsync(&p, bytes, stream().handle());
    if (e == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      fail_memory(bytes, "the memory of the GPU");
    }
    check_cuda(e, "cudaMallocAsync");
    return p;
  }
  static void deallocate(void* p, std::size_t) noexcept {
    if (!p) return;
    if (ended()) {
      static_cast<void>(cudaFree(p)); // waits for everything
      return;
    }
    Own& mine = own();
    for (const Stream* s : {&mine.transfer, &mine.current})
      if (!(*s == mine.compute)) {
        static_cast<void>(cudaEventRecord(mine.freeing, s->handle()));
        static_cast<void>(cudaStreamWaitEvent(mine.compute.handle(), mine.freeing, 0));
      }
    static_cast<void>(cudaFreeAsync(p, mine.compute.handle()));
  }
  static void zero(void* p, std::size_t bytes, const Stream& s) {
    if (bytes) check_cuda(cudaMemsetAsync(p, 0, bytes, s.handle()), "cudaMemsetAsync");
  }
  static void copy(void* to, const void* from, std::size_t bytes, const Stream& s) {
    move(to, from, bytes, cudaMemcpyDeviceToDevice, s);
  }
  static void copy_from_host(void* to, const void* from, std::size_t bytes, const Stream& s) {
    move(to, from, bytes, cudaMemcpyHostToDevice, s);
  }
  static void copy_to_host(void* to, const void* from, std::size_t bytes, const Stream& s) {
    move(to, from, bytes, cudaMemcpyDeviceToHost, s);
  }
  static void zero(void* p, std::size_t bytes) { zero(p, bytes, stream()); }
  static void copy(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes, stream()); }

  /// Runs f(0), ..., f(count - 1) in the stream, all at the same time. Defined in space/cuda_launch.cuh: a program
  /// links one file compiled by nvcc that makes it for the functors it uses (kernel/device/instances.cuh has the
  /// library's).
  template <class F> static void launch(const Stream& s, long count, F f);

private:
  struct Own {
    Stream compute, transfer, current = compute;
    cudaEvent_t freeing = nullptr;
    Own() {
      check_cuda(cudaEventCreateWithFlags(&freeing, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
      check_cuda(cudaMemPoolSetAttribute(pool(), cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
    }
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    ~Own() {
      for (const Stream* s : {&compute, &transfer}) static_cast<void>(cudaStreamSynchronize(s->handle()));
      static_cast<void>(cudaEventDestroy(freeing));
      ended() = true;
    }
  };
  static cudaMemPool_t pool() {
    int device = 0;
    cudaMemPool_t p = nullptr;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetDefaultMemPool(&p, device), "cudaDeviceGetDefaultMemPool");
    return p;
  }
  static Own& own() {
    thread_local Own streams;
    return streams;
  }
  static bool& ended() {
    thread_local bool over = false;
    return over;
  }
  static void drain() noexcept {
    if (ended()) return;
    for (const Stream* s : {&own().compute, &own().transfer, &own().current})
      static_cast<void>(cudaStreamSynchronize(s->handle()));
  }
  static void move(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, const Stream& s) {
    if (bytes) check_cuda(cudaMemcpyAsync(to, from, bytes, kind, s.handle()), "cudaMemcpyAsync");
  }
  [[noreturn]] static void fail_memory(std::size_t bytes, const char* where) {
    throw usage_error(text("out of memory: ", bytes, " bytes of ", where, " are not to be had; ",
                           "use more ranks or a smaller sample or batch"));
  }
};

} // namespace tessera
