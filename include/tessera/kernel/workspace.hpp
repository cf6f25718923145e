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

} // namespace tessera::kernel
