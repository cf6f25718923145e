// layer/upsample.hpp: UpsampleLayer, larger volumes by nearest or trilinear interpolation, exact on any grid.
//
// Block boundaries of the output are those of the input times the scale. Nearest reads the rank's own cells only;
// trilinear reads one neighbour on each side, found from global indices, and its gradient is added into the owners.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: UpsampleLayer<float, cpu> l(upsample(2).trilinear(), grid, x.map(), upsampled_map(x.map(), {{2, 2, 2}}));
#pragma once

#include <tessera/kernel/check.hpp>
#include <tessera/layer/layer.hpp>

namespace tessera {

/// The map of an upsampling's output: the same layout, all extents and block boundaries of the volume times `scale`.
inline Map<5> upsampled_map(const Map<5>& in, const Index<3>& scale) {
  std::array<Partition, 5> parts = in.partitions();
  Extents<5> e = in.extents();
  for (int i = 0; i < 3; ++i) {
    TESSERA_REQUIRE(scale[i] >= 1, "upsampled_map: scale ", scale, " must be at least 1");
    std::vector<long> sizes = in.partition(2 + i).sizes();
    for (long& s : sizes) s *= scale[i];
    parts[std::size_t(2 + i)] = Partition::from_sizes(sizes);
    e[2 + i] *= scale[i];
  }
  return Map<5>(in.layout(), in.grid(), e, std::move(parts));
}

/// The local problem that makes the outputs `out` from the cells `in`, of a tensor of extents `global`.
inline kernel::Upsampling upsampling_problem(const LayerSpec& s, const Box<5>& out, const Box<5>& in,
                                             const Extents<5>& global) {
  kernel::Upsampling p;
  p.kind = s.interpolation, p.align_corners = s.align_corners == AlignCorners::yes;
  p.n = out.extent(0), p.c = out.extent(1), p.scale = s.scales();
  for (int i = 0; i < 3; ++i) {
    p.in[i] = in.extent(2 + i), p.out[i] = out.extent(2 + i);
    p.in_origin[i] = in.lo[2 + i], p.out_origin[i] = out.lo[2 + i];
    p.global[i] = global[2 + i];
  }
  return p;
}

/// The cells that the outputs `out` are made of.
inline Box<5> upsampling_reads(const LayerSpec& s, const Box<5>& out, const Extents<5>& global) {
  Box<5> b = out;
  if (out.empty()) {
    b.hi = b.lo;
    return b;
  }
  const kernel::Upsampling p = upsampling_problem(s, out, out, global);
  for (int i = 0; i < 3; ++i) {
    b.lo[2 + i] = kernel::blend_of(p, i, out.lo[2 + i]).first;
    b.hi[2 + i] = kernel::blend_of(p, i, out.hi[2 + i] - 1).second + 1;
  }
  return b;
}
/// What rank r keeps of the input for it: its own cells and those.
inline Box<5> upsampling_need(const LayerSpec& s, const Map<5>& in, const Map<5>& out, int r) {
  const Box<5> mine = in.box(r), reads = upsampling_reads(s, out.box(r), in.extents());
  return reads.empty() ? mine : hull(mine, reads);
}

template <class T, class Backend> class UpsampleLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  UpsampleLayer(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& in, const Map<5>& out)
      : spec_(spec), in_(in), out_(out.box(grid.rank())),
        halo_(grid, in, [&](int r) { return upsampling_need(spec, in, out, r); }) {
    // The outputs made of own cells, while the halo travels; all of them if there is none.
    const Box<5> mine = in.box(grid.rank());
    interior_ = out_;
    if (out_.empty() || mine.contains(halo_.need())) return;
    for (int k = 2; k < 5; ++k) {
      const auto inside = [&](long q) {
        Box<5> one = out_;
        one.lo[k] = q, one.hi[k] = q + 1;
        const Box<5> r = upsampling_reads(spec, one, in.extents());
        return r.lo[k] >= mine.lo[k] && r.hi[k] <= mine.hi[k];
      };
      while (interior_.lo[k] < interior_.hi[k] && !inside(interior_.lo[k])) ++interior_.lo[k];
      while (interior_.hi[k] > interior_.lo[k] && !inside(interior_.hi[k] - 1)) --interior_.hi[k];
    }
    if (interior_.empty())
      rims_ = {out_};
    else
      rims_ = shell(out_, interior_);
  }

  Box<5> need() const override { return halo_.need(); }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    halo_.start(x);
    run(interior_, x, y);
    pass.poke();
    halo_.finish();
    for (const Box<5>& rim : rims_) run(rim, x, y);
  }

  void backward(Pass<T>& pass, Field&, const Field&, Field& dy, Field* dx) override {
    if (!dx) return;
    const Box<5> need = halo_.need();
    if (!need.empty())
      Backend::upsample_backward(upsampling_problem(spec_, out_, need, in_.extents()), std::as_const(dy).view(),
                                 dx->view(need));
    halo_.start_adjoint(*dx);
    pass.poke();
    halo_.finish();
  }

  LayerTraffic traffic() const override { return {halo_.traffic(), halo_.adjoint_traffic(), 0}; }

private:
  void run(const Box<5>& out, const Field& x, Field& y) const {
    if (out.empty()) return;
    const Box<5> in = upsampling_reads(spec_, out, in_.extents());
    Backend::upsample_forward(upsampling_problem(spec_, out, in, in_.extents()), x.view(in), y.view(out));
  }

  LayerSpec spec_;
  Map<5> in_;
  Box<5> out_;
  Halo<T, 5, Space> halo_;
  Box<5> interior_;
  std::vector<Box<5>> rims_;
};

} // namespace tessera
