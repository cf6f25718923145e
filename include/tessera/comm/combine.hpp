// comm/combine.hpp: reductions of buffers in rank order, so that every rank obtains bitwise the same.
//
// May know: base.
// Example: comm::detail::reduce_in_order(buffers, result, Element::f32, Reduce::sum);
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <tessera/comm/communicator.hpp>
#include <type_traits>

namespace tessera::comm::detail {

/// Sums of integers wrap like those of unsigned numbers.
struct Add {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else
      return a + b;
  }
};
struct Smaller {
  template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Larger {
  template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};

/// to = the reduction over all of `from`, taken in their order. `to` may be one of them; all have its size. Bytes need
/// no alignment.
template <class T, class Op>
void reduce_in_order(std::span<const std::span<const std::byte>> from, std::span<std::byte> to, Op op) {
  constexpr std::size_t block = 1024;
  std::array<T, block> result, next;
  const std::size_t count = to.size() / sizeof(T);
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t n = std::min(block, count - first), offset = first * sizeof(T), bytes = n * sizeof(T);
    std::memcpy(result.data(), from[0].data() + offset, bytes);
    for (const auto& buffer : from.subspan(1)) {
      std::memcpy(next.data(), buffer.data() + offset, bytes);
      for (std::size_t i = 0; i < n; ++i) result[i] = op(result[i], next[i]);
    }
    std::memcpy(to.data() + offset, result.data(), bytes);
  }
}
template <class T>
void reduce_in_order(std::span<const std::span<const std::byte>> from, std::span<std::byte> to, Reduce how) {
  switch (how) {
  case Reduce::sum: return reduce_in_order<T>(from, to, Add{});
  case Reduce::min: return reduce_in_order<T>(from, to, Smaller{});
  case Reduce::max: return reduce_in_order<T>(from, to, Larger{});
  }
}
inline void reduce_in_order(std::span<const std::span<const std::byte>> from, std::span<std::byte> to, Element element,
                            Reduce how) {
  switch (element) {
  case Element::f32: return reduce_in_order<float>(from, to, how);
  case Element::f64: return reduce_in_order<double>(from, to, how);
  case Element::i32: return reduce_in_order<std::int32_t>(from, to, how);
  case Element::i64: return reduce_in_order<std::int64_t>(from, to, how);
  case Element::u8: return reduce_in_order<std::uint8_t>(from, to, how);
  }
}

} // namespace tessera::comm::detail
