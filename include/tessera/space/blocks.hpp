// space/blocks.hpp: Blocks<Space>: copying, adding and clearing strided blocks in a memory space.
//
// The host does it at once; a device space specialises it with kernels on a stream. Algorithms name only Blocks<Space>.
//
// May know: base, space/memory.hpp.
// Example: Blocks<host>::copy(x.box(interior), dense);
#pragma once

#include <tessera/base/copy.hpp>
#include <tessera/space/memory.hpp>

namespace tessera {

template <class Space> struct Blocks;

template <> struct Blocks<host> {
  template <class T, int N> static void copy(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
    copy_block(from, to);
  }
  template <class T, int N> static void add(const std::type_identity_t<View<const T, N>>& from, const View<T, N>& to) {
    add_block(from, to);
  }
  template <class T, int N> static void fill(const View<T, N>& to, T value) { fill_block(to, value); }
};

} // namespace tessera
