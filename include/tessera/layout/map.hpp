// layout/map.hpp: GridShape and Map: which box of a global tensor each rank of a grid holds. Pure arithmetic.
//
// The run-time counterpart of Layout: every rank can compute the box of every other rank, so exchange plans need no
// negotiation.
//
// May know: base, layout.
// Example: Map<5> m(place(n, d), shape, {8, 4, 64, 64, 64});  m.box(rank) is what `rank` holds.
#pragma once

#include <array>
#include <tessera/layout/layout.hpp>
#include <tessera/layout/partition.hpp>

namespace tessera {

/// The sizes of a process grid; ranks are numbered with the last axis fastest.
struct GridShape {
  int axes = 0;
  std::array<int, Layout::max_axes> size{};
  friend bool operator==(const GridShape&, const GridShape&) = default;

  int ranks() const {
    int p = 1;
    for (int i = 0; i < axes; ++i) p *= size[std::size_t(i)];
    return p;
  }
  std::array<int, Layout::max_axes> coords(int rank) const {
    std::array<int, Layout::max_axes> c{};
    for (int i = axes - 1; i >= 0; --i) {
      c[std::size_t(i)] = rank % size[std::size_t(i)];
      rank /= size[std::size_t(i)];
    }
    return c;
  }
  /// "2x1x4"
  std::string str() const {
    std::string s;
    for (int i = 0; i < axes; ++i) {
      if (i) s += 'x';
      s += std::to_string(size[std::size_t(i)]);
    }
    return s;
  }
};

template <int N> class Map {
public:
  Map() = default;
  /// Balanced blocks whose boundaries are multiples of `quantum` in each dim.
  Map(Layout layout, const GridShape& grid, const Extents<N>& extents, const Extents<N>& quantum = ones())
      : Map(layout, grid, extents, split(layout, grid, extents, quantum)) {}
  /// Boundaries given: one Partition per dim, each with as many blocks as the axes that split it have coordinates.
  Map(Layout layout, const GridShape& grid, const Extents<N>& extents, std::array<Partition, N> parts)
      : layout_(layout), grid_(grid), extents_(extents), parts_(std::move(parts)) {
    require_fits(layout, grid);
    for (int k = 0; k < N; ++k) {
      const Partition& p = parts_[std::size_t(k)];
      TESSERA_REQUIRE(extents[k] >= 0 && p.extent() == extents[k] && p.parts() == parts_of(layout, grid, k), "dim ",
                      dim_name(dim_at(k, N)), " has extent ", extents[k], " over ", parts_of(layout, grid, k),
                      " blocks but its partition has extent ", p.extent(), " in ", p.parts(),
                      " blocks; give block sizes that add up to the extent, one for each");
    }
  }

  const Layout& layout() const { return layout_; }
  const GridShape& grid() const { return grid_; }
  const Extents<N>& extents() const { return extents_; }
  const Partition& partition(int dim) const { return parts_[std::size_t(dim)]; }
  const std::array<Partition, N>& partitions() const { return parts_; }
  friend bool operator==(const Map&, const Map&) = default;

  /// Which block of dim `k` the rank holds: the coordinates of the axes that split k, last axis fastest.
  int part(int rank, int k) const {
    const auto c = grid_.coords(rank);
    int index = 0;
    for (int a = 0; a < layout_.axes; ++a)
      if (layout_[a].splits(dim_at(k, N))) index = index * grid_.size[std::size_t(a)] + c[std::size_t(a)];
    return index;
  }
  /// The global box that the rank holds; may be empty.
  Box<N> box(int rank) const {
    Box<N> b;
    for (int k = 0; k < N; ++k) {
      const Interval i = parts_[std::size_t(k)][part(rank, k)];
      b.lo[k] = i.lo, b.hi[k] = i.hi;
    }
    return b;
  }
  /// True if `dim` is cut into more than one block.
  bool is_split(int k) const { return parts_[std::size_t(k)].parts() > 1; }

  static int parts_of(const Layout& layout, const GridShape& grid, int k) {
    int p = 1;
    for (int a = 0; a < layout.axes; ++a)
      if (layout[a].splits(dim_at(k, N))) p *= grid.size[std::size_t(a)];
    return p;
  }
  static constexpr Extents<N> ones() {
    Extents<N> e;
    for (int k = 0; k < N; ++k) e[k] = 1;
    return e;
  }

private:
  static void require_fits(const Layout& layout, const GridShape& grid) {
    TESSERA_REQUIRE(layout.axes == grid.axes, layout.str(), " places ", layout.axes, " grid axes but the grid ",
                    grid.str(), " has ", grid.axes, "; give one placement per axis");
    TESSERA_REQUIRE(layout.fits_rank(N), layout.str(), " splits a dim that a tensor of rank ", N,
                    " does not have; rank 5 is n,c,d,h,w, rank 4 c,d,h,w, rank 3 d,h,w, rank 2 n,c, rank 1 c");
  }
  static std::array<Partition, N> split(const Layout& layout, const GridShape& grid, const Extents<N>& extents,
                                        const Extents<N>& quantum) {
    require_fits(layout, grid);
    std::array<Partition, N> parts;
    for (int k = 0; k < N; ++k)
      parts[std::size_t(k)] = Partition::balanced(extents[k], parts_of(layout, grid, k), quantum[k]);
    return parts;
  }

  Layout layout_{};
  GridShape grid_{};
  Extents<N> extents_{};
  std::array<Partition, N> parts_;
};

/// The map of a window's output: the same layout, each spatial partition inherited, `channels` channels. Throws
/// usage_error if a window does not fit.
inline Map<5> output_map(const Map<5>& in, const Stencil& s, long channels) {
  require_fits(s, {{in.extents()[2], in.extents()[3], in.extents()[4]}}, "output_map");
  std::array<Partition, 5> parts = in.partitions();
  Extents<5> e = in.extents();
  if (channels != e[1]) parts[1] = Partition::balanced(channels, in.partition(1).parts());
  e[1] = channels;
  for (int i = 0; i < 3; ++i) {
    parts[std::size_t(2 + i)] = in.partition(2 + i).inherited(s[i]);
    e[2 + i] = s[i].output(in.extents()[2 + i]);
  }
  return Map<5>(in.layout(), in.grid(), e, std::move(parts));
}

/// The map of one label for each voxel of `m`: the same boundaries, one channel.
inline Map<5> label_map(const Map<5>& m) {
  std::array<Partition, 5> parts = m.partitions();
  Extents<5> e = m.extents();
  if (e[1] != 1) parts[1] = Partition::balanced(1, m.partition(1).parts());
  e[1] = 1;
  return Map<5>(m.layout(), m.grid(), e, std::move(parts));
}

/// The input box that a rank needs to produce the output box, in global indices; clipped to the tensor on sides whose
/// padding is zeros (the kernel pads there), unclipped on others. Empty if the output is empty.
inline Box<5> needed_input(const Box<5>& out, const Stencil& s, const Extents<5>& in) {
  Box<5> b = out;
  b.lo[1] = 0, b.hi[1] = in[1];
  for (int i = 0; i < 3; ++i) {
    Interval r = s[i].reads({out.lo[2 + i], out.hi[2 + i]});
    if (s[i].mode.below == Padding::zeros) r.lo = std::max(0L, r.lo);
    if (s[i].mode.above == Padding::zeros) r.hi = std::min(in[2 + i], r.hi);
    b.lo[2 + i] = r.lo, b.hi[2 + i] = std::max(r.lo, r.hi);
  }
  if (out.empty()) b.hi = b.lo = out.lo;
  return b;
}

/// The map of a transposed window's output (Window::transposed_output), each spatial partition enlarged by the stride.
inline Map<5> transposed_output_map(const Map<5>& in, const Stencil& s, const Index<3>& more, long channels) {
  std::array<Partition, 5> parts = in.partitions();
  Extents<5> e = in.extents();
  if (channels != e[1]) parts[1] = Partition::balanced(channels, in.partition(1).parts());
  e[1] = channels;
  for (int i = 0; i < 3; ++i) {
    e[2 + i] = s[i].transposed_output(in.extents()[2 + i], more[i]);
    parts[std::size_t(2 + i)] = in.partition(2 + i).enlarged(s[i].stride, e[2 + i]);
  }
  return Map<5>(in.layout(), in.grid(), e, std::move(parts));
}

/// The inputs of a transposed window that touch the outputs `out`, all channels; empty if none do.
inline Box<5> touching_input(const Box<5>& out, const Stencil& s, const Extents<5>& in) {
  Box<5> b = out;
  b.lo[1] = 0, b.hi[1] = in[1];
  for (int i = 0; i < 3; ++i) {
    const Interval r = s[i].readers({out.lo[2 + i], out.hi[2 + i]});
    b.lo[2 + i] = std::min(std::max(0L, r.lo), in[2 + i]);
    b.hi[2 + i] = std::max(b.lo[2 + i], std::min(in[2 + i], r.hi));
  }
  if (out.empty()) b.hi = b.lo = out.lo;
  return b;
}

} // namespace tessera
