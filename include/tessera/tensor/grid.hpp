// tensor/grid.hpp: Grid, the ranks of a communicator laid out as a box with a communicator for any set of its axes.
//
// The rank of a grid is compile time, its sizes are run time. Ranks are numbered with the last axis fastest.
// A Grid is a cheap value: copies share the communicators. Making one is collective.
//
// May know: base, layout, comm.
// Example: Grid<4> grid(env.world(), {2, 2, 2, fit});
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <tessera/comm/communicator.hpp>
#include <tessera/layout/map.hpp>

namespace tessera {

/// In a grid's sizes: as many as the number of ranks leaves over. At most one axis may ask for it.
inline constexpr int fit = -1;

/// A grid of any rank: what everything below the typed surface works with.
class AnyGrid {
public:
  AnyGrid() : AnyGrid(Communicator(), {}) {}
  /// Throws usage_error on every rank if the sizes do not multiply to the number of ranks.
  AnyGrid(Communicator world, const std::vector<int>& sizes) : s_(std::make_shared<State>()) {
    TESSERA_REQUIRE(sizes.size() <= Layout::max_axes, "Grid: ", sizes.size(), " axes; at most ", Layout::max_axes);
    s_->world = std::move(world);
    const int ranks = s_->world.size();
    s_->shape.axes = static_cast<int>(sizes.size());
    std::string asked;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i) asked += 'x';
      asked += sizes[i] == fit ? std::string("fit") : std::to_string(sizes[i]);
    }
    long needed = 1;
    int open = -1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      TESSERA_REQUIRE(sizes[i] >= 1 || (sizes[i] == fit && open < 0), "Grid ", asked,
                      ": sizes must be at least 1, and at most one axis may be `fit`");
      s_->shape.size[i] = sizes[i];
      if (sizes[i] == fit)
        open = static_cast<int>(i);
      else if (needed <= std::numeric_limits<int>::max())
        needed *= sizes[i]; // stops before it overflows
    }
    if (open >= 0) {
      TESSERA_REQUIRE(ranks % needed == 0, "Grid ", asked, ": ", ranks, ranks == 1 ? " rank is" : " ranks are",
                      " not a multiple of ", needed, "; start a multiple of ", needed, " ranks or change the sizes");
      s_->shape.size[std::size_t(open)] = static_cast<int>(ranks / needed);
      needed = ranks;
    }
    TESSERA_REQUIRE(needed == ranks, "Grid ", asked, " needs ", needed, needed == 1 ? " rank but " : " ranks but ",
                    ranks, ranks == 1 ? " runs" : " run", "; start ", needed, " (mpirun -n ", needed,
                    ") or change the sizes");
  }

  const GridShape& shape() const { return s_->shape; }
  const Communicator& world() const { return s_->world; }
  int axes() const { return s_->shape.axes; }
  int size(int axis) const { return s_->shape.size[std::size_t(axis)]; }
  int rank() const { return s_->world.rank(); }
  int ranks() const { return s_->world.size(); }
  int coord(int axis) const { return s_->shape.coords(rank())[std::size_t(axis)]; }

  /// The ranks that differ from this one only along the axes in `mask` (bit i for axis i), in grid order.
  /// Collective the first time a mask is asked for.
  const Communicator& over(unsigned mask) const {
    // Axes of size 1 add nobody: asking with or without them is the same group.
    unsigned full = 0;
    for (int a = 0; a < axes(); ++a)
      if (size(a) > 1) full |= 1u << a;
    mask &= full;
    if (auto it = s_->groups.find(mask); it != s_->groups.end()) return it->second;
    if (mask == full) return s_->groups.emplace(mask, s_->world).first->second;
    int color = 0;
    for (int a = 0; a < axes(); ++a)
      if (!(mask & (1u << a))) color = color * size(a) + coord(a);
    return s_->groups.emplace(mask, s_->world.split(color)).first->second;
  }
  /// The ranks along one axis through this one.
  const Communicator& along(int axis) const { return over(1u << axis); }

  friend bool operator==(const AnyGrid& a, const AnyGrid& b) { return a.s_ == b.s_; }

private:
  struct State {
    Communicator world;
    GridShape shape;
    std::map<unsigned, Communicator> groups;
  };
  std::shared_ptr<State> s_;
};

/// A grid whose number of axes is known when compiling.
template <int R> class Grid : public AnyGrid {
public:
  static constexpr int rank_of_grid = R;
  Grid(Communicator world, const std::array<int, R>& sizes)
      : AnyGrid(std::move(world), std::vector<int>(sizes.begin(), sizes.end())) {}
};

} // namespace tessera
