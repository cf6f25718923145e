// bench/peak.cpp: the measured FMA peak of one core, as a record.
#include "fma_peak.hpp"
#include "record.hpp"
#include <string>

int main() {
  bench::record("fma_peak", "1 core", bench::fma_peak(1.0), "gflops",
                "fused multiply-add, f32, vectors of " + std::to_string(bench::lanes) + ", best round of a second");
  if constexpr (bench::lanes > 8) // what compilers use by default where wider vectors may lower the clock
    bench::record("fma_peak", "1 core, vectors of 8", bench::fma_peak<8>(1.0), "gflops", "best round of a second");
}
