// layer/alone.hpp: one convolution or pooling by itself: on any grid, and as its definition reads on the whole tensors.
//
// On a grid every block is poisoned before the layer runs, so a value that it forgets to write or takes from where it
// should not shows.
#pragma once

#include "support/ranks.hpp"
#include "support/sweep.hpp"

#include <cmath>
#include <limits>
#include <tessera/layer/layer.hpp>
#include <tessera/tensor/gather.hpp>

namespace tessera {
struct reference;
struct cpu;
struct emulated;
} // namespace tessera

namespace tessera::test {

/// Everything that goes into one layer, in logical row-major order, the same on every rank.
struct Alone {
  LayerSpec spec{};
  InputActivation fused{}; ///< of a convolution: computed with it. Of a pooling: made its input, absorbed backward
  Extents<5> in{};
  std::vector<double> x, dy, w, b;

  bool transposed() const { return spec.kind == LayerKind::conv_transpose; }
  bool is_conv() const { return spec.kind == LayerKind::conv || transposed(); }
  Extents<5> out() const {
    Index<3> o = spec.stencil.output({{in[2], in[3], in[4]}});
    if (transposed())
      for (int i = 0; i < 3; ++i) o[i] = spec.stencil[i].transposed_output(in[2 + i], spec.output_padding[i]);
    return {{in[0], is_conv() ? spec.channels : in[1], o[0], o[1], o[2]}};
  }
  Extents<5> weights() const {
    if (!is_conv()) return {};
    const Index<3> k = spec.stencil.kernel();
    if (transposed()) return {{in[1], spec.channels, k[0], k[1], k[2]}};
    return {{spec.channels, in[1] / spec.conv_groups, k[0], k[1], k[2]}};
  }
  std::string str() const {
    std::string s =
        text(spec.name(), " ", in, " -> ", out(), spec.bias ? " bias" : "", ", groups ", spec.conv_groups,
             ", activation ", static_cast<int>(fused.kind), ", counted ", static_cast<int>(spec.padding_counts));
    for (int i = 0; i < 3; ++i) {
      const Window& v = spec.stencil[i];
      s += text("; ", dim_name(dim_at(i + 2, 5)), " k", v.k, " s", v.stride, " dil", v.dilation, " p", v.below, "/",
                v.above, " modes ", static_cast<int>(v.mode.below), "/", static_cast<int>(v.mode.above),
                v.rounding == Rounding::up ? " ceil" : "");
    }
    return s;
  }
};

inline std::vector<double> random_numbers(Random& random, long count) {
  std::vector<double> v(static_cast<std::size_t>(count));
  for (double& e : v) e = random.real();
  return v;
}
/// A layer on random data.
inline Alone alone(Random& random, const LayerSpec& spec, const Extents<5>& in, InputActivation fused = {}) {
  Alone a{spec, fused, in, {}, {}, {}, {}};
  a.x = random_numbers(random, product(in));
  a.dy = random_numbers(random, product(a.out()));
  a.w = random_numbers(random, product(a.weights()));
  if (spec.bias) a.b = random_numbers(random, spec.channels);
  return a;
}

/// What a layer computes, in logical row-major order.
template <class T> struct Computed { std::vector<T> y, dx, dw, db; };

/// The layer by the plain loops in double on the whole tensors; padding that is not zeros is laid around x first.
Computed<double> by_definition(const Alone& a);

enum class InputGradient { wanted, not_wanted };

/// Calls a layer forward and backward on poisoned blocks; y and dx gathered. `x` and `dy` are all values, in logical
/// order; y's block reaches `margin` cells further than its box.
template <class T, class Space = host>
Computed<T> through(Layer<T, Space>& layer, Pass<T>& pass, const AnyGrid& grid, const Map<5>& in, const Map<5>& out,
                    const std::vector<double>& x, const std::vector<double>& dy, long margin = 0,
                    InputGradient wanted = InputGradient::wanted) {
  const auto tensor = [&](const Map<5>& map, const Box<5>& store, const std::vector<double>& values) {
    Tensor<T, 5, Space> t(grid, map);
    if (!store.empty()) t.reserve(store);
    Blocks<Space>::fill(t.view(t.store()), std::numeric_limits<T>::quiet_NaN());
    if (!values.empty()) scatter(t, std::vector<T>(values.begin(), values.end()));
    return t;
  };
  Box<5> room = out.box(grid.rank());
  if (!room.empty())
    for (int i = 2; i < 5; ++i) room.lo[i] -= margin, room.hi[i] += margin;
  auto tx = tensor(in, layer.need(), x), tdx = tensor(in, layer.need(), {});
  auto ty = tensor(out, room, {}), tdy = tensor(out, room, dy);
  Computed<T> c;
  layer.forward(pass, tx, ty);
  c.y = gather(ty);
  layer.backward(pass, tx, ty, tdy, wanted == InputGradient::wanted ? &tdx : nullptr);
  if (wanted == InputGradient::wanted) c.dx = gather(tdx);
  return c;
}

/// How the tensors of a layer lie in memory on a grid.
struct Lie {
  Map<5> in;
  long margin = 0; ///< cells around the output's block, as the halo of a layer after it
  InputGradient dx = InputGradient::wanted;
};

template <class T> struct OnGrid : Computed<T> {
  LayerTraffic traffic; ///< of this rank
};

/// The layer on a grid, forward and backward, gathered; the gradients of the parameters summed as a network does.
/// Made in alone.cpp for <double, reference>, <double, cpu>, <float, cpu> and <double, emulated>.
template <class T, class Backend> OnGrid<T> on_grid(const AnyGrid& grid, const Alone& a, const Lie& lie);

/// "" if |a - b| <= tolerance * max(1, |b|) everywhere, else where it is worst.
template <class T> std::string difference(const std::vector<T>& a, const std::vector<double>& b, double tolerance) {
  if (a.size() != b.size()) return text(a.size(), " values instead of ", b.size());
  std::size_t worst = 0;
  double most = -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(double(a[i]) - b[i]) / std::max(1.0, std::abs(b[i]));
    if (!(off <= most)) most = off, worst = i;
    if (std::isnan(off)) break;
  }
  if (a.empty() || most <= tolerance) return "";
  return text("at ", worst, ": ", double(a[worst]), " instead of ", b[worst], ", off by ", most / tolerance,
              " tolerances");
}

/// Checks all that a layer computed.
template <class T>
void check_equal(const std::string& what, const Computed<T>& got, const Computed<double>& want, double tolerance) {
  const auto check = [&](const char* name, const std::vector<T>& g, const std::vector<double>& w) {
    const std::string wrong = difference(g, w, tolerance);
    CHECK_MESSAGE(wrong.empty(), what, ": ", name, " ", wrong);
  };
  check("y", got.y, want.y);
  if (!got.dx.empty()) check("dx", got.dx, want.dx);
  check("dw", got.dw, want.dw);
  check("db", got.db, want.db);
}

inline constexpr Layout over_ndhw = place(Dim::n, Dim::d, Dim::h, Dim::w);

/// Calls f(grid) for every grid of four axes that the ranks can form.
template <class F> void on_every_grid(const Communicator& c, F&& f) {
  for (const auto& sizes : factorisations(c.size(), 4)) f(AnyGrid(c, sizes));
}

} // namespace tessera::test
