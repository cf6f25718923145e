// kernel/workspace.hpp: scratch memory of the kernels, one block a thread that grows to the largest need and stays.
//
// A kernel takes it for the duration of one call. Kernels of one thread run one after another, so one block serves all.
//
// May know: base, space.
// Example: std::byte* scratch = workspace(bytes);
#pragma once

#include <tessera/space/memory.hpp>

namespace tessera::kernel {

/// At least `bytes` of scratch on a cache line, contents undefined, valid until this thread's next call.
inline std::byte* workspace(std::size_t bytes) {
  thread_local Buffer<std::byte> block;
  if (block.size() < bytes) {
    block = {}; // the old block goes before the new one comes
    block = Buffer<std::byte>(bytes);
  }
  return block.data();
}

/// Pieces of the workspace, each on its own cache line.
class Carver {
public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}
  /// Room for `count` elements of T behind what was taken before; a null base only adds up the bytes.
  template <class T> T* take(long count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (std::size_t(count) * sizeof(T) + host::alignment - 1) / host::alignment * host::alignment;
    return p;
  }
  std::size_t used() const { return used_; }

private:
  std::byte* base_;
  std::size_t used_ = 0;
};

} // namespace tessera::kernel
