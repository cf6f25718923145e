#include "alone.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/layer/make.hpp>

namespace tessera::test {

namespace {
/// Values in logical order as a dense channels-last block, and back.
template <class T> struct Block {
  Extents<5> e;
  std::vector<T> v;
  explicit Block(const Extents<5>& extents, T value = T{}) : e(extents), v(std::size_t(product(extents)), value) {}
  template <class U> Block(const Extents<5>& extents, const std::vector<U>& logical) : Block(extents) {
    std::size_t k = 0;
    for_each_index(whole(e), [&](const Index<5>& i) { view()[i] = static_cast<T>(logical[k++]); });
  }
  View<T, 5> view() { return {v.data(), e}; }
  View<const T, 5> view() const { return {v.data(), e}; }
  std::vector<T> logical() const {
    std::vector<T> l;
    for_each_index(whole(e), [&](const Index<5>& i) { l.push_back(view()[i]); });
    return l;
  }
};
inline Index<5> wrapped(Index<5> i, const Extents<5>& e) {
  for (int k = 0; k < 5; ++k) i[k] = ((i[k] % e[k]) + e[k]) % e[k];
  return i;
}
} // namespace

Computed<double> by_definition(const Alone& a) {

  const Stencil& s = a.spec.stencil;
  const Block<double> x(a.in, a.x), w(a.weights(), a.w);
  Block<double> dy(a.out(), a.dy), y(a.out()), dw(a.weights());
  Box<5> around = whole(a.in);
  for (int i = 0; i < 3; ++i)
    if (s[i].mode == Padding::periodic) around.lo[2 + i] -= s[i].below, around.hi[2 + i] += s[i].above;
  Block<double> xa(around.extents()), dxa(around.extents()), dx(a.in);
  for_each_index(whole(xa.e), [&](const Index<5>& i) { xa.view()[i] = x.view()[wrapped(i + around.lo, a.in)]; });
  Computed<double> c;
  if (a.is_conv()) {
    kernel::Conv p{.n = a.in[0], .ci = a.in[1], .co = a.spec.channels};
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    p.act = a.fused.kind, p.slope = a.fused.slope;
    p.groups = a.spec.conv_groups;
    for (int i = 0; i < 3; ++i) {
      p.in[i] = xa.e[2 + i], p.out[i] = y.e[2 + i];
      if (s[i].mode == Padding::zeros) p.below[i] = s[i].below, p.above[i] = s[i].above;
    }
    kernel::reference::convolution<double>(p, xa.view(), w.view(), a.b.empty() ? nullptr : a.b.data(), y.view());
    for (std::size_t i = 0; i < y.v.size(); ++i)
      dy.v[i] *= kernel::activation_slope(a.fused.kind, a.fused.slope, y.v[i]);
    kernel::reference::convolution_backward_data<double>(p, dy.view(), w.view(), dxa.view());
    c.db.resize(a.b.size());
    kernel::reference::convolution_backward_weights<double>(
        p, xa.view(), dy.view(), dw.view(), a.b.empty() ? nullptr : c.db.data(), kernel::Gradient::overwrite);
  } else {
    kernel::Pooling p{.kind = a.spec.pool, .n = a.in[0], .c = a.in[1]};
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    p.count_padding = a.spec.padding_counts == PaddingCounts::yes;
    for (int i = 0; i < 3; ++i) {
      p.in[i] = xa.e[2 + i], p.out[i] = y.e[2 + i], p.in_origin[i] = around.lo[2 + i], p.global[i] = a.in[2 + i];
      p.padding[i] = s[i].below, p.padding_above[i] = s[i].above, p.periodic[i] = s[i].mode == Padding::periodic;
    }
    kernel::reference::pooling<double>(p, xa.view(), y.view());
    kernel::reference::pooling_backward<double>(p, xa.view(), dy.view(), dxa.view(), a.fused.kind, a.fused.slope);
  }
  for_each_index(whole(xa.e), [&](const Index<5>& i) { dx.view()[wrapped(i + around.lo, a.in)] += dxa.view()[i]; });
  c.y = y.logical(), c.dx = dx.logical(), c.dw = dw.logical();
  return c;
}

template <class T, class Backend> OnGrid<T> on_grid(const AnyGrid& grid, const Alone& a, const Lie& lie) {
  constexpr T poison = std::numeric_limits<T>::quiet_NaN();
  const Map<5> out = output_map(lie.in, a.spec.stencil, a.out()[1]);
  const auto layer = make_layer<T, Backend>(a.spec, a.is_conv() ? a.fused : InputActivation{}, grid, lie.in, out);
  if (!a.is_conv() && a.fused.kind != kernel::Activation::none) CHECK(layer->absorb(a.fused));

  const Block<T> w(a.weights(), a.w);
  const std::vector<T> b(a.b.begin(), a.b.end());
  Block<T> dw(a.weights(), poison);
  std::vector<T> db(b.size(), poison);

  Pass<T> pass;
  pass.weights = w.v, pass.biases = b, pass.weight_gradients = dw.v, pass.bias_gradients = db;
  pass.poke = [&grid] { grid.world().progress(); };
  int ready = 0;
  pass.gradients_ready = [&ready] { ++ready; };
  OnGrid<T> c;
  static_cast<Computed<T>&>(c) = through(*layer, pass, grid, lie.in, out, a.x, a.dy, lie.margin, lie.dx);
  CHECK(ready == (a.is_conv() ? 1 : 0));
  if (a.is_conv()) {
    const Communicator& ranks = grid.over(out.layout().mask(Placement::Kind::split));
    ranks.iall_reduce(std::span<T>(dw.v)).wait();
    ranks.iall_reduce(std::span<T>(db)).wait();
  }
  c.dw = dw.logical(), c.db = db;
  c.traffic = layer->traffic();
  return c;
}

template OnGrid<double> on_grid<double, reference>(const AnyGrid&, const Alone&, const Lie&);
template OnGrid<double> on_grid<double, cpu>(const AnyGrid&, const Alone&, const Lie&);
template OnGrid<float> on_grid<float, cpu>(const AnyGrid&, const Alone&, const Lie&);

} // namespace tessera::test
