// expr/reach.hpp: how far an expression reaches into the neighbours of each tensor, and the halo that follows.
//
// May know: base, layout, space, comm, tensor, move, expr/node.hpp.
// Example: visit(node, Path<3>{}, [](const auto& tensor, const Path<3>& path) { ... });
#pragma once

#include <algorithm>
#include <tessera/expr/node.hpp>
#include <tessera/move/halo.hpp>

namespace tessera::detail {

/// The shifts between an element of the result and the element of a leaf that it reads.
template <int N> struct Path {
  Index<N> offset{};
  Flags<N> shifted{};   ///< dims along which something shifts, with `borders`
  Borders<N> borders{}; ///< of those dims
  Flags<N> mixed{};     ///< dims with shifts of several paddings
  Flags<N> again{}; ///< dims with a shift inside another and padding that does not add up: neither zeros nor periodic
  void add(int dim, long by, Padding mode) {
    if (by == 0) return;
    mixed[dim] |= shifted[dim] && borders[dim] != mode;
    again[dim] |= shifted[dim] && (mode == Padding::reflect || mode == Padding::replicate);
    offset[dim] += by;
    shifted[dim] = true;
    borders[dim] = mode;
  }
};

/// Calls f(tensor, path) for every leaf, in the order of the text.
template <int N, class T, int M, Layout L, class S, class F>
void visit(const Ref<T, M, L, S>& e, const Path<N>& path, F&& f) {
  f(e.tensor(), path);
}
template <int N, class T, int M, Layout L, class S, class F>
void visit(const Owned<T, M, L, S>& e, const Path<N>& path, F&& f) {
  f(e.tensor(), path);
}
template <int N, class T, class F> void visit(const Scalar<T>&, const Path<N>&, F&&) {}
template <int N, Block B, class F> void visit(const B& e, const Path<N>&, F&& f) {
  // What a block reads has its own geometry and is no business of the expression around it.
  std::apply([&](const auto&... a) { (f(a.tensor(), Path<N>{}), ...); }, e.leaves());
}
template <int N, class G, class... A, class F> void visit(const Apply<G, A...>& e, const Path<N>& path, F&& f);
template <int N, Dim D, class A, class F> void visit(const Shift<D, A>& e, Path<N> path, F&& f) {
  path.add(dim_index(D, N), e.by, e.mode);
  visit(e.operand, path, f);
}
template <int N, class G, class... A, class F> void visit(const Apply<G, A...>& e, const Path<N>& path, F&& f) {
  std::apply([&](const auto&... a) { (visit(a, path, f), ...); }, e.operands);
}

/// All paths to one tensor together.
template <int N> struct Reach {
  Index<N> lo{}, hi{};                  ///< lo <= 0 <= hi
  Flags<N> shifted{}, mixed{}, again{}; ///< see Path
  Borders<N> borders{};
  bool corners = false; ///< some path leaves its cell along two dims
  friend bool operator==(const Reach&, const Reach&) = default;

  void add(const Path<N>& p) {
    int dims = 0;
    for (int k = 0; k < N; ++k) {
      lo[k] = std::min(lo[k], p.offset[k]);
      hi[k] = std::max(hi[k], p.offset[k]);
      mixed[k] |= p.mixed[k] || (shifted[k] && p.shifted[k] && borders[k] != p.borders[k]);
      again[k] |= p.again[k];
      if (p.shifted[k]) shifted[k] = true, borders[k] = p.borders[k];
      dims += p.offset[k] != 0;
    }
    corners |= dims > 1;
  }
  bool nowhere() const { return lo == Index<N>{} && hi == Index<N>{}; }

  /// The box that the elements of `own` read along dim k alone, or along all dims.
  Box<N> along(const Box<N>& own, int k) const {
    Box<N> b = own;
    if (!own.empty()) b.lo[k] += lo[k], b.hi[k] += hi[k];
    return b;
  }
  Box<N> everywhere(Box<N> own) const {
    if (!own.empty()) own.lo = own.lo + lo, own.hi = own.hi + hi;
    return own;
  }
  /// The boxes that together hold all that is read; they overlap in `own` only.
  std::vector<Box<N>> boxes(const Box<N>& own) const {
    if (corners) return {everywhere(own)};
    std::vector<Box<N>> all;
    for (int k = 0; k < N; ++k)
      if (lo[k] != 0 || hi[k] != 0) all.push_back(along(own, k));
    return all;
  }
};

/// A halo on its way, whatever its element type.
struct Travelling {
  virtual ~Travelling() = default;
  virtual void finish() = 0;
  virtual void poke() = 0;
};

/// The exchange for one tensor and one reach; made once. Without corners the boxes along each dim travel alone, so that
/// a star stencil talks to the neighbours across faces only. One message per neighbour.
template <class T, int N, class Space> class ShiftHalo final : public Travelling {
public:
  ShiftHalo(const Tensor<T, N, Space>& x, const Reach<N>& reach) : reach_(reach) {
    const Map<N>& map = x.map();
    const int me = x.grid().rank();
    BoxPlan<N> all;
    for (std::size_t i = 0; i < reach.boxes(whole(map.extents())).size(); ++i) {
      const auto need = [&](int r) {
        const Box<N> own = map.box(r);
        return own.empty() ? own : reach_.boxes(own)[i];
      };
      const BoxPlan<N> one =
          plan_boxes(map, need, reach.borders, me, Own::stays, map.layout().mask(Placement::Kind::rep));
      all.sends.insert(all.sends.end(), one.sends.begin(), one.sends.end());
      all.recvs.insert(all.recvs.end(), one.recvs.begin(), one.recvs.end());
      all.local.insert(all.local.end(), one.local.begin(), one.local.end());
    }
    const auto by_peer = [](const Transfer<N>& a, const Transfer<N>& b) { return a.peer < b.peer; };
    std::ranges::stable_sort(all.sends, by_peer);
    std::ranges::stable_sort(all.recvs, by_peer);
    for (const Transfer<N>& t : all.recvs)
      for (int k = 0; k < N; ++k) {
        if (t.to.hi[k] <= x.box().lo[k]) waits_.lo[k] = reach.lo[k];
        if (t.to.lo[k] >= x.box().hi[k]) waits_.hi[k] = reach.hi[k];
      }
    exchange_ = Exchange<T, N, Space>(x.grid().world(), std::move(all), halo_tag);
  }
  const Reach<N>& reach() const { return reach_; }
  /// How far from the border of its box a rank finds values that are still on their way.
  const Box<N>& waits() const { return waits_; }
  Traffic traffic() const { return exchange_.traffic(); }

  void start(Tensor<T, N, Space>& x) {
    x.reserve(reach_.everywhere(x.box()));
    for (const Box<N>& b : reach_.boxes(x.box())) clear_outside(x, b);
    exchange_.start(x, x);
  }
  void finish() override { exchange_.finish(); }
  void poke() override { exchange_.poke(); }

private:
  /// Zeros outside the global tensor. Each time, because whatever used the block before may have left others there.
  void clear_outside(Tensor<T, N, Space>& x, const Box<N>& need) const {
    if (need.empty()) return;
    for (int k = 0; k < N; ++k) {
      if (!reach_.shifted[k] || reach_.borders[k] != Padding::zeros) continue;
      Box<N> below = need, above = need;
      below.hi[k] = std::min(need.hi[k], 0L);
      above.lo[k] = std::max(need.lo[k], x.extents()[k]);
      if (!below.empty()) Blocks<Space>::fill(x.view(below), T{});
      if (!above.empty()) Blocks<Space>::fill(x.view(above), T{});
    }
  }

  Reach<N> reach_;
  Box<N> waits_{};
  Exchange<T, N, Space> exchange_;
};

/// What expressions keep with a tensor: the plans of its halos, and what assignments to it need again.
template <class T, int N, class Space> struct Keep final : Kept {
  static constexpr std::size_t most = 8; ///< plans of each kind; the oldest goes first

  Map<N> map;
  std::vector<std::unique_ptr<ShiftHalo<T, N, Space>>> halos;
  Tensor<T, N, Space> spare;                  ///< the second buffer
  std::vector<Buffer<std::byte>> rows;        ///< vectors, repeated along a row
  std::vector<std::unique_ptr<Kept>> plans;   ///< of blocks
  std::vector<std::unique_ptr<Kept>> results; ///< of blocks, in the order of the text

  ShiftHalo<T, N, Space>& halo(const Tensor<T, N, Space>& x, const Reach<N>& reach) {
    for (auto& h : halos)
      if (h->reach() == reach) return *h;
    if (halos.size() == most) halos.erase(halos.begin());
    halos.push_back(std::make_unique<ShiftHalo<T, N, Space>>(x, reach));
    return *halos.back();
  }
  /// The plan for which `serves(plan)` holds, or a new one, `make()`.
  template <class Plan, class Serves, class Make> Plan& plan(const Serves& serves, const Make& make) {
    for (auto& p : plans)
      if (auto* mine = dynamic_cast<Plan*>(p.get()); mine && serves(*mine)) return *mine;
    if (plans.size() == most) plans.erase(plans.begin());
    auto made = std::make_unique<Plan>(make());
    Plan& plan = *made;
    plans.push_back(std::move(made));
    return plan;
  }
};

/// Forgotten when the tensor gets another map.
template <class T, int N, class Space> Keep<T, N, Space>& keep_of(const Tensor<T, N, Space>& x) {
  auto* keep = dynamic_cast<Keep<T, N, Space>*>(x.kept().get());
  if (!keep || keep->map != x.map()) {
    auto made = std::make_unique<Keep<T, N, Space>>();
    made->map = x.map();
    keep = made.get();
    x.kept() = std::move(made);
  }
  return *keep;
}

/// The block of a tensor whose value stays as it is while its halo is exchanged.
template <class T, int N, class Space> Tensor<T, N, Space>& block_of(const Tensor<T, N, Space>& x) {
  return const_cast<Tensor<T, N, Space>&>(x); // the block is a mutable member: the halo is no part of the value
}

} // namespace tessera::detail
