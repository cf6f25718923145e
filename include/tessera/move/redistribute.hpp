// move/redistribute.hpp: Redistribution, from any layout and boundaries to any other; assignment between DistTensors.
//
// Sums that become replicas are all-reduced along their axes; everything else is one round of boxes from owner to
// receiver, each byte travelling once, with addends summed on arrival. The adjoint is the transposed map.
//
// May know: base, layout, space, comm, tensor, move.
// Example: Redistribution<float, 5> r(grid, y.map(), z.map());  r.run(y, z);     or simply: z = y;
#pragma once

#include <tessera/comm/sum.hpp>
#include <tessera/layout/moves.hpp>
#include <tessera/move/halo.hpp>
#include <tessera/tensor/dist_tensor.hpp>

namespace tessera {

namespace detail {
/// True if communicators can add such elements.
template <class T>
inline constexpr bool reducible = std::is_floating_point_v<T> || (std::is_integral_v<T> && sizeof(T) >= 4);
} // namespace detail

template <class T, int N, class Space = host> class Redistribution {
public:
  Redistribution() = default;
  Redistribution(const AnyGrid& grid, const Map<N>& from, const Map<N>& to) : grid_(grid), from_(from), to_(to) {
    TESSERA_REQUIRE(from.extents() == to.extents(), "redistribution: from extents ", from.extents(), " to ",
                    to.extents(), "; the global extents must be equal");
    TESSERA_REQUIRE(from.layout().axes == to.layout().axes, "redistribution: from ", from.layout().str(), " to ",
                    to.layout().str(), ": they place ", from.layout().axes, " and ", to.layout().axes,
                    " grid axes; give both one placement per axis of one grid");
    TESSERA_REQUIRE(movable(from.layout(), to.layout()), "redistribution: from ", from.layout().str(), " to ",
                    to.layout().str(),
                    ": a replicated axis cannot become a pending sum (every rank would add the value); "
                    "split it or keep it replicated");
    TESSERA_REQUIRE(from.grid() == grid.shape() && to.grid() == grid.shape(),
                    "redistribution: from a tensor on a grid ", from.grid().str(), " to one on ", to.grid().str(),
                    " over the grid ", grid.shape().str(), "; both must be on that grid");
    unsigned paired = 0;
    for (int a = 0; a < from.layout().axes; ++a) {
      const Move m = move_between(from.layout()[a], to.layout()[a]);
      const bool both_sum = m == Move::keep && from.layout()[a].kind == Placement::Kind::sum;
      if (m == Move::all_reduce && grid.size(a) > 1) reduced_ |= 1u << a;
      if (m == Move::all_reduce || both_sum || m == Move::zero_pad || from.layout()[a].kind == Placement::Kind::rep)
        paired |= 1u << a;
      if (m == Move::reduce_scatter) adds_ = true;
      if (m == Move::zero_pad) clears_ = true;
    }
    exchange_ = Exchange<T, N, Space>(grid.world(),
                                      plan_boxes(
                                          from, [&](int r) { return to.box(r); }, {}, grid.rank(), Own::copied, paired),
                                      detail::redistribution_tag);
    TESSERA_REQUIRE(detail::reducible<T> || !(reduced_ || adds_), "redistribution: from ", from.layout().str(), " to ",
                    to.layout().str(), ": pending sums of small integers overflow; use elements of 4 or 8 bytes");
    if (reduced_) grid.over(reduced_); // made now: later calls need not be collective
  }

  /// target = source. The tensors have the maps given to the constructor.
  void run(const Tensor<T, N, Space>& source, Tensor<T, N, Space>& target) {
    require_maps(source, target);
    const Tensor<T, N, Space>* from = &source;
    if (reduced_) {
      if (!reduced_source_.data()) reduced_source_ = Tensor<T, N, Space>(grid_, from_);
      Blocks<Space>::copy(source.view(), reduced_source_.view());
      all_reduce(reduced_source_);
      from = &reduced_source_;
    }
    if (adds_ || clears_) Blocks<Space>::fill(target.view(), T{});
    exchange_.run(*from, target, adds_ ? Exchange<T, N, Space>::Arrive::add : Exchange<T, N, Space>::Arrive::copy);
  }
  /// source = transpose(target), the transposed map: what a redistribution from dual(to) to dual(from) does.
  void run_adjoint(const Tensor<T, N, Space>& target, Tensor<T, N, Space>& source) {
    require_maps(source, target);
    Blocks<Space>::fill(source.view(), T{});
    exchange_.run_adjoint(target, source);
    if (reduced_) all_reduce(source);
  }

  /// What this rank sends point to point each time it runs; all-reduces come on top (all_reduced_bytes).
  Traffic traffic() const { return exchange_.traffic(); }
  std::uint64_t all_reduced_bytes() const {
    return reduced_ ? std::uint64_t(from_.box(grid_.rank()).volume()) * sizeof(T) : 0;
  }

private:
  void require_maps(const Tensor<T, N, Space>& source, const Tensor<T, N, Space>& target) const {
    TESSERA_REQUIRE(source.map() == from_ && target.map() == to_, "redistribution: planned for ", from_.layout().str(),
                    " ", from_.extents(), " -> ", to_.layout().str(), " but called with ", source.layout().str(), " ",
                    source.extents(), " -> ", target.layout().str(), " ", target.extents(),
                    ", or with other block boundaries; make one Redistribution per pair of maps");
    TESSERA_REQUIRE(&source != &target, "redistribution: the source is the target; give two tensors");
  }
  void all_reduce(Tensor<T, N, Space>& x) {
    if constexpr (detail::reducible<T>) { // the constructor refuses others
      const View<T, N> v = x.view();
      if (v.dense()) return sum_over_ranks(v);
      if (packed_.size() == 0) packed_ = Buffer<T, Space>(std::size_t(v.size()));
      const View<T, N> p(packed_.data(), v.extents);
      Blocks<Space>::copy(v, p);
      sum_over_ranks(p);
      Blocks<Space>::copy(p, v);
    }
  }

  void sum_over_ranks(const View<T, N>& dense) {
    if (!Space::host_accessible && on_host_.size() < std::size_t(dense.size()))
      on_host_ = Buffer<T, typename Space::pinned>(std::size_t(dense.size()));
    sum_.begin(grid_.over(reduced_), {dense.data, std::size_t(dense.size())}, on_host_.data());
    sum_.wait();
  }

  AnyGrid grid_;
  Map<N> from_, to_;
  unsigned reduced_ = 0;
  bool adds_ = false, clears_ = false;
  Exchange<T, N, Space> exchange_;
  Tensor<T, N, Space> reduced_source_;
  Buffer<T, Space> packed_;
  Buffer<T, typename Space::pinned> on_host_; ///< where the host cannot touch the tensors
  Sum<T, Space> sum_;
};

/// target = source across layouts; plans, runs, forgets. Hold a Redistribution where it is repeated.
template <class T, int N, class Space>
void redistribute(const Tensor<T, N, Space>& source, Tensor<T, N, Space>& target) {
  Redistribution<T, N, Space>(source.grid(), source.map(), target.map()).run(source, target);
}

namespace detail {
template <class T, int N, Layout To, Layout From, class Space>
struct Assign<DistTensor<T, N, To, Space>, DistTensor<T, N, From, Space>> {
  static_assert(movable(From, To),
                "tessera: no move from this layout to that one: they must place the same number of "
                "grid axes, and a `rep` axis cannot become a pending `sum`; split it or keep it rep");
  static void run(DistTensor<T, N, To, Space>& target, const DistTensor<T, N, From, Space>& source) {
    if (target.map().grid().axes == 0)
      target = DistTensor<T, N, To, Space>(
          Tensor<T, N, Space>(source.grid(), Map<N>(To, source.grid().shape(), source.extents())));
    redistribute<T, N, Space>(source, target);
  }
};
} // namespace detail

} // namespace tessera
