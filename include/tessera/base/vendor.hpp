// base/vendor.hpp: how an error code of a vendor's library becomes a backend_error with call, code and location.
//
// May know: the standard library, base/error.hpp.
// Example: if (code != 0) fail_backend("cudaMalloc", "cudaErrorMemoryAllocation", 2, "4096 bytes");
#pragma once

#include <tessera/base/error.hpp>

namespace tessera {

/// Throws backend_error: "cudaMalloc: cudaErrorMemoryAllocation (code 2): 4096 bytes [tessera/space/cuda.hpp:71]".
/// File and line are those of the caller.
[[noreturn, gnu::noinline, gnu::cold]] inline void fail_backend(std::string_view call, std::string_view name, long code,
                                                                std::string_view about,
                                                                const char* file = __builtin_FILE(),
                                                                int line = __builtin_LINE()) {
  std::string_view where(file);
  if (const auto cut = where.rfind("tessera/"); cut != where.npos) where.remove_prefix(cut);
  throw backend_error(
      text(call, ": ", name, " (code ", code, ")", about.empty() ? "" : ": ", about, " [", where, ":", line, "]"));
}

} // namespace tessera
