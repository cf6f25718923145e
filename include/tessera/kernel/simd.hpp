// kernel/simd.hpp: vectors of the width of the target, through the vector extensions of GCC and clang.
//
// 16 floats with AVX-512, 8 with AVX, 4 elsewhere. Arithmetic, comparison and ?: work on them as on numbers.
//
// May know: the standard library.
// Example: map_elements(y, count, [](const auto& v) { return v * 2.0F; }, x);
#pragma once

#include <cstring>

namespace tessera::kernel {

#if defined(__AVX512F__)
inline constexpr int simd_bytes = 64;
#elif defined(__AVX__)
inline constexpr int simd_bytes = 32;
#else
inline constexpr int simd_bytes = 16;
#endif

namespace detail {
template <class T> struct SimdType { using type [[gnu::vector_size(simd_bytes)]] = T; };
} // namespace detail

template <class T> using Simd = typename detail::SimdType<T>::type;
template <class T> inline constexpr int simd_lanes = simd_bytes / int(sizeof(T));

/// From any address; no alignment is needed.
template <class T> Simd<T> load(const T* p) {
  Simd<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T> void store(T* p, const Simd<T>& v) { std::memcpy(p, &v, sizeof v); }

/// Asks for `count` elements to be brought into the cache, to be read or to be written; any address is allowed.
enum class Use { read, write };
template <Use use, class T> void prefetch(const T* p, long count) {
  constexpr long line = 64 / long(sizeof(T));
  for (long i = 0; i < count; i += line) __builtin_prefetch(p + i, use == Use::write);
}

/// to[i] = f(from[i]...) for `count` elements; f is called with vectors, and with single elements for the rest.
template <class T, class F, class... From> void map_elements(T* to, long count, const F& f, const From*... from) {
  long i = 0;
  for (; i + simd_lanes<T> <= count; i += simd_lanes<T>) store(to + i, Simd<T>(f(load(from + i)...)));
  for (; i < count; ++i) to[i] = f(from[i]...);
}

} // namespace tessera::kernel
