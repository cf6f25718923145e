// io/element_type.hpp: the element types that files hold, as a run-time value.
//
// A file decides at run time what its elements are; memory then holds raw bytes plus an ElementType, and with_type()
// leads back to a C++ type.
//
// May know: base.
// Example: with_type(t, [&]<class T>(T) { const T* p = reinterpret_cast<const T*>(bytes); ... });
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <tessera/base/error.hpp>
#include <type_traits>

namespace tessera::io {

/// `other` is everything that is not a plain number (strings, compounds, ...).
enum class ElementType : unsigned char { i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, other };

template <class T> constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, float>)
    return ElementType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return ElementType::f64;
  else {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>,
                  "tessera: files hold float, double and integers of 1 to 8 bytes");
    if constexpr (sizeof(T) == 1)
      return std::is_signed_v<T> ? ElementType::i8 : ElementType::u8;
    else if constexpr (sizeof(T) == 2)
      return std::is_signed_v<T> ? ElementType::i16 : ElementType::u16;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ElementType::i32 : ElementType::u32;
    else
      return std::is_signed_v<T> ? ElementType::i64 : ElementType::u64;
  }
}

/// Calls `f(T{})` with the C++ type of `t`. `other` throws usage_error: callers refuse such data before they hold it.
template <class F> decltype(auto) with_type(ElementType t, F&& f) {
  switch (t) {
  case ElementType::i8: return f(std::int8_t{});
  case ElementType::u8: return f(std::uint8_t{});
  case ElementType::i16: return f(std::int16_t{});
  case ElementType::u16: return f(std::uint16_t{});
  case ElementType::i32: return f(std::int32_t{});
  case ElementType::u32: return f(std::uint32_t{});
  case ElementType::i64: return f(std::int64_t{});
  case ElementType::u64: return f(std::uint64_t{});
  case ElementType::f32: return f(float{});
  case ElementType::f64: return f(double{});
  case ElementType::other: break;
  }
  TESSERA_REQUIRE(false, "with_type: the elements are not numbers");
  std::abort(); // not reached: the line above throws
}

/// Bytes of one element in memory.
inline std::size_t size_of(ElementType t) {
  return with_type(t, [](auto v) { return sizeof(v); });
}

/// "int16", "float32", ...
constexpr std::string_view name_of(ElementType t) {
  constexpr std::string_view names[] = {"int8",  "uint8",  "int16",   "uint16",  "int32",       "uint32",
                                        "int64", "uint64", "float32", "float64", "not a number"};
  return names[static_cast<int>(t)];
}

} // namespace tessera::io
