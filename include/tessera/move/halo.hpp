// move/halo.hpp: Halo, the exchange that gives every rank the inputs its outputs need, and its adjoint.
//
// The halo follows from what a rank must produce, in global indices: any kernel, stride, dilation, padding per side,
// any boundaries. Corners come straight from their owners: one message per neighbour. The plan is made once and
// re-used.
//
// May know: base, layout, space, comm, tensor, move.
// Example: Halo<float, 5> halo(x, window(3).same());  halo.start(x);  interior();  halo.finish();
#pragma once

#include <tessera/move/exchange.hpp>

namespace tessera {

namespace detail {
inline constexpr int halo_tag = 101, redistribution_tag = 102;
}

template <class T, int N, class Space = host> class Halo {
public:
  Halo() = default;
  /// Every rank r gets the box need(r) around what it holds, in global indices; parts outside the tensor are filled as
  /// `borders` says, and where that is zeros left alone (zero after reserve). All ranks make it, with equal arguments;
  /// making it sends nothing.
  template <BoxOfRank<N> Need>
  Halo(const AnyGrid& grid, const Map<N>& map, Need&& need, const Borders<N>& borders = {}) : map_(map) {
    TESSERA_REQUIRE(!map.layout().has_sum(), "Halo: the tensor has layout ", map.layout().str(),
                    ", a pending sum; resolve it first by assigning it to a tensor with a `rep` or split layout");
    TESSERA_REQUIRE(map.grid() == grid.shape(), "Halo: the map was made for a grid ", map.grid().str(),
                    " but the grid is ", grid.shape().str(), "; make the map with grid.shape()");
    for (int r = 0; r < grid.ranks(); ++r) require_mirrored(need(r), borders);
    need_ = need(grid.rank());
    const unsigned replicas = map.layout().mask(Placement::Kind::rep);
    exchange_ = Exchange<T, N, Space>(grid.world(), plan_boxes(map, need, borders, grid.rank(), Own::stays, replicas),
                                      detail::halo_tag);
  }
  /// The halo of a stencil on a rank-5 tensor, for the outputs of `out`.
  Halo(const AnyGrid& grid, const Map<5>& in, const Stencil& s, const Map<5>& out) requires(N == 5)
      : Halo(
            grid, in, [&](int r) { return needed_input(out.box(r), s, in.extents()); }, s.borders<5>()) {}
  /// The same for the outputs that each rank inherits from what it holds of x.
  Halo(const Tensor<T, 5, Space>& x, const Stencil& s) requires(N == 5)
      : Halo(x.grid(), x.map(), s, output_map(x.map(), s, x.extents()[1])) {}

  /// The box this rank needs; reserve() makes room for it.
  const Box<N>& need() const { return need_; }
  void reserve(Tensor<T, N, Space>& x) const {
    if (!need_.empty()) x.reserve(need_);
  }

  /// Posts the exchange, after making room where there is none yet.
  void start(Tensor<T, N, Space>& x) {
    prepare(x);
    exchange_.start(x, x);
  }
  /// Adds the margins of a gradient into the ranks that own them.
  void start_adjoint(Tensor<T, N, Space>& dx) {
    prepare(dx);
    exchange_.start_adjoint(dx, dx);
  }
  void finish() { exchange_.finish(); }
  void poke() { exchange_.poke(); }
  void run(Tensor<T, N, Space>& x) { start(x), finish(); }
  void run_adjoint(Tensor<T, N, Space>& dx) { start_adjoint(dx), finish(); }

  bool empty() const { return exchange_.empty(); }
  const BoxPlan<N>& plan() const { return exchange_.plan(); }
  Traffic traffic() const { return exchange_.traffic(); }
  Traffic adjoint_traffic() const { return exchange_.adjoint_traffic(); }

private:
  void prepare(Tensor<T, N, Space>& x) const {
    TESSERA_REQUIRE(x.map() == map_, "Halo: planned for ", map_.layout().str(), " ", map_.extents(), " on a grid ",
                    map_.grid().str(), " but called with ", x.layout().str(), " ", x.extents(), " on a grid ",
                    x.map().grid().str(), ", or with other block boundaries; make one Halo per map");
    reserve(x);
  }
  void require_mirrored(const Box<N>& need, const Borders<N>& borders) const {
    if (need.empty()) return;
    for (int k = 0; k < N; ++k) {
      const long extent = map_.extents()[k];
      const bool below = borders[k].below != Padding::reflect || need.lo[k] > -extent;
      const bool above = borders[k].above != Padding::reflect || need.hi[k] < 2 * extent;
      TESSERA_REQUIRE(below && above, "Halo: a rank needs [", need.lo[k], ",", need.hi[k], ") of dim ",
                      dim_name(dim_at(k, N)), ", more than the mirror image of its ", extent,
                      " cells; reflect at most extent - 1 cells, or use Padding::replicate");
    }
  }

  Map<N> map_;
  Box<N> need_{};
  Exchange<T, N, Space> exchange_;
};

} // namespace tessera
