// check::layer on layers of a user's: one that is right, and each way to be wrong, caught with the words for it.
#include "../support/ranks.hpp"
#include "../support/sweep.hpp"

#include <tessera/check/layer.hpp>

using namespace tessera;
using namespace tessera::names;

namespace {

enum class Wrong {
  nothing,
  gradient_of_input,
  gradient_of_parameter,
  local_index,
  clips_at_block,
  leaves_output,
  reads_outside,
  writes_outside,
  overwrites_dx,
  overwrites_da,
  remembers
};

/// y[q] = a0 x[q - 1] + a1 x[q + 1]^2 + a2 depth(q), neighbours along depth; wrong in one way or in none.
template <Wrong wrong> struct Bent {
  constexpr Stencil stencil() const {
    return wrong == Wrong::clips_at_block ? window(1) : window(3, 1, 1).pad(d, 1, 1).padded_with(Padding::replicate);
  }
  constexpr Extents<5> parameters(int) const { return {{1, 1, 1, 1, 3}}; }

  template <class T> static T a_of(const View<const T, 5>& a, long k) { return a(0, 0, 0, 0, k); }
  static Index<5> by(Index<5> i, long steps) {
    i[2] += steps;
    return i;
  }
  /// The neighbours' places in x.
  static std::array<Index<5>, 2> around(const Index<5>& q, long depth) {
    if (wrong == Wrong::reads_outside) return {by(q, 0), by(q, 3)};
    if (wrong != Wrong::clips_at_block) return {by(q, 0), by(q, 2)};
    return {by(q, q[2] > 0 ? -1 : 0), by(q, q[2] + 1 < depth ? 1 : 0)};
  }
  static double place_of(const Local& l, const Index<5>& q) {
    return double(q[2] + (wrong == Wrong::local_index ? 0 : l.out.lo[2]));
  }
  template <class T> void forward(const Local& l, View<const T, 5> x, View<const T, 5> a, View<T, 5> y) const {
    for_each_index(whole(y.extents), [&](const Index<5>& q) {
      if (wrong == Wrong::leaves_output && q[4] == 2) return;
      const auto [low, high] = around(q, y.extents[2]);
      y[q] = a_of(a, 0) * x[low] + a_of(a, 1) * x[high] * x[high] + a_of(a, 2) * static_cast<T>(place_of(l, q));
      if (wrong == Wrong::remembers) y[q] += static_cast<T>(l.out.extent(2));
    });
  }
  template <class T>
  void backward(const Local& l, View<const T, 5> x, View<const T, 5> a, View<const T, 5> dy, View<T, 5> dx,
                View<T, 5> da) const {
    if (wrong == Wrong::overwrites_dx) for_each_index(whole(dx.extents), [&](const Index<5>& i) { dx[i] = T{}; });
    if (wrong == Wrong::overwrites_da) da(0, 0, 0, 0, 1) = T{};
    if (wrong == Wrong::writes_outside) dx.data[-1] = T{};
    for_each_index(whole(dy.extents), [&](const Index<5>& q) {
      const auto [low, high] = around(q, dy.extents[2]);
      dx[low] += a_of(a, 0) * dy[q];
      dx[high] += (wrong == Wrong::gradient_of_input ? 1 : 2) * a_of(a, 1) * x[high] * dy[q];
      da(0, 0, 0, 0, 0) += dy[q] * x[low];
      da(0, 0, 0, 0, 1) += dy[q] * x[high] * x[high] * (wrong == Wrong::gradient_of_parameter ? -1 : 1);
      da(0, 0, 0, 0, 2) += dy[q] * static_cast<T>(place_of(l, q));
    });
  }
};

/// What the check says; "" if nothing. The fields agree with the words.
template <class L> check::check_error told(const L& layer, const check::LayerOptions& options = {.ranks = {1, 2, 4}}) {
  try {
    const auto report = check::layer(layer, options);
    return check::check_error("nothing is wrong with " + report.layer);
  } catch (const check::check_error& e) { return e; }
}
void check_told(const check::check_error& e, const std::string& layer, const std::string& what,
                const std::string& words) {
  const std::string all = e.what();
  CHECK_MESSAGE(e.layer == layer, all);
  CHECK_MESSAGE(e.what_failed.find(what) != std::string::npos, all);
  for (const std::string& part : {layer, e.what_failed, words, e.grid})
    CHECK_MESSAGE(all.find(part) != std::string::npos, all, " lacks ", part);
  MESSAGE(all);
}

} // namespace

TEST_CASE("a right layer passes, on threads and on these ranks") {
  const auto report = check::layer(Bent<Wrong::nothing>{});
  CHECK(report.layer == "Bent<nothing>");
  CHECK(!report.linear);
  CHECK(report.grids > 200);
  CHECK(report.gradient < 1e-8);
  CHECK(report.adjoint < 1e-8);
  MESSAGE(report.str());
  test::on_ranks({1, 2, 3, 4}, [](const Communicator& world) {
    const auto r = check::layer(world, Bent<Wrong::nothing>{}, {.input = {{1, 1, 9, 2, 3}}, .layouts = {place(d, n)}});
    CHECK(r.grids == 2 * int(test::factorisations(world.size(), 2).size()));
  });
}

TEST_CASE("a wrong gradient of the input") {
  const auto e = told(Bent<Wrong::gradient_of_input>{});
  check_told(e, "Bent<gradient_of_input>", "dx differs from central differences of the loss",
             "is a term of the derivative missing, or its sign wrong?");
  CHECK(e.grid == "1x1x1x1");
  CHECK(std::abs(e.got - e.want) > 1e-5);
}

TEST_CASE("a wrong gradient of a parameter: its index is named") {
  const auto e = told(Bent<Wrong::gradient_of_parameter>{});
  check_told(e, "Bent<gradient_of_parameter>", "dw differs from central differences", "sign wrong?");
  CHECK(e.at == Index<5>{{0, 0, 0, 0, 1}});
  CHECK(e.got == doctest::Approx(-e.want));
}

TEST_CASE("local indices instead of global ones") {
  const auto e = told(Bent<Wrong::local_index>{});
  check_told(e, "Bent<local_index>", "y differs from one rank's", "does it use local indices");
  CHECK(e.grid == "1x2x1x1");
  CHECK(e.at == Index<5>{{0, 0, 3, 0, 0}}); // the first cell of the second block of depth 6
}

TEST_CASE("neighbours clipped at the block: the halo is forgotten") {
  const auto e = told(Bent<Wrong::clips_at_block>{});
  check_told(e, "Bent<clips_at_block>", "y differs from one rank's", "clip its windows at the block?");
  CHECK(e.at == Index<5>{{0, 0, 2, 0, 0}}); // the last cell of the first block reads the cell beyond it
}

TEST_CASE("output that is not written") {
  const auto e = told(Bent<Wrong::leaves_output>{});
  check_told(e, "Bent<leaves_output>", "forward leaves y unwritten", "write every element of y");
  CHECK(e.at == Index<5>{{0, 0, 0, 0, 2}});
}

TEST_CASE("steps outside the views") {
  const auto e = told(Bent<Wrong::reads_outside>{});
  check_told(e, "Bent<reads_outside>", "forward makes y not a number", "it reads outside x");
  CHECK(e.at == Index<5>{{1, 0, 5, 0, 0}}); // the last plane of the last sample: behind others lies more of x
  check_told(told(Bent<Wrong::writes_outside>{}), "Bent<writes_outside>", "backward writes outside dx",
             "dx has the extents of x");
}

TEST_CASE("gradients that are set, not added to") {
  check_told(told(Bent<Wrong::overwrites_dx>{}), "Bent<overwrites_dx>", "backward does not add to dx", "use +=, not =");
  const auto e = told(Bent<Wrong::overwrites_da>{});
  check_told(e, "Bent<overwrites_da>", "backward does not add to da", "use +=, not =");
  CHECK(e.at == Index<5>{{0, 0, 0, 0, 1}});
}

TEST_CASE("a value that depends on the size of the block") {
  const auto e = told(Bent<Wrong::remembers>{});
  check_told(e, "Bent<remembers>", "y differs from one rank's", "local indices");
}

TEST_CASE("a layer that does not fit the input is a usage error that names it") {
  CHECK_THROWS_WITH_AS(check::layer(conv(2, window(9)), {.input = {{1, 1, 4, 4, 4}}}),
                       doctest::Contains("layer 0 (conv), dim d: a window is larger than its padded input"),
                       usage_error);
}
