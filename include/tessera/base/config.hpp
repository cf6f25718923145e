// base/config.hpp: version, and the one macro that marks functions which device code may call.
//
// May know: the standard library.
// Example: TESSERA_HD constexpr long twice(long x) { return 2 * x; }
#pragma once

#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION "0.1.0"

// Host code is compiled by a plain C++ compiler, where the macro is empty.
#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__
#else
#define TESSERA_HD
#endif
