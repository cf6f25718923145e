// layout/moves.hpp: the move planner: what an assignment between two layouts costs, known at compile time.
//
// The plan names one move per grid axis. It is what users assert on (`collectives(a, b) == 3`, `moves_nothing(a, b)`)
// and what decides legality; move/redistribute.hpp executes it.
//
// May know: base, layout/layout.hpp.
// Example: static_assert(collectives(place(n, d), place(n, n)) == 1);
#pragma once

#include <tessera/layout/layout.hpp>

namespace tessera {

enum class Move : int { keep, slice, all_gather, all_to_all, zero_pad, all_reduce, reduce_scatter, forbidden };

constexpr const char* move_name(Move m) {
  constexpr const char* names[] = {"keep",     "slice",      "all-gather",     "all-to-all",
                                   "zero-pad", "all-reduce", "reduce-scatter", "forbidden"};
  return names[static_cast<int>(m)];
}

/// The move of one axis between two placements. rep -> sum has no single meaning (which rank holds the value?) and is
/// forbidden; split -> sum pads with zeros and is what the adjoint of a slice does.
constexpr Move move_between(Placement from, Placement to) {
  using K = Placement::Kind;
  if (from == to) return Move::keep;
  switch (from.kind) {
  case K::rep: return to.kind == K::split ? Move::slice : Move::forbidden;
  case K::split: return to.kind == K::rep ? Move::all_gather : to.kind == K::split ? Move::all_to_all : Move::zero_pad;
  case K::sum: return to.kind == K::rep ? Move::all_reduce : Move::reduce_scatter;
  }
  return Move::forbidden;
}

/// One move per grid axis.
struct MovePlan {
  int axes = 0;
  Move a0{}, a1{}, a2{}, a3{}, a4{}, a5{};

  friend constexpr bool operator==(const MovePlan&, const MovePlan&) = default;
  constexpr Move operator[](int i) const {
    return i == 0 ? a0 : i == 1 ? a1 : i == 2 ? a2 : i == 3 ? a3 : i == 4 ? a4 : a5;
  }
  constexpr Move& operator[](int i) { return i == 0 ? a0 : i == 1 ? a1 : i == 2 ? a2 : i == 3 ? a3 : i == 4 ? a4 : a5; }
  constexpr bool legal() const {
    for (int i = 0; i < axes; ++i)
      if ((*this)[i] == Move::forbidden) return false;
    return true;
  }
  /// The number of axes along which data must travel.
  constexpr int collectives() const {
    int count = 0;
    for (int i = 0; i < axes; ++i)
      count += (*this)[i] == Move::all_gather || (*this)[i] == Move::all_to_all || (*this)[i] == Move::all_reduce ||
               (*this)[i] == Move::reduce_scatter;
    return count;
  }
};

/// The move of every axis. Where several axes split one dim, the coordinates of the earlier ones come first in the
/// number of a block. So an axis that keeps its dim moves data all the same if an earlier axis starts or ends to split
/// that dim.
constexpr MovePlan plan_moves(Layout from, Layout to) {
  MovePlan p;
  p.axes = from.axes;
  for (int i = 0; i < from.axes; ++i) {
    p[i] = from.axes == to.axes ? move_between(from[i], to[i]) : Move::forbidden;
    if (p[i] != Move::keep || !from[i].splits()) continue;
    for (int earlier = 0; earlier < i; ++earlier)
      if (from[earlier].splits(from[i].dim) != to[earlier].splits(from[i].dim)) p[i] = Move::all_to_all;
  }
  return p;
}

/// True if `to = from` has a meaning.
constexpr bool movable(Layout from, Layout to) { return from.axes == to.axes && plan_moves(from, to).legal(); }

/// The number of grid axes along which `to = from` communicates: a cost to assert on.
constexpr int collectives(Layout from, Layout to) { return plan_moves(from, to).collectives(); }

/// True if `to = from` is local on every rank, given equal block boundaries (where an axis starts or ends to split a
/// dim: boundaries of the coarser partition that are also boundaries of the finer one).
constexpr bool moves_nothing(Layout from, Layout to) { return movable(from, to) && collectives(from, to) == 0; }

/// The layouts between which the adjoint of the move from -> to runs: dual(to) -> dual(from).
struct AdjointMove {
  Layout from, to;
};
constexpr AdjointMove adjoint_of_move(Layout from, Layout to) { return {dual(to), dual(from)}; }

} // namespace tessera
