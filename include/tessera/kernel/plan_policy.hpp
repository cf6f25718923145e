// kernel/plan_policy.hpp: what the vendors' engines on a GPU may do: arithmetic, order of sums, workspace.
//
// May know: base.
// Example: PlanPolicy policy{.workspace = 256u << 20, .math = PlanPolicy::Math::tf32};
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <tessera/base/error.hpp>

namespace tessera::kernel {

/// The type of a kernel's operands in memory; sums are always kept in float.
enum class Number { f32, bf16, f16 };
constexpr long bytes_of(Number n) { return n == Number::f32 ? 4 : 2; }

/// What an engine may do.
struct PlanPolicy {
  enum class Math {
    full, ///< float operands are multiplied as floats
    tf32  ///< float operands may be cut to 10 bits of mantissa for the tensor cores
  };
  enum class Sums {
    any,         ///< atomics are allowed: two runs may differ in the last bits
    reproducible ///< two runs on the same GPU are bitwise equal
  };
  std::size_t workspace = std::size_t{1} << 30; ///< bytes, at most
  Math math = Math::full;                       ///< concerns operands of type float only
  Sums sums = Sums::any;
  friend bool operator==(const PlanPolicy&, const PlanPolicy&) = default;
};

/// The policy with `math` as the environment variable TESSERA_MATH says: "full" or "tf32". Throws usage_error on
/// anything else.
inline PlanPolicy policy_from_environment(PlanPolicy policy = {}, const char* math = std::getenv("TESSERA_MATH")) {
  if (!math || !*math) return policy;
  const std::string_view name(math);
  TESSERA_REQUIRE(name == "full" || name == "tf32", "TESSERA_MATH=", name, ": give full or tf32");
  policy.math = name == "full" ? PlanPolicy::Math::full : PlanPolicy::Math::tf32;
  return policy;
}

/// The largest power of two up to `most` that divides all addresses. Null divides by everything.
inline std::int64_t common_alignment(std::initializer_list<const void*> pointers, std::int64_t most = 16) {
  auto bits = static_cast<std::uintptr_t>(most);
  for (const void* p : pointers) bits |= reinterpret_cast<std::uintptr_t>(p);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

} // namespace tessera::kernel
