// support/convolutions.hpp: the convolution problems that a planned network gives to its kernels.
#pragma once

#include <algorithm>
#include <tessera/net/plan.hpp>

namespace tessera::test {

/// The problems of the convolutions on rank r, each once: whole blocks, interiors and rims.
inline std::vector<kernel::Conv> convolutions(const NetworkPlan& plan, int r) {
  std::vector<kernel::Conv> all;
  for (const PlanStep& s : plan.steps()) {
    if (s.spec.kind != LayerKind::conv) continue;
    const Box<5> mine = s.out.box(r);
    const OverlapParts parts = overlap_parts(mine, s.in.box(r), s.spec.stencil, s.in.extents());
    std::vector<Box<5>> boxes{mine, parts.interior};
    boxes.insert(boxes.end(), parts.rims.begin(), parts.rims.end());
    for (const Box<5>& out : boxes) {
      const LocalWindow local = local_window(out, s.spec.stencil, s.in.extents());
      kernel::Conv p{.n = out.extent(0), .ci = s.in.extents()[1], .co = s.out.extents()[1]};
      for (int i = 0; i < 3; ++i) p.in[i] = local.input.extent(2 + i), p.out[i] = out.extent(2 + i);
      p.k = s.spec.stencil.kernel(), p.stride = s.spec.stencil.strides(), p.dilation = s.spec.stencil.dilations();
      p.below = local.below, p.above = local.above;
      p.act = s.fused.kind, p.slope = s.fused.slope;
      if (product(p.in) > 0 && product(p.out) > 0 && std::ranges::find(all, p) == all.end()) all.push_back(p);
    }
  }
  return all;
}

} // namespace tessera::test
