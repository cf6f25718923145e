// move/halo.hpp: Halo, the exchange that gives every rank the inputs its outputs need, and its adjoint.
//
// The halo follows from what a rank must produce, in global indices: any kernel, stride, dilation, padding per side,
// any boundaries. Corners come straight from their owners: one message per neighbour. The plan is made once and
// re-used.
//
// May know: base, layout, space, comm, tensor, move.
// Example: Halo<float, 5> halo(x, window(3).same());  halo.reserve(x);  halo.start(x);  interior();  halo.finish();
#pragma once

#include <tessera/move/exchange.hpp>

namespace tessera {

namespace detail {
inline constexpr int halo_tag = 101, redistribution_tag = 102;
}

template <class T, int N, class Space = host> class Halo {
public:
  Halo() = default;
  /// Every rank r gets the box need(r) around what it holds, in global indices; parts outside the tensor are wrapped in
  /// `periodic` dims and left alone (zero after reserve) in others. Collective only in that all ranks make it.
  template <class Need>
  requires std::is_invocable_r_v < Box<N>, Need,
  int > Halo(const AnyGrid& grid, const Map<N>& map, Need&& need, const Flags<N>& periodic = {})
      : need_(need(grid.rank())),
  exchange_(grid.world(),
            plan_boxes(map, need, periodic, grid.rank(), Own::stays, map.layout().mask(Placement::Kind::rep)),
            detail::halo_tag) {
    TESSERA_REQUIRE(!map.layout().has_sum(), "Halo: the tensor has layout ", map.layout().str(),
                    ", a pending sum; resolve it first by assigning it to a tensor with a `rep` or split layout");
  }
  /// The halo of a stencil on a rank-5 tensor, for the outputs of `out` (default: the map that the output inherits).
  Halo(const AnyGrid& grid, const Map<5>& in, const Stencil& s, const Map<5>& out) requires(N == 5)
      : Halo(
            grid, in, [&](int r) { return needed_input(channels_of(out.box(r), in), s, in.extents()); },
            periodic_dims(s)) {}

  /// The box this rank needs; reserve() makes room for it.
  const Box<N>& need() const { return need_; }
  void reserve(Tensor<T, N, Space>& x) const {
    if (!need_.empty()) x.reserve(need_);
  }

  void start(Tensor<T, N, Space>& x) { exchange_.start(x, x); }
  /// Adds the margins of a gradient into the ranks that own them.
  void start_adjoint(Tensor<T, N, Space>& dx) { exchange_.start_adjoint(dx, dx); }
  void finish() { exchange_.finish(); }
  void poke() { exchange_.poke(); }
  void run(Tensor<T, N, Space>& x) { start(x), finish(); }
  void run_adjoint(Tensor<T, N, Space>& dx) { start_adjoint(dx), finish(); }

  bool empty() const { return exchange_.empty(); }
  const BoxPlan<N>& plan() const { return exchange_.plan(); }
  Traffic traffic() const { return exchange_.traffic(); }
  Traffic adjoint_traffic() const { return exchange_.adjoint_traffic(); }

private:
  static Box<5> channels_of(Box<5> out, const Map<5>& in) {
    out.lo[1] = 0, out.hi[1] = in.extents()[1];
    return out;
  }
  static Flags<N> periodic_dims(const Stencil& s) {
    Flags<N> p{};
    for (int i = 0; i < 3; ++i) p[N - 3 + i] = s[i].mode == Padding::periodic;
    return p;
  }

  Box<N> need_{};
  Exchange<T, N, Space> exchange_;
};

} // namespace tessera
