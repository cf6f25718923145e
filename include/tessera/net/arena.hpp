// net/arena.hpp: places blocks of memory that live at different times into one arena.
//
// The steps of a network happen in a known order, so what each tensor's memory is needed for is known before anything
// runs. Blocks whose lives do not touch share addresses.
//
// May know: base.
// Example: Arena a({{1 << 20, {{0, 3}}}, {1 << 20, {{4, 9}}}});   // a.offset(1) == 0: the second takes the place of
// the first
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tessera {

/// The times, both included, at which a block holds something.
struct Life {
  long from = 0, to = 0;
  friend bool operator==(const Life&, const Life&) = default;
};

/// A block of an arena: its bytes, and when it is in use.
struct ArenaBlock {
  std::uint64_t bytes = 0;
  std::vector<Life> lives{};

  bool meets(const ArenaBlock& o) const {
    return std::ranges::any_of(lives, [&](const Life& a) {
      return std::ranges::any_of(o.lives, [&](const Life& b) { return a.from <= b.to && b.from <= a.to; });
    });
  }
};

class Arena {
public:
  static constexpr std::uint64_t alignment = 64; ///< of each block, in bytes

  Arena() = default;
  /// Places the largest blocks first, each at the lowest address that is free during all of its lives.
  explicit Arena(const std::vector<ArenaBlock>& blocks) : offsets_(blocks.size(), 0) {
    std::vector<std::size_t> order(blocks.size()), placed;
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });
    for (const std::size_t i : order) {
      if (blocks[i].bytes == 0) continue;
      std::vector<std::size_t> rivals;
      for (const std::size_t j : placed)
        if (blocks[i].meets(blocks[j])) rivals.push_back(j);
      std::ranges::sort(rivals, [&](std::size_t a, std::size_t b) { return offsets_[a] < offsets_[b]; });
      std::uint64_t at = 0;
      for (const std::size_t j : rivals) {
        if (at + blocks[i].bytes <= offsets_[j]) break;
        at = std::max(at, aligned(offsets_[j] + blocks[j].bytes));
      }
      offsets_[i] = at;
      bytes_ = std::max(bytes_, aligned(at + blocks[i].bytes));
      placed.push_back(i);
    }
  }

  std::uint64_t offset(std::size_t block) const { return offsets_[block]; }
  /// Of the whole arena.
  std::uint64_t bytes() const { return bytes_; }

private:
  static constexpr std::uint64_t aligned(std::uint64_t b) { return (b + alignment - 1) / alignment * alignment; }

  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0;
};

} // namespace tessera
