// move/plan.hpp: which boxes travel between which ranks. One function plans halos and redistributions alike.
//
// A rank needs a box; the boxes of a map tile the tensor; the intersections are the messages. Both sides compute the
// same list in the same order, so nothing is negotiated. This holds for any boundaries: shards thinner than a halo
// (several hops), empty ranks, boxes that reach beyond the border into padding that repeats or mirrors the tensor.
//
// May know: base, layout.
// Example: auto plan = plan_boxes(map, [&](int r) { return need[r]; }, {}, rank, Own::stays, 0);
#pragma once

#include <array>
#include <concepts>
#include <tessera/layout/map.hpp>
#include <vector>

namespace tessera {

/// One box that travels: `from` in the global indices of its owner, `to` in those of the receiver's block. They differ
/// where `to` is padding.
template <int N> struct Transfer {
  int peer = 0;
  Box<N> from, to;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Everything one rank sends and receives, ordered by peer; `local` stays on the rank.
template <int N> struct BoxPlan {
  std::vector<Transfer<N>> sends, recvs, local;

  /// The number of elements this rank sends.
  long sent_elements() const {
    long n = 0;
    for (const auto& t : sends) n += t.from.volume();
    return n;
  }
};

/// Says which box each rank needs: box = need(rank).
template <class F, int N>
concept BoxOfRank = requires(const F& need, int rank) {
  { need(rank) } -> std::convertible_to<Box<N>>;
};

/// What happens to the part of the needed box that the rank owns itself.
enum class Own {
  stays, ///< it is in the block already (halo)
  copied ///< source and target are different blocks (redistribution)
};

namespace detail {
/// A stretch of one dim in the owner's indices, and the way from there to the receiver's.
struct Stretch {
  Interval from;
  long shift = 0;
};

/// The parts of `need` that `owned` provides, in the order of the receiver's indices. A mirrored or repeated cell is a
/// stretch of its own.
inline std::vector<Stretch> stretches(Interval need, Interval owned, long extent, const PaddingModes& modes) {
  std::vector<Stretch> all;
  const auto add = [&](long lo, long hi, long shift) { // in the receiver's indices
    const Interval from{std::max(lo - shift, owned.lo), std::min(hi - shift, owned.hi)};
    if (!from.empty()) all.push_back({from, shift});
  };
  const auto outside = [&](long lo, long hi, Padding mode) {
    if (mode == Padding::zeros || extent == 0) return;
    for (long at = lo; at < hi;) {
      const long source = padded_source(at, extent, modes);
      const long end = mode == Padding::periodic ? std::min(hi, at - source + extent) : at + 1;
      add(at, end, at - source);
      at = end;
    }
  };
  outside(need.lo, std::min(need.hi, 0L), modes.below);
  add(std::max(need.lo, 0L), std::min(need.hi, extent), 0);
  outside(std::max(need.lo, extent), need.hi, modes.above);
  return all;
}

/// Calls f(piece in the owner's indices, shift to the receiver's) for each part of `need` that `owned` provides.
template <int N, class F>
void for_each_piece(const Box<N>& need, const Box<N>& owned, const Extents<N>& extents, const Borders<N>& borders,
                    F&& f) {
  if (need.empty() || owned.empty()) return;
  std::array<std::vector<Stretch>, N> parts;
  Box<N> choices;
  for (int k = 0; k < N; ++k) {
    auto& p = parts[std::size_t(k)] =
        stretches({need.lo[k], need.hi[k]}, {owned.lo[k], owned.hi[k]}, extents[k], borders[k]);
    if (p.empty()) return;
    choices.hi[k] = long(p.size());
  }
  for_each_index(choices, [&](const Index<N>& choice) {
    Box<N> piece;
    Index<N> shift;
    for (int k = 0; k < N; ++k) {
      const Stretch& s = parts[std::size_t(k)][std::size_t(choice[k])];
      piece.lo[k] = s.from.lo, piece.hi[k] = s.from.hi, shift[k] = s.shift;
    }
    f(piece, shift);
  });
}
} // namespace detail

/// Plans that every rank r gets the box need(r) of a tensor that is laid out as `owner`. Along the axes in `paired`
/// (bit i for axis i) only ranks of equal coordinate exchange: replicas serve their own coordinates.
template <int N, BoxOfRank<N> Need>
BoxPlan<N> plan_boxes(const Map<N>& owner, Need&& need, const Borders<N>& borders, int me, Own own,
                      unsigned paired_axes) {
  const GridShape& grid = owner.grid();
  const auto mine = grid.coords(me);
  BoxPlan<N> plan;
  for (int r = 0; r < grid.ranks(); ++r) {
    const auto theirs = grid.coords(r);
    bool paired = true;
    for (int a = 0; a < grid.axes; ++a)
      if ((paired_axes >> a & 1u) && mine[std::size_t(a)] != theirs[std::size_t(a)]) paired = false;
    if (!paired) continue;
    detail::for_each_piece(need(me), owner.box(r), owner.extents(), borders,
                           [&](const Box<N>& piece, const Index<N>& shift) {
                             const Transfer<N> t{r, piece, shifted(piece, shift)};
                             if (r != me)
                               plan.recvs.push_back(t);
                             else if (own == Own::copied || shift != Index<N>{})
                               plan.local.push_back(t);
                           });
    if (r != me)
      detail::for_each_piece(need(r), owner.box(me), owner.extents(), borders,
                             [&](const Box<N>& piece, const Index<N>& shift) {
                               plan.sends.push_back({r, piece, shifted(piece, shift)});
                             });
  }
  return plan;
}

} // namespace tessera
