// Descriptors as template arguments, dims, duals, and the move planner, entry by entry.
#include <array>
#include <doctest/doctest.h>
#include <tessera/layout/moves.hpp>
#include <tessera/layout/stencil.hpp>

using namespace tessera;
using namespace tessera::names;

namespace {

// Some compilers merge template arguments of class type that hold arrays. Every member of every descriptor must count.
template <auto Value> struct Probe {};
template <auto A, auto B> inline constexpr bool distinct = !std::is_same_v<Probe<A>, Probe<B>> && !(A == B);
template <auto A, auto B> inline constexpr bool same = std::is_same_v<Probe<A>, Probe<B>>&& A == B;

static_assert(distinct<Placement(n), Placement(d)>);
static_assert(distinct<Placement(rep), Placement(sum)>);
static_assert(distinct<Placement(n), Placement(rep)>);
static_assert(same<Placement(h), Placement(h)>);

static_assert(distinct<place(n, d, h, w), place(n, d, w, h)>);
static_assert(distinct<place(n), place(n, rep)>);
static_assert(distinct<place(), place(rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(c, d, h, w, rep, rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(n, c, h, w, rep, rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(n, d, c, w, rep, rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(n, d, h, c, rep, rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(n, d, h, w, sum, rep)>);
static_assert(distinct<place(n, d, h, w, rep, rep), place(n, d, h, w, rep, sum)>);
static_assert(same<place(n, rep, sum), place(n, rep, sum)>);
static_assert(same<place(rep, rep), replicated(2)>);

constexpr Window base{.k = 3, .stride = 1, .dilation = 1, .below = 1, .above = 1};
static_assert(distinct<base, Window{.k = 5, .stride = 1, .dilation = 1, .below = 1, .above = 1}>);
static_assert(distinct<base, Window{.k = 3, .stride = 2, .dilation = 1, .below = 1, .above = 1}>);
static_assert(distinct<base, Window{.k = 3, .stride = 1, .dilation = 2, .below = 1, .above = 1}>);
static_assert(distinct<base, Window{.k = 3, .stride = 1, .dilation = 1, .below = 0, .above = 1}>);
static_assert(distinct<base, Window{.k = 3, .stride = 1, .dilation = 1, .below = 1, .above = 0}>);
static_assert(
    distinct<base, Window{.k = 3, .stride = 1, .dilation = 1, .below = 1, .above = 1, .mode = Padding::periodic}>);
static_assert(
    distinct<base, Window{.k = 3, .stride = 1, .dilation = 1, .below = 1, .above = 1, .mode = Padding::reflect}>);
static_assert(
    distinct<
        base,
        Window{
            .k = 3, .stride = 1, .dilation = 1, .below = 1, .above = 1, .mode = {Padding::zeros, Padding::replicate}}>);
static_assert(distinct<Window{.k = 3, .mode = {Padding::reflect, Padding::replicate}},
                       Window{.k = 3, .mode = {Padding::replicate, Padding::reflect}}>);
static_assert(distinct<window(3), window(3).same()>);
static_assert(distinct<window(3, 1, 1), window(1, 3, 1)>);
static_assert(distinct<window(1, 3, 1), window(1, 1, 3)>);
static_assert(distinct<window(3).pad(d, 1, 0), window(3).pad(d, 0, 1)>);
static_assert(distinct<window(3).pad(h, 1, 1), window(3).pad(w, 1, 1)>);
static_assert(same<window(3), window(3, 3, 3)>);

static_assert(distinct<plan_moves(place(n, d), place(n, rep)), plan_moves(place(n, d), place(n, h))>);
static_assert(distinct<plan_moves(place(n), place(n)), plan_moves(place(n, n), place(n, n))>);

} // namespace

TEST_CASE("dim_index and dim_at: the dims of each rank in logical order") {
  constexpr std::array<std::string_view, 6> order{"", "c", "nc", "dhw", "cdhw", "ncdhw"};
  for (int rank = 1; rank <= 5; ++rank) {
    const std::string_view dims = order[static_cast<std::size_t>(rank)];
    REQUIRE(static_cast<int>(dims.size()) == rank);
    for (const Dim dim : {n, c, d, h, w}) {
      const auto at = dims.find(dim_name(dim));
      CHECK(dim_index(dim, rank) == (at == dims.npos ? -1 : static_cast<int>(at)));
    }
    for (int i = 0; i < rank; ++i) CHECK(dim_name(dim_at(i, rank)) == dims[static_cast<std::size_t>(i)]);
  }
  CHECK(dim_index(n, 6) == -1);
  CHECK(dim_index(n, 0) == -1);
}

TEST_CASE("Layout: texts, masks, questions") {
  constexpr Layout l = place(n, d, rep, sum, d, w);
  CHECK(l.str() == "place(n,d,rep,sum,d,w)");
  CHECK(place().str() == "place()");
  static_assert(l.axes == 6);
  static_assert(l.splits(n) && l.splits(d) && l.splits(w) && !l.splits(c) && !l.splits(h));
  static_assert(l.mask(rep) == 0b000100 && l.mask(sum) == 0b001000 && l.mask(Placement::Kind::split) == 0b110011);
  static_assert(l.has_sum() && !place(n, rep).has_sum());
  static_assert(l.fits_rank(5) && !l.fits_rank(4) && !l.fits_rank(3));
  static_assert(place(d, h, w).fits_rank(3) && place(d, h, w).fits_rank(4) && !place(d).fits_rank(2));
  static_assert(place(n, c).fits_rank(2) && !place(n).fits_rank(1) && place(c).fits_rank(1) &&
                place(rep, sum).fits_rank(1));
  static_assert(replicated(3) == place(rep, rep, rep));
}

TEST_CASE("dual: rep and sum change places, split stays; twice gives the layout back") {
  static_assert(dual(place(rep)) == place(sum));
  static_assert(dual(place(sum)) == place(rep));
  static_assert(dual(place(h)) == place(h));
  const std::array<Placement, 7> all{Placement(n), c, d, h, w, rep, sum};
  for (const Placement& p0 : all)
    for (const Placement& p1 : all)
      for (const Placement& p2 : all) {
        const Layout l = place(p0, p1, p2);
        CHECK(dual(dual(l)) == l);
      }
}

TEST_CASE("the move of every pair of placements") {
  // from: rep
  static_assert(move_between(rep, rep) == Move::keep);
  static_assert(move_between(rep, d) == Move::slice);
  static_assert(move_between(rep, n) == Move::slice);
  static_assert(move_between(rep, sum) == Move::forbidden);
  // from: split
  static_assert(move_between(d, rep) == Move::all_gather);
  static_assert(move_between(n, rep) == Move::all_gather);
  static_assert(move_between(d, d) == Move::keep);
  static_assert(move_between(d, w) == Move::all_to_all);
  static_assert(move_between(n, d) == Move::all_to_all);
  static_assert(move_between(d, n) == Move::all_to_all);
  static_assert(move_between(d, sum) == Move::zero_pad);
  static_assert(move_between(n, sum) == Move::zero_pad);
  // from: sum
  static_assert(move_between(sum, rep) == Move::all_reduce);
  static_assert(move_between(sum, d) == Move::reduce_scatter);
  static_assert(move_between(sum, n) == Move::reduce_scatter);
  static_assert(move_between(sum, sum) == Move::keep);

  CHECK(std::string_view(move_name(Move::keep)) == "keep");
  CHECK(std::string_view(move_name(Move::zero_pad)) == "zero-pad");
  CHECK(std::string_view(move_name(Move::reduce_scatter)) == "reduce-scatter");
  CHECK(std::string_view(move_name(Move::forbidden)) == "forbidden");
}

TEST_CASE("cost and legality of whole layouts") {
  static_assert(collectives(place(n, d, h, w), place(n, n, n, n)) == 3);
  static_assert(collectives(place(n, n, n, n), place(n, d, h, w)) == 3);
  static_assert(collectives(place(n, d), place(n, n)) == 1);
  static_assert(collectives(place(sum, sum), place(rep, rep)) == 2);
  static_assert(collectives(place(sum, d), place(n, rep)) == 2);
  static_assert(collectives(place(d, sum), place(sum, sum)) == 0);
  static_assert(moves_nothing(place(n, d), place(n, d)));
  static_assert(moves_nothing(place(n, rep), place(n, d)));
  static_assert(moves_nothing(place(rep, rep), place(d, d)));
  static_assert(moves_nothing(place(n, d), place(n, sum)));
  static_assert(!moves_nothing(place(n, d), place(n, rep)));
  static_assert(!moves_nothing(place(n, sum), place(n, rep)));
  static_assert(!moves_nothing(place(rep), place(sum))); // has no meaning at all
  static_assert(movable(place(n, sum), place(rep, d)));
  static_assert(!movable(place(n, rep), place(n, sum)));
  static_assert(!movable(place(n), place(n, rep)));
  static_assert(!moves_nothing(place(n), place(n, rep)));
}

TEST_CASE("an axis that keeps its dim moves data if an earlier axis starts or ends to split that dim") {
  // On a 2x2 grid, rank (0,1) holds the second half of d before and the second quarter after.
  static_assert(collectives(place(rep, d), place(d, d)) == 1);
  static_assert(collectives(place(d, d), place(sum, d)) == 1);
  static_assert(collectives(place(n, d), place(d, d)) == 2);
  static_assert(collectives(place(d, n, d), place(d, d, d)) == 2);
  // A later axis refines the blocks or merges them where they lie.
  static_assert(moves_nothing(place(d, rep), place(d, d)));
  static_assert(moves_nothing(place(d, d), place(d, sum)));
  static_assert(moves_nothing(place(d, rep), place(sum, d)));
  static_assert(moves_nothing(place(d, rep, h), place(d, d, h)));
}

TEST_CASE("the adjoint of a move runs between the duals; the adjoint of the adjoint is the move") {
  constexpr AdjointMove a = adjoint_of_move(place(n, d, rep), place(rep, sum, w));
  static_assert(a.from == place(sum, rep, w) && a.to == place(n, d, sum));
  static_assert(move_between(a.from[0], a.to[0]) == Move::reduce_scatter); // all-gather
  static_assert(move_between(a.from[1], a.to[1]) == Move::slice);          // zero-pad
  static_assert(move_between(a.from[2], a.to[2]) == Move::zero_pad);       // slice
  const std::array<Placement, 7> all{Placement(n), c, d, h, w, rep, sum};
  for (const Placement& from : all)
    for (const Placement& to : all) {
      const AdjointMove once = adjoint_of_move(place(from), place(to)), twice = adjoint_of_move(once.from, once.to);
      CHECK(twice.from == place(from));
      CHECK(twice.to == place(to));
      CHECK(movable(place(from), place(to)) == movable(once.from, once.to));
      CHECK(collectives(place(from), place(to)) == collectives(once.from, once.to));
    }
}
