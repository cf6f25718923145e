// check/local.hpp: the contract of a user's two functions by themselves: forward writes all of y, backward adds to dx
// and da, and neither touches memory outside its views.
//
// Each view lies in a larger block whose other cells are marked, so a step too far shows.
//
// May know: everything.
// Example: check::local_contract(Sharpen{}, "Sharpen", {{2, 2, 6, 5, 4}}, {{2, 2, 6, 5, 4}}, {{1, 1, 1, 1, 1}}, 1);
#pragma once

#include <algorithm>
#include <tessera/check/error.hpp>
#include <tessera/layer/user.hpp>

namespace tessera::check {

namespace detail {

/// A dense block with marked memory before and behind it.
class Guarded {
public:
  explicit Guarded(const Extents<5>& e) : extents_(e), margin_(std::size_t(std::max(64L, product(e)))) {
    memory_.assign(2 * margin_ + std::size_t(product(e)), poison(Poison::beyond));
  }
  View<double, 5> view() { return {memory_.data() + margin_, extents_}; }
  void set(const std::vector<double>& v) { std::copy(v.begin(), v.end(), memory_.begin() + long(margin_)); }
  void set(double v) { std::fill_n(memory_.begin() + long(margin_), product(extents_), v); }
  /// True if something was written around the block.
  bool overrun() const {
    const auto touched = [](double v) { return poison_in(v) != Poison::beyond; };
    return std::any_of(memory_.begin(), memory_.begin() + long(margin_), touched) ||
           std::any_of(memory_.end() - long(margin_), memory_.end(), touched);
  }

private:
  Extents<5> extents_;
  std::size_t margin_;
  std::vector<double> memory_;
};

} // namespace detail

/// Throws check_error unless the layer's forward and backward keep their contract on one block that is the whole
/// tensor. Indices in messages are those of y, of a, and for dx of the tensor (negative in the padding).
template <LocalLayer L>
void local_contract(const L& layer, const std::string& name, const Extents<5>& in, const Extents<5>& out,
                    const Extents<5>& parameters, std::uint64_t seed) {
  using detail::Poison;
  const Stencil s = layer.stencil();
  Box<5> reads = whole(in);
  for (int i = 0; i < 3; ++i) {
    const Interval r = s[i].reads({0, out[2 + i]});
    reads.lo[2 + i] = r.lo, reads.hi[2 + i] = r.hi;
  }
  const auto numbers = [&](std::uint64_t salt, const Extents<5>& e) {
    return detail::scattered_numbers(seed + salt, std::size_t(product(e)));
  };
  const auto fail = [&](const char* what, const std::optional<Index<5>>& at, double got, double want,
                        const char* words) { detail::fail(name, "", "", what, at, got, want, words); };
  detail::Guarded x(reads.extents()), dx(reads.extents()), a(parameters), da(parameters), y(out), dy(out);
  x.set(numbers(1, reads.extents())), a.set(numbers(2, parameters)), dy.set(numbers(3, out));
  const auto const_view = [](detail::Guarded& g) { return View<const double, 5>(g.view()); };
  const Local local{whole(out), in, seed, 0, Mode::training};

  y.set(detail::poison(Poison::unwritten));
  layer.template forward<double>(local, const_view(x), const_view(a), y.view());
  if (y.overrun()) fail("forward writes outside y", std::nullopt, 0, 0, "write y[i] for i in whole(y.extents) only");
  for_each_index(whole(out), [&](const Index<5>& i) {
    const double v = y.view()[i];
    if (detail::poison_in(v) == Poison::unwritten)
      fail("forward leaves y unwritten", i, v, 0, "write every element of y");
    if (std::isnan(v))
      fail("forward makes y not a number", i, v, 0,
           "it reads outside x or a; y(q) may read x from q * stride to q * stride + span - 1: is the window in "
           "stencil() as large as what is read?");
  });

  const auto start_x = numbers(4, reads.extents()), start_a = numbers(5, parameters);
  std::vector<double> gradients[2][2]; // [from zero, from numbers][dx, da]
  for (const bool zero : {true, false}) {
    if (zero)
      dx.set(0), da.set(0);
    else
      dx.set(start_x), da.set(start_a);
    layer.template backward<double>(local, const_view(x), const_view(a), const_view(dy), dx.view(), da.view());
    if (dx.overrun()) fail("backward writes outside dx", std::nullopt, 0, 0, "dx has the extents of x");
    if (da.overrun())
      fail("backward writes outside da", std::nullopt, 0, 0, "da has the extents that parameters() returns");
    const View<double, 5> vx = dx.view(), va = da.view();
    gradients[zero ? 0 : 1][0].assign(vx.data, vx.data + vx.size());
    gradients[zero ? 0 : 1][1].assign(va.data, va.data + va.size());
  }
  for (const int which : {0, 1}) {
    const Extents<5> e = which == 0 ? reads.extents() : parameters;
    const std::vector<double>& start = which == 0 ? start_x : start_a;
    const View<const double, 5> fresh(gradients[0][which].data(), e), added(gradients[1][which].data(), e),
        before(start.data(), e);
    for_each_index(whole(e), [&](const Index<5>& i) {
      if (std::isnan(fresh[i]))
        fail(which == 0 ? "backward makes dx not a number" : "backward makes da not a number",
             which == 0 ? i + reads.lo : i, fresh[i], 0, "it reads outside x, a or dy");
      const double want = before[i] + fresh[i];
      if (!(std::abs(added[i] - want) <= 1e-11 * std::max(1.0, std::abs(want))))
        fail(which == 0 ? "backward does not add to dx" : "backward does not add to da", which == 0 ? i + reads.lo : i,
             added[i], want, "what stood there before must remain part of it: use +=, not =");
    });
  }
}

} // namespace tessera::check
