// expr/evaluate.hpp: what the assignment of an expression does.
//
// Plan: which boxes of which tensors are read; everything is checked from facts that all ranks know. Run: post the
// halos of all tensors, evaluate the elements that need none, wait, evaluate the rims. Plans stay with the tensors.
// A target that is read at other places than it is written goes to a second buffer, and the two change places.
//
// May know: base, layout, space, comm, tensor, move, expr.
// Example: u = u + dt * (shift<d>(u, +1) + shift<d>(u, -1) - 2 * u);
#pragma once

#include <tessera/expr/function.hpp>
#include <tessera/expr/rows.hpp>
#include <tessera/move/redistribute.hpp>

namespace tessera::detail {

template <class E> inline constexpr int blocks_in = Block<E> ? 1 : 0;
template <class F, class... A> inline constexpr int blocks_in<Apply<F, A...>> = (0 + ... + blocks_in<A>);
template <Dim D, class A> inline constexpr int blocks_in<Shift<D, A>> = blocks_in<A>;

template <class E> inline constexpr bool shifts = false;
template <class F, class... A> inline constexpr bool shifts<Apply<F, A...>> = (false || ... || shifts<A>);
template <Dim D, class A> inline constexpr bool shifts<Shift<D, A>> = true;

/// How two maps differ: the extents, or the blocks of the first dim that is cut differently.
template <int N> std::string difference(const Map<N>& a, const Map<N>& b) {
  if (a.grid() != b.grid()) return text("grids ", a.grid().str(), " and ", b.grid().str());
  if (a.extents() != b.extents()) return text("extents ", a.extents(), " and ", b.extents());
  if (a.layout() != b.layout()) return text("layouts ", a.layout().str(), " and ", b.layout().str());
  const auto blocks = [](const Partition& p) {
    std::string s;
    for (const long size : p.sizes()) {
      if (!s.empty()) s += ',';
      s += std::to_string(size);
    }
    return s;
  };
  for (int k = 0; k < N; ++k)
    if (a.partition(k) != b.partition(k))
      return text("blocks of dim ", dim_name(dim_at(k, N)), ": ", blocks(a.partition(k)), " and ",
                  blocks(b.partition(k)));
  return "nothing";
}

/// Throws usage_error, on all ranks alike, unless the maps are equal.
template <int N> void require_equal_maps(const std::string& what, const Map<N>& target, const Map<N>& operand) {
  if (target == operand) return;
  const bool blocks = target.extents() == operand.extents() && target.grid() == operand.grid();
  TESSERA_REQUIRE(false, what, ": the tensors differ: ", difference(target, operand),
                  blocks ? "; assign one to a tensor with the other's blocks first: z = y redistributes"
                         : "; they must be equal");
}

/// The grid and the map of a result: those of the first operand of full rank.
template <int N> struct Home {
  const AnyGrid* grid = nullptr;
  Map<N> map;
};
template <int N, class E> void find_home(const E& e, Home<N>& home) {
  if (home.grid) return;
  if constexpr (Block<E>) {
    if constexpr (E::shape.rank == N) home = {&e.grid(), e.map()};
  } else if constexpr (is_leaf<E>) {
    if constexpr (E::shape.rank == N) home = {&e.tensor().grid(), e.tensor().map()};
  } else if constexpr (requires { e.operands; }) {
    std::apply([&](const auto&... a) { (find_home(a, home), ...); }, e.operands);
  } else if constexpr (requires { e.operand; }) {
    find_home(e.operand, home);
  }
}

/// One evaluation of an expression without blocks over the boxes of a map.
template <int N, class E> class Evaluation {
public:
  /// Checks everything; sends nothing. `what` begins the messages.
  Evaluation(const char* what, const E& e, const Map<N>& map, std::vector<Buffer<std::byte>>& vectors)
      : e_(e), extents_(map.extents()), vectors_(vectors) {
    visit(e_, Path<N>{}, [&]<class T, int M, class S>(const Tensor<T, M, S>& t, const Path<N>& p) {
      flat_ = flat_ && !p.shifted[fastest_dim<N>];
      if constexpr (M == N) {
        require_equal_maps(what, map, t.map());
        reach_of(&t).add(p);
      } else {
        TESSERA_REQUIRE(t.extents()[0] == extents_[fastest_dim<N>], what, ": a vector of ", t.extents()[0],
                        " elements meets a tensor of ", extents_[fastest_dim<N>],
                        " channels; give one for each channel");
        TESSERA_REQUIRE(t.map().grid() == map.grid(), what, ": a vector on a grid ", t.map().grid().str(),
                        " meets a tensor on a grid ", map.grid().str(), "; both must be on one grid");
        Reach<N> of_vector;
        of_vector.add(p);
        require_one_padding(what, of_vector);
      }
    });
    for (const auto& r : reaches_) require_one_padding(what, r.reach);
  }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;
  ~Evaluation() {
    try {
      finish();
    } catch (...) { // a destructor must not throw; what led here is on its way already
    }
  }

  /// True if elements of `t` are read at other places than they are written.
  bool moves(const void* t) const {
    for (const auto& r : reaches_)
      if (r.tensor == t && !r.reach.nowhere()) return true;
    return false;
  }
  /// True if elements of `t` are read at all.
  bool reads(const void* t) const {
    return std::ranges::any_of(reaches_, [t](const Entry& r) { return r.tensor == t; });
  }
  /// Posts the halos.
  void start() {
    visit(e_, Path<N>{}, [&]<class T, int M, class S>(const Tensor<T, M, S>& t, const Path<N>&) {
      if constexpr (M == N) {
        Entry& entry = entry_of(&t);
        if (entry.halo || entry.reach.nowhere()) return;
        ShiftHalo<T, N, S>& halo = keep_of(t).halo(t, entry.reach);
        entry.halo = &halo;
        halo.start(block_of(t));
        for (int k = 0; k < N; ++k) {
          waits_.lo[k] = std::min(waits_.lo[k], halo.waits().lo[k]);
          waits_.hi[k] = std::max(waits_.hi[k], halo.waits().hi[k]);
        }
      }
    });
  }
  void poke() {
    for (Entry& r : reaches_)
      if (r.halo) r.halo->poke();
  }
  void finish() {
    for (Entry& r : reaches_)
      if (r.halo) std::exchange(r.halo, nullptr)->finish();
  }
  /// The elements of `own` that need nothing that is still on its way.
  Box<N> interior(Box<N> own) const {
    for (int k = 0; k < N; ++k) own.lo[k] -= waits_.lo[k], own.hi[k] -= waits_.hi[k];
    return own;
  }

  /// Calls row(index of its first element, length, reader) for every row of the box. `channels_follow`: the rows may go
  /// on along w in whatever takes the values.
  template <class F> void rows(const Box<N>& box, bool channels_follow, const F& row) {
    if (box.empty()) return;
    bool flat = flat_ && channels_follow && N >= 4;
    const long channels = box.extent(fastest_dim<N>);
    visit(e_, Path<N>{}, [&]<class T, int M, class S>(const Tensor<T, M, S>& t, const Path<N>&) {
      if constexpr (M == N) flat = flat && continues(t.store().extents(), channels);
    });
    Binder<N> binder{{box, flat}, extents_, vectors_};
    auto reader = binder.bind(e_, Path<N>{});
    binder.rows.for_each([&](const Index<N>& at) {
      reader.seek(at);
      row(at, binder.rows.length(), reader);
    });
  }

private:
  void require_one_padding(const char* what, const Reach<N>& r) const {
    for (int k = 0; k < N; ++k) {
      const char dim = dim_name(dim_at(k, N));
      TESSERA_REQUIRE(!r.mixed[k], what, ": dim ", dim,
                      " of one tensor is shifted with several kinds of padding; assign one of the shifts to a tensor "
                      "first");
      TESSERA_REQUIRE(!r.again[k], what, ": a shift along dim ", dim,
                      " inside another with Padding::reflect or Padding::replicate; assign the inner one to a tensor "
                      "first");
      const bool reflects = r.shifted[k] && r.borders[k] == Padding::reflect && extents_[k] > 0;
      TESSERA_REQUIRE(!reflects || (-r.lo[k] < extents_[k] && r.hi[k] < extents_[k]), what, ": dim ", dim,
                      " of extent ", extents_[k], " is shifted by ", std::max(-r.lo[k], r.hi[k]),
                      " with Padding::reflect; shift by at most extent - 1, or use Padding::replicate");
    }
  }
  struct Entry {
    const void* tensor;
    Reach<N> reach;
    Travelling* halo = nullptr;
  };
  Entry& entry_of(const void* tensor) {
    for (Entry& r : reaches_)
      if (r.tensor == tensor) return r;
    return reaches_.emplace_back(Entry{tensor, {}, nullptr});
  }
  Reach<N>& reach_of(const void* tensor) { return entry_of(tensor).reach; }

  const E& e_;
  Extents<N> extents_;
  std::vector<Buffer<std::byte>>& vectors_;
  std::vector<Entry> reaches_;
  Box<N> waits_{};
  bool flat_ = true;
};

/// Calls f for the boxes around `inner` that together with it make up `whole`.
template <int N, class F> void for_each_rim(Box<N> whole, const Box<N>& inner, const F& f) {
  for (const int k : memory_order<N>()) {
    Box<N> low = whole, high = whole;
    low.hi[k] = inner.lo[k];
    high.lo[k] = inner.hi[k];
    if (!low.empty()) f(low);
    if (!high.empty()) f(high);
    whole.lo[k] = inner.lo[k], whole.hi[k] = inner.hi[k];
  }
}

/// A second block for y, at least as large.
template <class T, int N, class S> Tensor<T, N, S>& second_buffer(const Tensor<T, N, S>& y, Keep<T, N, S>& keep) {
  if (!keep.spare.store().contains(y.store())) {
    keep.spare = Tensor<T, N, S>(y.grid(), y.map());
    keep.spare.reserve(y.store());
  }
  return keep.spare;
}
/// y = what the second buffer holds.
template <class T, int N, class S> void take_second_buffer(Tensor<T, N, S>& y, Keep<T, N, S>& keep) {
  if (y.owns_block())
    y.swap_block(keep.spare);
  else
    Blocks<S>::copy(std::as_const(keep.spare).view(), y.view());
}

/// y = e, element by element; e has no blocks. y has a map.
template <class T, int N, class S, class E> void evaluate(Tensor<T, N, S>& y, const E& e) {
  Keep<T, N, S>& keep = keep_of(y);
  Evaluation<N, E> run("assignment of an expression", e, y.map(), keep.rows);
  const bool elsewhere = run.moves(&y);
  run.start();
  Tensor<T, N, S>& target = elsewhere ? second_buffer(y, keep) : y;
  const Target kind = !elsewhere && run.reads(&y) ? Target::read : Target::fresh;
  const auto put = [&](const Box<N>& box) {
    const Place<N> place(target.store());
    run.rows(box, continues(target.store().extents(), box.extent(fastest_dim<N>)),
             [&](const Index<N>& at, long count, const auto& reader) {
               put_row(kind, target.data() + place(at), count, reader);
             });
  };

  const Box<N> inner = run.interior(y.box());
  if (inner.empty() || inner == y.box()) {
    run.finish();
    put(y.box());
  } else {
    constexpr int outermost = memory_order<N>()[0];
    constexpr long parts = 8; // between them, messages are moved on
    for (long p = 0; p < parts; ++p) {
      Box<N> part = inner;
      part.lo[outermost] = inner.lo[outermost] + inner.extent(outermost) * p / parts;
      part.hi[outermost] = inner.lo[outermost] + inner.extent(outermost) * (p + 1) / parts;
      put(part);
      run.poke();
    }
    run.finish();
    for_each_rim(y.box(), inner, put);
  }
  if (elsewhere) take_second_buffer(y, keep);
}

/// The same expression with every block computed and replaced by its result.
template <class T, int N, Layout L, class S, class F> auto lower(const Ref<T, N, L, S>& e, F&&) { return e; }
template <class T, int N, Layout L, class S, class F> auto lower(const Owned<T, N, L, S>& e, F&&) {
  return Ref<T, N, L, S>(e.tensor());
}
template <class T, class F> auto lower(const Scalar<T>& e, F&&) { return e; }
template <Block B, class F> auto lower(const B& e, F&& compute) {
  return Ref<typename B::value_type, B::shape.rank, B::shape.layout, typename B::space>(compute(e));
}
template <class G, class... A, class F> auto lower(const Apply<G, A...>& e, F&& compute);
template <Dim D, class A, class F> auto lower(const Shift<D, A>& e, F&& compute) {
  auto operand = lower(e.operand, compute);
  return Shift<D, decltype(operand)>(std::move(operand), e.by, e.mode);
}
template <class G, class... A, class F> auto lower(const Apply<G, A...>& e, F&& compute) {
  return std::apply(
      [&](const A&... a) {
        auto operands = std::tuple<decltype(lower(a, compute))...>{lower(a, compute)...}; // from left to right
        return std::apply(
            [&](auto&... o) { return Apply<G, std::remove_cvref_t<decltype(o)>...>(e.function, std::move(o)...); },
            operands);
      },
      e.operands);
}

/// The result of a block, kept for the next time.
template <class T, int N, class S> struct Result final : Kept {
  using Held = Tensor<T, N, S>;
  Tensor<T, N, S> tensor;
  explicit Result(Tensor<T, N, S> t) : tensor(std::move(t)) {}
};

/// True if e reads the tensor.
template <int N, class E> bool reads(const E& e, const void* tensor) {
  bool found = false;
  visit(e, Path<N>{}, [&](const auto& t, const auto&) { found = found || &t == tensor; });
  return found;
}

/// y = the block e, of the same element type.
template <class T, int N, class S, class B> void compute_block(Tensor<T, N, S>& y, const B& e, Keep<T, N, S>& keep) {
  require_equal_maps(B::name, y.map(), e.map());
  if (!reads<N>(e, &y)) return e.compute(y, keep);
  e.compute(second_buffer(y, keep), keep);
  take_second_buffer(y, keep);
}

/// y = e, where e has blocks among its operands.
template <class T, int N, class S, class E> void evaluate_with_blocks(Tensor<T, N, S>& y, const E& e) {
  Keep<T, N, S>& keep = keep_of(y);
  std::size_t used = 0;
  const auto compute = [&]<Block B>(const B& block) -> const auto& {
    using V = typename B::value_type;
    constexpr int M = B::shape.rank;
    if constexpr (std::is_same_v<V, T> && M == N && blocks_in<E> == 1 && !shifts<E>)
      if (!reads<N>(e, &y)) { // one pass over the result, where it is to be
        compute_block(y, block, keep);
        return std::as_const(y);
      }
    using R = Result<V, M, typename B::space>;
    if (keep.results.size() == used) keep.results.emplace_back();
    auto& slot = keep.results[used++];
    auto* result = dynamic_cast<R*>(slot.get());
    if (!result || result->tensor.map() != block.map()) {
      auto made = std::make_unique<R>(typename R::Held(block.grid(), block.map()));
      result = made.get();
      slot = std::move(made);
    }
    compute_block(result->tensor, block, keep_of(result->tensor));
    return std::as_const(result->tensor);
  };
  evaluate(y, lower(e, compute));
}

template <class T, int N, Layout L, class S, class E>
requires ExpressionNode<E>
struct Assign<DistTensor<T, N, L, S>, E> {
  static_assert(S::host_accessible, "tessera: expressions are evaluated on the host; assign to a tensor there");
  static_assert(E::shape.rank == N, "tessera: the expression has another rank than the tensor it is assigned to");
  static_assert(
      E::shape.rank != N || E::shape.layout == L,
      "tessera: the expression has another layout than the tensor it is assigned to; assign it to a tensor of "
      "its own layout first, then that one: z = y redistributes");

  static void run(DistTensor<T, N, L, S>& y, const E& e) {
    if (y.map().grid().axes == 0) {
      Home<N> home;
      find_home(e, home);
      y = DistTensor<T, N, L, S>(Tensor<T, N, S>(*home.grid, home.map));
    }
    Tensor<T, N, S>& target = y;
    if constexpr (blocks_in<E> == 0)
      evaluate(target, e);
    else if constexpr (Block<E> && std::is_same_v<T, typename E::value_type>)
      compute_block(target, e, keep_of(target));
    else
      evaluate_with_blocks(target, e);
  }
};

} // namespace tessera::detail
