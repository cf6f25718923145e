// bench/peak.cpp: the measured FMA peak of one core, as a record.
#include "fma_peak.hpp"
#include "record.hpp"

int main() {
  bench::record("fma_peak", "1 core", bench::fma_peak(1.0), "gflops",
                "fused multiply-add, f32, best round of a second");
}
