#include "alone.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/backend/emulated.hpp>
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
/// The cell whose value stands at i.
Index<5> source(Index<5> i, const Extents<5>& e, const Stencil& s) {
  for (int k = 0; k < 3; ++k) i[2 + k] = cell_at(i[2 + k], e[2 + k], s[k].mode);
  return i;
}
} // namespace

namespace {
/// Transposed convolution as it scatters: each input adds its window of weights to the output.
Computed<double> transposed_by_definition(const Alone& a) {
  const Stencil& s = a.spec.stencil;
  const Block<double> x(a.in, a.x), w(a.weights(), a.w);
  Block<double> dy(a.out(), a.dy), y(a.out()), dx(a.in), dw(a.weights());
  const auto for_each_tap = [&](const auto& f) {
    for_each_index(whole(a.in), [&](const Index<5>& q) {
      for_each_index(whole(a.weights()), [&](const Index<5>& k) {
        if (k[0] != q[1]) return;
        Index<5> o{{q[0], k[1], 0, 0, 0}};
        for (int i = 0; i < 3; ++i) o[2 + i] = q[2 + i] * s[i].stride - s[i].below + k[2 + i] * s[i].dilation;
        if (whole(y.e).contains(o)) f(q, k, o);
      });
    });
  };
  for_each_tap([&](const auto& q, const auto& k, const auto& o) { y.view()[o] += w.view()[k] * x.view()[q]; });
  Computed<double> c;
  c.db.resize(a.b.size());
  for_each_index(whole(y.e), [&](const Index<5>& o) {
    double& v = y.view()[o];
    v = kernel::activate(a.fused.kind, a.fused.slope, v + (a.b.empty() ? 0 : a.b[std::size_t(o[1])]));
    dy.view()[o] *= kernel::activation_slope(a.fused.kind, a.fused.slope, v);
    if (!a.b.empty()) c.db[std::size_t(o[1])] += dy.view()[o];
  });
  for_each_tap([&](const auto& q, const auto& k, const auto& o) {
    dx.view()[q] += w.view()[k] * dy.view()[o];
    dw.view()[k] += x.view()[q] * dy.view()[o];
  });
  c.y = y.logical(), c.dx = dx.logical(), c.dw = dw.logical();
  return c;
}
} // namespace

Computed<double> by_definition(const Alone& a) {
  if (a.transposed()) return transposed_by_definition(a);
  const Stencil& s = a.spec.stencil;
  const Block<double> x(a.in, a.x), w(a.weights(), a.w);
  Block<double> dy(a.out(), a.dy), y(a.out()), dw(a.weights());
  Box<5> around = whole(a.in);
  for (int i = 0; i < 3; ++i) {
    if (s[i].mode.below != Padding::zeros) around.lo[2 + i] -= s[i].below;
    if (s[i].mode.above != Padding::zeros) around.hi[2 + i] += s[i].above;
  }
  Block<double> xa(around.extents()), dxa(around.extents()), dx(a.in);
  for_each_index(whole(xa.e), [&](const Index<5>& i) { xa.view()[i] = x.view()[source(i + around.lo, a.in, s)]; });
  Computed<double> c;
  if (a.is_conv()) {
    kernel::Conv p{.n = a.in[0], .ci = a.in[1], .co = a.spec.channels};
    p.k = s.kernel(), p.stride = s.strides(), p.dilation = s.dilations();
    p.act = a.fused.kind, p.slope = a.fused.slope;
    p.groups = a.spec.conv_groups;
    for (int i = 0; i < 3; ++i) {
      p.in[i] = xa.e[2 + i], p.out[i] = y.e[2 + i];
      if (s[i].mode.below == Padding::zeros) p.below[i] = s[i].below;
      if (s[i].mode.above == Padding::zeros) p.above[i] = s[i].above;
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
      p.in[i] = p.global[i] = xa.e[2 + i], p.out[i] = y.e[2 + i]; // a pooling of the padded tensor
      p.padding[i] = s[i].mode.below == Padding::zeros ? s[i].below : 0;
      p.padding_above[i] = s[i].mode.above == Padding::zeros ? s[i].above : 0;
    }
    kernel::reference::pooling<double>(p, xa.view(), y.view());
    kernel::reference::pooling_backward<double>(p, xa.view(), dy.view(), dxa.view(), a.fused.kind, a.fused.slope);
  }
  for_each_index(whole(xa.e), [&](const Index<5>& i) { dx.view()[source(i + around.lo, a.in, s)] += dxa.view()[i]; });
  c.y = y.logical(), c.dx = dx.logical(), c.dw = dw.logical();
  return c;
}

template <class T, class Backend> OnGrid<T> on_grid(const AnyGrid& grid, const Alone& a, const Lie& lie) {
  constexpr T poison = std::numeric_limits<T>::quiet_NaN();
  const Map<5> out = a.transposed() ? transposed_output_map(lie.in, a.spec.stencil, a.spec.output_padding, a.out()[1])
                                    : output_map(lie.in, a.spec.stencil, a.out()[1]);
  const auto layer = make_layer<T, Backend>(a.spec, a.is_conv() ? a.fused : InputActivation{}, grid, lie.in, out);
  if (!a.is_conv() && a.fused.kind != kernel::Activation::none) CHECK(layer->absorb(a.fused));

  const Block<T> w(a.weights(), a.w);
  const std::vector<T> b(a.b.begin(), a.b.end());
  Block<T> dw(a.weights(), poison);
  std::vector<T> db(b.size(), poison);

  using Space = typename Backend::space;
  const auto there = [](const std::vector<T>& v) {
    Buffer<T, Space> m(v.size());
    write_from_host<Space>(m.data(), v.data(), v.size());
    return m;
  };
  Buffer<T, Space> weights = there(w.v), biases = there(b), of_weights = there(dw.v), of_biases = there(db);
  const auto all = [](auto& m) { return std::span(m.data(), m.size()); };
  Pass<T> pass;
  pass.weights = all(weights), pass.biases = all(biases);
  pass.weight_gradients = all(of_weights), pass.bias_gradients = all(of_biases);
  pass.poke = [&grid] { grid.world().progress(); };
  int ready = 0;
  pass.gradients_ready = [&ready] { ++ready; };
  OnGrid<T> c;
  static_cast<Computed<T>&>(c) = through(*layer, pass, grid, lie.in, out, a.x, a.dy, lie.margin, lie.dx);
  CHECK(ready == (a.is_conv() ? 1 : 0));
  dw.v = read_back<Space>(all(of_weights)), db = read_back<Space>(all(of_biases));
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
template OnGrid<double> on_grid<double, emulated>(const AnyGrid&, const Alone&, const Lie&);

} // namespace tessera::test
