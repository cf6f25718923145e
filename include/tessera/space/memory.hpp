// space/memory.hpp: memory spaces, and Buffer, a block of memory in one of them.
//
// A space is a type with static functions: allocate, deallocate, copy between itself and the host, fill with zeros, and
// a Stream on which such work is ordered. The host space runs everything at once, so its Stream and Event are empty.
// Algorithms name the space by a template parameter and never ask which it is; what the host must touch it asks for by
// name (space/host_access.hpp). Other spaces: emulated_device (space/emulated.hpp), cuda_device (space/cuda.hpp).
//
// May know: base.
// Example: Buffer<float, host> b(1024);  b.data()[0] = 1;
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif
#include <tessera/base/error.hpp>
#include <type_traits>
#include <utility>

namespace tessera {

/// Counts the buffers allocated in this process: a training loop asserts that it stands still.
struct AllocationCounter {
  std::atomic<std::uint64_t> allocations{0}, bytes_held{0}, bytes_peak{0};

  void took(std::size_t bytes) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    const auto now = bytes_held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    auto peak = bytes_peak.load(std::memory_order_relaxed);
    while (now > peak && !bytes_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {}
  }
  void gave(std::size_t bytes) { bytes_held.fetch_sub(bytes, std::memory_order_relaxed); }
};
inline AllocationCounter& allocation_counter() {
  static AllocationCounter counter;
  return counter;
}

/// Bytes of memory this machine can give without swapping; 0 if it does not say.
inline std::uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string key, rest; in >> key && std::getline(in, rest);)
    if (key == "MemAvailable:") return std::stoull(rest) * 1024;
  return 0;
}

/// Main memory.
struct host {
  static constexpr std::string_view name = "host";
  /// True if the CPU may read and write it.
  static constexpr bool host_accessible = true;
  /// Cache lines, and what vector units like.
  static constexpr std::size_t alignment = 64;
  /// Blocks from this size on begin on a huge page and ask for such pages: activations are walked in long strides, and
  /// with small pages a good part of that time goes into looking up addresses.
  static constexpr std::size_t huge_page = std::size_t{2} << 20;

  /// Host memory from which copies to and from this space run while the host goes on.
  using pinned = host;

  /// Work in order; on the host each call has finished when it returns.
  struct Stream {
    void synchronize() const {}
  };
  /// A point in a stream that another stream, or the host, can wait for.
  struct Event {
    void record(Stream) const {}
    void wait(Stream) const {}
    bool ready() const { return true; }
    void synchronize() const {}
  };
  /// The calling thread's own streams: where its kernels run, and where its copies for messages run beside them.
  static Stream stream() { return {}; }
  static Stream transfer_stream() { return {}; }
  /// While it lives, another stream is the calling thread's own.
  struct Current {
    explicit Current(Stream) {}
  };

  static void* allocate(std::size_t bytes) {
    try {
      void* p = ::operator new(bytes, alignment_of(bytes));
#ifdef MADV_HUGEPAGE // a hint: where it is refused, small pages serve
      if (bytes >= huge_page) ::madvise(p, bytes, MADV_HUGEPAGE);
#endif
      return p;
    } catch (const std::bad_alloc&) {
      throw usage_error(text("out of memory: ", bytes, " bytes of host memory are not to be had; ",
                             "use more ranks or a smaller sample or batch"));
    }
  }
  static void deallocate(void* p, std::size_t bytes) noexcept { ::operator delete(p, alignment_of(bytes)); }
  static constexpr std::align_val_t alignment_of(std::size_t bytes) {
    return std::align_val_t{bytes >= huge_page ? huge_page : alignment};
  }
  static void zero(void* p, std::size_t bytes, Stream = {}) {
    if (bytes) std::memset(p, 0, bytes);
  }
  static void copy(void* to, const void* from, std::size_t bytes, Stream = {}) {
    if (bytes) std::memcpy(to, from, bytes);
  }
  static void copy_from_host(void* to, const void* from, std::size_t bytes, Stream = {}) {
    if (bytes) std::memcpy(to, from, bytes);
  }
  static void copy_to_host(void* to, const void* from, std::size_t bytes, Stream = {}) {
    if (bytes) std::memcpy(to, from, bytes);
  }
};

/// `count` elements in `Space`, zero at first. Copying copies the elements.
template <class T, class Space = host> class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

public:
  Buffer() = default;
  explicit Buffer(std::size_t count) : count_(count) {
    if (count == 0) return;
    TESSERA_REQUIRE(count <= std::numeric_limits<std::size_t>::max() / sizeof(T), "out of memory: ", count,
                    " elements of ", sizeof(T), " bytes are more than any address space");
    p_.reset(static_cast<T*>(Space::allocate(count * sizeof(T))));
    p_.get_deleter().bytes = count * sizeof(T);
    allocation_counter().took(count * sizeof(T));
    Space::zero(p_.get(), count * sizeof(T));
  }
  Buffer(const Buffer& o) : Buffer(o.count_) { Space::copy(p_.get(), o.p_.get(), o.bytes()); }
  Buffer(Buffer&& o) noexcept : p_(std::move(o.p_)), count_(std::exchange(o.count_, 0)) {}
  Buffer& operator=(Buffer o) noexcept {
    std::swap(p_, o.p_);
    std::swap(count_, o.count_);
    return *this;
  }

  T* data() { return p_.get(); }
  const T* data() const { return p_.get(); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

private:
  struct Free {
    std::size_t bytes = 0;
    void operator()(T* p) const noexcept {
      allocation_counter().gave(bytes);
      Space::deallocate(p, bytes);
    }
  };
  std::unique_ptr<T, Free> p_;
  std::size_t count_ = 0;
};

} // namespace tessera
