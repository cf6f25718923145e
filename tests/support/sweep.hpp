// support/sweep.hpp: what random sweeps share: a generator that gives every rank the same numbers, factorisations of a
// number of ranks, block sizes, layouts, and loops over elements that know nothing of boxes.
#pragma once

#include <random>
#include <tessera/layout/map.hpp>
#include <vector>

namespace tessera::test {

/// The same sequence on every rank and machine (the distributions of the standard library are not).
class Random {
public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// lo <= result <= hi
  long in(long lo, long hi) { return lo + static_cast<long>(engine_() % static_cast<std::uint64_t>(hi - lo + 1)); }
  int pick(int lo, int hi) { return static_cast<int>(in(lo, hi)); }
  bool one_in(int n) { return in(1, n) == 1; }
  /// In [-1, 1).
  double real() { return static_cast<double>(engine_() >> 11) * 0x1p-52 - 1; }

private:
  std::mt19937_64 engine_;
};

/// Zeros half of the time, else any padding.
inline Padding random_padding(Random& random) {
  return random.one_in(2) ? Padding::zeros : static_cast<Padding>(random.pick(0, 3));
}
/// The cell that stands at `at`, counted out along the tensor step by step; -1 for a zero.
inline long cell_at(long at, long extent, const PaddingModes& modes) {
  long cell = 0, way = 1;
  if (at < 0) {
    switch (modes.below) {
    case Padding::zeros: return -1;
    case Padding::replicate: return 0;
    case Padding::periodic:
      for (; at < 0; ++at) cell = cell == 0 ? extent - 1 : cell - 1;
      return cell;
    case Padding::reflect:
      for (; at < 0; ++at) ++cell;
      return cell;
    }
  }
  for (; at > 0; --at) {
    if (cell + way == extent || (way < 0 && cell == 0)) switch (modes.above) {
      case Padding::zeros: return -1;
      case Padding::replicate: way = 0; break;
      case Padding::periodic: cell = -1; break;
      case Padding::reflect: way = -1; break;
      }
    cell += way;
  }
  return cell;
}

/// Every way to write `ranks` as a product of `axes` sizes, order counts.
inline std::vector<std::vector<int>> factorisations(int ranks, int axes) {
  if (axes == 1) return {{ranks}};
  std::vector<std::vector<int>> all;
  for (int first = 1; first <= ranks; ++first)
    if (ranks % first == 0)
      for (auto rest : factorisations(ranks / first, axes - 1)) {
        rest.insert(rest.begin(), first);
        all.push_back(std::move(rest));
      }
  return all;
}

inline GridShape shape_of(const std::vector<int>& sizes) {
  GridShape s;
  s.axes = static_cast<int>(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) s.size[i] = sizes[i];
  return s;
}

/// Balanced blocks, or blocks of any sizes with many empty ones.
inline Partition random_partition(Random& random, long extent, int parts) {
  if (random.one_in(3)) return Partition::balanced(extent, parts);
  std::vector<long> cuts{0, extent};
  for (int p = 1; p < parts; ++p) cuts.push_back(random.in(0, extent));
  std::sort(cuts.begin(), cuts.end());
  std::vector<long> sizes;
  for (std::size_t p = 1; p < cuts.size(); ++p) sizes.push_back(cuts[p] - cuts[p - 1]);
  return Partition::from_sizes(sizes);
}

template <int N> Map<N> random_map(Random& random, Layout layout, const GridShape& shape, const Extents<N>& extents) {
  std::array<Partition, N> parts;
  for (int k = 0; k < N; ++k)
    parts[static_cast<std::size_t>(k)] = random_partition(random, extents[k], Map<N>::parts_of(layout, shape, k));
  return Map<N>(layout, shape, extents, std::move(parts));
}

/// The `number`-th of the (N + 2)^axes layouts of a tensor of rank N: each axis splits one of its dims, is rep or sum.
template <int N> Layout layout_number(long number, int axes) {
  Layout l;
  l.axes = axes;
  for (int a = 0; a < axes; ++a, number /= N + 2) {
    const int choice = static_cast<int>(number % (N + 2));
    if (choice < N)
      l[a] = Placement(dim_at(choice, N));
    else
      l[a] = Placement(choice == N ? Placement::Kind::rep : Placement::Kind::sum);
  }
  return l;
}
inline long number_of_layouts(int rank, int axes) {
  long count = 1;
  for (int a = 0; a < axes; ++a) count *= rank + 2;
  return count;
}

/// The position of an element in logical row-major order, from 1.
template <int N> double linear(const Index<N>& i, const Extents<N>& e) {
  long o = 0;
  for (int k = 0; k < N; ++k) o = o * e[k] + i[k];
  return static_cast<double>(o + 1);
}

/// The grid coordinates of the holders of element i: along an axis that splits, the one coordinate; -1 along others.
/// Found by looking for the block of each dim and taking its number apart.
template <int N> std::array<int, Layout::max_axes> holders(const Map<N>& m, const Index<N>& i) {
  std::array<int, Layout::max_axes> c;
  c.fill(-1);
  for (int k = 0; k < N; ++k) {
    long end = 0;
    int block = 0;
    for (const long size : m.partition(k).sizes()) {
      end += size;
      if (i[k] < end) break;
      ++block;
    }
    for (int a = m.layout().axes - 1; a >= 0; --a)
      if (m.layout()[a].splits(dim_at(k, N))) {
        const int size = m.grid().size[static_cast<std::size_t>(a)];
        c[static_cast<std::size_t>(a)] = block % size;
        block /= size;
      }
  }
  return c;
}

} // namespace tessera::test
