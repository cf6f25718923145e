// layout/partition.hpp: Partition: the block boundaries of one dim. A run-time value; blocks may be uneven or empty.
//
// May know: base, layout/stencil.hpp.
// Example: Partition::balanced(17, 3).sizes() is 6, 6, 5.
#pragma once

#include <algorithm>
#include <tessera/base/error.hpp>
#include <tessera/layout/stencil.hpp>
#include <vector>

namespace tessera {

class Partition {
public:
  /// One block that holds everything.
  explicit Partition(long extent) : offsets_{0, extent} {}
  Partition() : Partition(0) {}

  /// Blocks that differ by at most one quantum, the first ones larger; boundaries are multiples of `quantum`, except
  /// that the extent cuts the last block that holds something short.
  static Partition balanced(long extent, int parts, long quantum = 1) {
    TESSERA_REQUIRE(extent >= 0 && parts >= 1 && quantum >= 1, "Partition: extent ", extent, ", ", parts,
                    " parts, quantum ", quantum, "; parts and quantum must be at least 1");
    const long units = (extent + quantum - 1) / quantum;
    std::vector<long> offsets{0};
    for (long p = 0; p < parts; ++p) {
      const long mine = units / parts + (p < units % parts ? 1 : 0);
      offsets.push_back(std::min(extent, offsets.back() + mine * quantum));
    }
    return Partition(std::move(offsets));
  }
  /// Block boundaries given by the user: the size of each block, empty ones allowed.
  static Partition from_sizes(const std::vector<long>& sizes) {
    TESSERA_REQUIRE(!sizes.empty(), "Partition: no block sizes given; give one for each rank that splits the dim");
    std::vector<long> offsets{0};
    for (long s : sizes) {
      TESSERA_REQUIRE(s >= 0, "Partition: block size ", s, "; sizes must not be negative");
      offsets.push_back(offsets.back() + s);
    }
    return Partition(std::move(offsets));
  }

  int parts() const { return static_cast<int>(offsets_.size()) - 1; }
  long extent() const { return offsets_.back(); }
  Interval operator[](int part) const {
    return {offsets_[static_cast<std::size_t>(part)], offsets_[static_cast<std::size_t>(part) + 1]};
  }
  std::vector<long> sizes() const {
    std::vector<long> s;
    for (int p = 0; p < parts(); ++p) s.push_back((*this)[p].size());
    return s;
  }
  long largest() const {
    long most = 0;
    for (int p = 0; p < parts(); ++p) most = std::max(most, (*this)[p].size());
    return most;
  }
  bool any_empty() const {
    for (int p = 0; p < parts(); ++p)
      if ((*this)[p].empty()) return true;
    return false;
  }
  friend bool operator==(const Partition&, const Partition&) = default;

  /// The partition that a window's output inherits: output q belongs to whoever holds input q*stride. The last block
  /// takes what padding adds, even if it is empty itself. Boundaries that are multiples of the stride are divided by it
  /// exactly.
  Partition inherited(const Window& w) const {
    const long out = w.output(extent());
    std::vector<long> offsets{0};
    for (int p = 1; p < parts(); ++p) {
      const long at = (*this)[p].lo;
      offsets.push_back(std::min(out, (at + w.stride - 1) / w.stride));
    }
    offsets.push_back(out);
    return Partition(std::move(offsets));
  }

  /// The partition of something `factor` times as large, cut or extended to `extent` at its end: output q belongs to
  /// whoever holds input q / factor.
  Partition enlarged(long factor, long extent) const {
    std::vector<long> offsets{0};
    for (int p = 1; p < parts(); ++p) offsets.push_back(std::min(extent, (*this)[p].lo * factor));
    offsets.push_back(extent);
    return Partition(std::move(offsets));
  }

private:
  explicit Partition(std::vector<long> offsets) : offsets_(std::move(offsets)) {}
  std::vector<long> offsets_;
};

} // namespace tessera
