// Window and Stencil against loops over taps; halo widths of aligned blocks; errors.
#include "../support/sweep.hpp"

#include <doctest/doctest.h>
#include <tessera/layout/stencil.hpp>

using namespace tessera;

namespace {

std::string describe(const Window& x) {
  return text("k ", x.k, ", stride ", x.stride, ", dilation ", x.dilation, ", padding ", x.below, "/", x.above);
}

/// Calls f for windows of every shape up to the given sizes.
template <class F> void for_each_window(int k, int stride, int dilation, int padding, const F& f) {
  for (Window x; x.k <= k; ++x.k)
    for (x.stride = 1; x.stride <= stride; ++x.stride)
      for (x.dilation = 1; x.dilation <= dilation; ++x.dilation)
        for (x.below = 0; x.below <= padding; ++x.below)
          for (x.above = 0; x.above <= padding; ++x.above) f(x);
}

} // namespace

TEST_CASE("output() and reads() by trying every position and every tap") {
  long windows = 0;
  for_each_window(5, 4, 3, 4, [&](const Window& x) {
    for (long in = 0; in <= 13; ++in, ++windows) {
      // A window may stand wherever all its taps lie within the padded input.
      long outputs = 0;
      if (in > 0)
        for (;; ++outputs) {
          bool inside = true;
          for (int j = 0; j < x.k; ++j) {
            const long at = outputs * x.stride - x.below + long(j) * x.dilation;
            inside = inside && at >= -x.below && at < in + x.above;
          }
          if (!inside) break;
        }
      INFO(describe(x), ", input ", in);
      REQUIRE(x.output(in) == outputs);
      for (long lo = 0; lo <= outputs; ++lo)
        for (long hi = lo; hi <= outputs; ++hi) {
          long first = 1000, last = -1000;
          for (long q = lo; q < hi; ++q)
            for (int j = 0; j < x.k; ++j) {
              const long at = q * x.stride - x.below + long(j) * x.dilation;
              first = std::min(first, at), last = std::max(last, at);
            }
          const Interval r = x.reads({lo, hi});
          if (lo == hi)
            REQUIRE(r.empty());
          else
            REQUIRE(r == Interval{first, last + 1});
        }
    }
  });
  MESSAGE(windows, " windows and inputs");
}

TEST_CASE("blocks that start at multiples of the stride: the halo has the same widths on every rank") {
  long cases = 0;
  for (const int k : {1, 2, 3, 4, 5, 7})
    for (const int stride : {1, 2, 3, 4})
      for (const int dilation : {1, 2, 3})
        for (const int padding : {0, 1, 2, 3, 4})
          for (const long extent : {8L, 12L, 17L, 24L, 31L})
            for (const int parts : {1, 2, 3, 5}) {
              const Window x{.k = k, .stride = stride, .dilation = dilation, .below = padding, .above = padding};
              const long outputs = x.output(extent);
              if (outputs == 0) continue;
              ++cases;
              const Partition in = Partition::balanced(extent, parts, stride), out = in.inherited(x);
              long below = -1000, above = -1000, full_below = -1, full_above = -1;
              for (int p = 0; p < parts; ++p) {
                const long lo = in[p].lo, hi = in[p].hi;
                // The last block also computes what padding adds, where the reach ends in the padding.
                for (long q = out[p].lo; q < out[p].hi; ++q)
                  for (int j = 0; j < k; ++j) {
                    const long at = q * stride - padding + long(j) * dilation;
                    if (at < 0 || at >= extent) continue; // padding
                    below = std::max(below, lo - at);
                    above = std::max(above, at - (hi - 1));
                    // Some block with all its outputs and no border in reach shows the full widths.
                    const bool whole_block = hi < extent && (out[p].hi - 1) * stride == hi - stride;
                    if (whole_block && lo - padding >= 0) full_below = std::max(full_below, lo - at);
                    if (whole_block && hi + x.span() < extent) full_above = std::max(full_above, at - (hi - 1));
                  }
              }
              INFO(describe(x), ", extent ", extent, " over ", parts);
              REQUIRE(below <= x.halo_below());
              REQUIRE(above <= x.halo_above());
              REQUIRE(x.halo_below() == padding);
              REQUIRE(x.halo_above() == std::max(0L, long(dilation) * (k - 1) + 1 - stride - padding));
              if (full_below >= 0) REQUIRE(full_below == x.halo_below());
              if (full_above >= 0) REQUIRE(full_above == x.halo_above());
            }
  MESSAGE(cases, " cases");
  CHECK(cases > 5000);
}

TEST_CASE("local() says that aligned blocks need no halo") {
  static_assert(Window{}.local());
  static_assert(Window{.k = 2, .stride = 2}.local());
  static_assert(Window{.k = 2, .stride = 3}.local());
  static_assert(!Window{.k = 3, .stride = 2}.local());
  static_assert(!Window{.k = 1, .stride = 1, .dilation = 1, .below = 1}.local());
}

TEST_CASE("Stencil: each call changes what it names and nothing else") {
  constexpr Stencil s = window(3, 4, 5).pad(Dim::h, 2, 1).strided(1, 2, 3).dilated(3, 2, 1).periodic();
  static_assert(s.kernel() == Index<3>{{3, 4, 5}});
  static_assert(s.strides() == Index<3>{{1, 2, 3}});
  static_assert(s.dilations() == Index<3>{{3, 2, 1}});
  static_assert(s.d.below == 0 && s.d.above == 0 && s.h.below == 2 && s.h.above == 1 && s.w.below == 0 &&
                s.w.above == 0);
  static_assert(s.d.mode == Padding::periodic && s.h.mode == Padding::periodic && s.w.mode == Padding::periodic);
  static_assert(s[0] == s.d && s[1] == s.h && s[2] == s.w);
  static_assert(window(3).pad(1, 2).w == Window{.k = 3, .below = 1, .above = 2});
  static_assert(window(3).pad(2).d == Window{.k = 3, .below = 2, .above = 2});
  static_assert(s.output({{9, 9, 9}}) == Index<3>{{9 - 6, (9 + 3 - 7) / 2 + 1, (9 - 5) / 3 + 1}});
  static_assert(s.valid() && !window(0).valid() && !window(3).strided(0).valid() && !window(3).dilated(0).valid() &&
                !window(3).pad(-1).valid());
}

TEST_CASE("ceil(): one more window where strides leave a rest, if it begins in the input or the padding below") {
  const auto outputs = [](long in, int k, int stride, int padding) {
    return window(k).strided(stride).pad(padding).ceil().d.output(in);
  };
  // By PyTorch's rule, worked out by hand: (input, kernel, stride, padding).
  CHECK(outputs(6, 3, 2, 0) == 3); // windows at 0, 2, 4; the last has two cells
  CHECK(outputs(7, 3, 2, 0) == 3); // no rest
  CHECK(outputs(5, 2, 2, 0) == 3);
  CHECK(outputs(2, 3, 2, 0) == 1); // smaller than the window, but it begins inside
  CHECK(outputs(1, 3, 2, 0) == 0);
  CHECK(outputs(1, 3, 3, 0) == 1);
  CHECK(outputs(1, 4, 2, 0) == 0);
  CHECK(outputs(6, 2, 3, 1) == 3); // windows at -1, 2, 5
  CHECK(outputs(5, 2, 3, 1) == 2); // one at 5 would begin behind the input
  CHECK(outputs(4, 1, 3, 1) == 2); // one at 5 would begin behind the input
  CHECK(window(3).strided(2).d.output(6) == 2);
  CHECK(window(3).strided(2).ceil().d != window(3).strided(2).d);
  for (long in = 1; in < 12; ++in) // every window begins in the input or the padding below it, and one more would not
    for (int k = 1; k < 5; ++k)
      for (int stride = 1; stride < 5; ++stride)
        for (int padding = 0; padding < 3; ++padding) {
          const long down = window(k).strided(stride).pad(padding).d.output(in), up = outputs(in, k, stride, padding);
          REQUIRE(up >= down);
          REQUIRE(up <= down + 1);
          if (up > down) REQUIRE((up - 1) * stride < in + padding);
          if (down > 0 && up == down && (in + 2 * padding - k) % stride != 0) REQUIRE(up * stride >= in + padding);
        }
  CHECK_THROWS_WITH_AS(require_fits(window(3).strided(2).periodic().ceil(), {{9, 9, 9}}, "max_pool"),
                       doctest::Contains("max_pool: dim d: ceil() needs padding with zeros"), usage_error);
}

template <Stencil> struct Probe {};
static_assert(!std::is_same_v<Probe<window(3)>, Probe<window(3).ceil()>>);

TEST_CASE("same() keeps the extents at stride 1, even kernels and dilation included") {
  for (int k = 1; k <= 8; ++k)
    for (int dilation = 1; dilation <= 4; ++dilation) {
      const Window x = window(k).dilated(dilation).same().d;
      CHECK(x.output(11) == 11);
      CHECK(x.above - x.below == (x.span() + 1) % 2); // an even span has the larger half above
    }
}

TEST_CASE("padded_source: what stands outside, by hand and counted out") {
  const auto around = [](const PaddingModes& modes) { // positions -3 to 6 of 0 1 2 3
    std::vector<long> all;
    for (long at = -3; at < 7; ++at) all.push_back(padded_source(at, 4, modes));
    return all;
  };
  using Cells = std::vector<long>;
  CHECK(around(Padding::zeros) == Cells{-1, -1, -1, 0, 1, 2, 3, -1, -1, -1});
  CHECK(around(Padding::periodic) == Cells{1, 2, 3, 0, 1, 2, 3, 0, 1, 2});
  CHECK(around(Padding::reflect) == Cells{3, 2, 1, 0, 1, 2, 3, 2, 1, 0});
  CHECK(around(Padding::replicate) == Cells{0, 0, 0, 0, 1, 2, 3, 3, 3, 3});
  CHECK(around({Padding::reflect, Padding::zeros}) == Cells{3, 2, 1, 0, 1, 2, 3, -1, -1, -1});
  CHECK(around({Padding::periodic, Padding::replicate}) == Cells{1, 2, 3, 0, 1, 2, 3, 3, 3, 3});
  for (long extent = 1; extent < 7; ++extent)
    for (int below = 0; below < 4; ++below)
      for (int above = 0; above < 4; ++above) {
        const PaddingModes modes{static_cast<Padding>(below), static_cast<Padding>(above)};
        const long low = modes.below == Padding::reflect ? 1 - extent : -12;
        const long high = modes.above == Padding::reflect ? 2 * extent - 1 : 20;
        for (long at = low; at < high; ++at)
          REQUIRE(padded_source(at, extent, modes) == test::cell_at(at, extent, modes));
      }
}

TEST_CASE("padded_with: all dims, one, or one side of one") {
  constexpr Stencil s = window(3).same().padded_with(Padding::reflect).padded_with(Dim::h, Padding::replicate);
  static_assert(s.d.mode == Padding::reflect && s.h.mode == Padding::replicate && s.w.mode == Padding::reflect);
  static_assert(s.kernel() == window(3).kernel() && s.d.below == 1 && s.d.above == 1);
  constexpr Stencil t = window(3).same().padded_with(Dim::w, Padding::periodic, Padding::reflect);
  static_assert(t.w.mode.below == Padding::periodic && t.w.mode.above == Padding::reflect);
  static_assert(t.w.mode != Padding::periodic && t.w.mode != Padding::reflect);
  static_assert(t.d.mode == Padding::zeros && t.h.mode == Padding::zeros);
  static_assert(t.w.stored_below() == 1 && t.w.stored_above() == 1 && t.d.stored_below() == 0);
  static_assert(t.borders<3>()[2] == t.w.mode && t.borders<5>()[4] == t.w.mode && t.borders<5>()[0] == Padding::zeros);
  CHECK_THROWS_WITH_AS(s.padded_with(Dim::c, Padding::reflect),
                       doctest::Contains("padding in dim c; a window slides along d, h and w only"), usage_error);
}

TEST_CASE("padding in a dim along which no window slides is an error") {
  CHECK_THROWS_WITH_AS(window(3).pad(Dim::n, 1, 1),
                       doctest::Contains("padding in dim n; a window slides along d, h and w"), usage_error);
  CHECK_THROWS_WITH_AS(window(3).pad(Dim::c, 1, 1), doctest::Contains("padding in dim c"), usage_error);
}

TEST_CASE("windows that do not fit are errors that name dim, span, size and the remedy") {
  const Stencil ok = window(3);
  CHECK_NOTHROW(require_fits(ok, {{3, 3, 3}}, "conv"));
  CHECK_NOTHROW(require_fits(ok.periodic().pad(3), {{3, 3, 3}}, "conv"));
  CHECK_THROWS_WITH_AS(
      require_fits(window(3).dilated(2), {{9, 4, 9}}, "layer 2 (conv)"),
      doctest::Contains(
          "layer 2 (conv): dim h: the window spans 5 (kernel 3, dilation 2) but the input has size 4 with "
          "padding 0/0; use a smaller kernel or dilation, or more padding"),
      usage_error);
  CHECK_THROWS_WITH_AS(
      require_fits(ok.periodic().pad(Dim::w, 4, 0), {{3, 3, 3}}, "conv"),
      doctest::Contains("conv: dim w: periodic padding 4/0 is wider than the input of size 3; use at most "
                        "one period"),
      usage_error);
  const Stencil mirrored = ok.padded_with(Padding::reflect);
  CHECK_NOTHROW(require_fits(mirrored.pad(2), {{3, 3, 3}}, "conv"));
  CHECK_NOTHROW(require_fits(window(1).padded_with(Padding::reflect), {{1, 1, 1}}, "conv"));
  CHECK_NOTHROW(require_fits(ok.padded_with(Padding::replicate).pad(9), {{1, 1, 1}}, "conv"));
  CHECK_THROWS_WITH_AS(
      require_fits(mirrored.pad(Dim::h, 0, 3), {{3, 3, 3}}, "conv"),
      doctest::Contains("conv: dim h: reflecting padding 0/3 is not narrower than the input of size 3; "
                        "use at most size - 1, or Padding::replicate"),
      usage_error);
  // Each side has its own limit.
  const Stencil sides = ok.padded_with(Dim::d, Padding::periodic, Padding::reflect);
  CHECK_NOTHROW(require_fits(sides.pad(Dim::d, 3, 2), {{3, 3, 3}}, "conv"));
  CHECK_THROWS_WITH_AS(require_fits(sides.pad(Dim::d, 4, 2), {{3, 3, 3}}, "conv"),
                       doctest::Contains("dim d: periodic padding 4/2"), usage_error);
  CHECK_THROWS_WITH_AS(require_fits(sides.pad(Dim::d, 3, 3), {{3, 3, 3}}, "conv"),
                       doctest::Contains("dim d: reflecting padding 3/3"), usage_error);
  for (const Stencil& bad :
       {window(3, 0, 3), window(3).strided(1, 0, 1), window(3).dilated(1, -1, 1), ok.pad(Dim::h, -1, 0)})
    CHECK_THROWS_WITH_AS(require_fits(bad, {{9, 9, 9}}, "conv"), doctest::Contains("dim h has kernel"), usage_error);
}
