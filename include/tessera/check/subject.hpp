// check/subject.hpp: Subject, a layer as the checks see it: where it can be laid out, and how one is made.
//
// subject_of() makes it from a layer of the library or from a user's. For a class derived from Layer, fill one in.
//
// May know: everything.
// Example: check::Subject s = check::subject_of<reference>(conv(8), {});
#pragma once

#include <functional>
#include <tessera/check/local.hpp>
#include <tessera/layer/make.hpp>
#include <tessera/net/plan.hpp>

namespace tessera::check {

/// What a layer is tried with. What is left open is chosen to suit the layer.
struct LayerOptions {
  Extents<5> input{};            ///< n, c, d, h, w
  std::vector<Layout> layouts{}; ///< of the input; each is tried on every grid of its number of axes
  std::vector<int> ranks{1, 2, 3, 4, 6, 8};
  std::uint64_t seed = 1;
  double equal = 1e-10;   ///< allowed between any grid and one rank, relative to max(1, value)
  double gradient = 1e-6; ///< allowed between gradients and differences
};

struct Subject {
  using Made = std::unique_ptr<Layer<double>>;

  std::string name;
  std::vector<Layout> layouts;
  Extents<5> weights{};
  long biases = 0, state = 0; ///< state: means, then variances, as batch normalisation keeps
  /// The input and output maps to try on a grid; the first is what one rank uses.
  std::function<std::vector<std::pair<Map<5>, Map<5>>>(const GridShape&, const Layout&)> maps;
  std::function<Made(const AnyGrid&, const Map<5>& in, const Map<5>& out)> make;
  /// What can be checked without a grid; throws check_error.
  std::function<void()> alone = [] {};

  std::size_t weight_count() const { return weights[0] ? std::size_t(product(weights)) : 0; }
};

namespace detail {

/// Blocks that grow from one to the next; the first are thin or empty.
inline Partition growing(long extent, int parts) {
  std::vector<long> sizes;
  long last = 0;
  for (long p = 1; p <= parts; ++p) {
    const long cut = extent * p * p / (long(parts) * parts);
    sizes.push_back(cut - last);
    last = cut;
  }
  return Partition::from_sizes(sizes);
}
inline Map<5> growing(const Map<5>& m) {
  std::array<Partition, 5> parts;
  for (int k = 0; k < 5; ++k) parts[std::size_t(k)] = growing(m.extents()[k], m.partition(k).parts());
  return {m.layout(), m.grid(), m.extents(), parts};
}

inline Layout first_axes(Layout l, int axes) {
  for (int a = axes; a < l.axes; ++a) l[a] = Placement();
  l.axes = axes;
  return l;
}

/// Options with everything open filled in for a layer.
inline LayerOptions completed(LayerOptions o, const LayerSpec& s) {
  const bool dense = s.kind == LayerKind::dense, flat = dense || s.kind == LayerKind::flatten;
  if (o.input == Extents<5>{}) {
    o.input = dense ? Extents<5>{{5, 6, 1, 1, 1}} : Extents<5>{{2, 2, 6, 5, 4}};
    for (int i = 0; i < 3; ++i) o.input[2 + i] = std::max(o.input[2 + i], dense ? 1 : s.stencil[i].span() + 1);
  }
  if (o.layouts.empty()) {
    if (flat)
      o.layouts = {place(Dim::n, Dim::n, Dim::n, Dim::n), place(Dim::n, Placement(), Dim::n, Placement())};
    else
      o.layouts = {place(Dim::n, Dim::d, Dim::h, Dim::w), place(Placement(), Dim::w, Dim::d, Dim::d)};
    if (s.kind == LayerKind::redistribute)
      for (Layout& l : o.layouts) l = first_axes(l, s.layout.axes);
  }
  return o;
}

/// All of a subject but make() and alone().
template <class Part> Subject described(const Part& part, const LayerSpec& spec, const LayerOptions& o) {
  Subject s;
  s.name = spec.name(), s.layouts = o.layouts;
  const Input input{int(o.input[1]), int(o.input[2]), int(o.input[3]), int(o.input[4])};
  const auto description_for = [part, input](const Layout& l) {
    if constexpr (std::is_same_v<Part, LayerSpec>)
      return describe({part}, input, l);
    else
      return describe(seq(part), input, l);
  };
  const NetworkDescription d = description_for(o.layouts.front());
  s.weights = d.infos.front().weights, s.biases = d.infos.front().biases, s.state = d.infos.front().state;
  s.maps = [spec, description_for, samples = o.input[0]](const GridShape& shape, const Layout& l) {
    const NetworkPlan plan(shape, description_for(l), samples);
    std::vector<std::pair<Map<5>, Map<5>>> all{{plan.input(), plan.output()}};
    const Map<5> uneven = growing(plan.input());
    switch (spec.kind) { // others have boundaries of their own
    case LayerKind::conv:
    case LayerKind::pool:
    case LayerKind::user: all.emplace_back(uneven, output_map(uneven, spec.stencil, plan.output().extents()[1])); break;
    case LayerKind::upsample: all.emplace_back(uneven, upsampled_map(uneven, spec.scales())); break;
    case LayerKind::activation:
    case LayerKind::batch_norm:
    case LayerKind::dropout: all.emplace_back(uneven, uneven); break;
    default: break;
    }
    return all;
  };
  return s;
}

} // namespace detail

/// A layer of the library.
template <class Backend> Subject subject_of(const LayerSpec& spec, const LayerOptions& options) {
  Subject s = detail::described(spec, spec, detail::completed(options, spec));
  s.make = [spec](const AnyGrid& grid, const Map<5>& in, const Map<5>& out) {
    return make_layer<double, Backend>(spec, {}, grid, in, out);
  };
  return s;
}
/// A layer of the user's own.
template <class Backend, LocalLayer L> Subject subject_of(const L& layer, const LayerOptions& options) {
  const LayerSpec spec = seq(layer).layers[0];
  const LayerOptions o = detail::completed(options, spec);
  Subject s = detail::described(layer, spec, o);
  s.name = detail::type_name<L>();
  s.make = [layer, parameters = s.weights](const AnyGrid& grid, const Map<5>& in, const Map<5>& out) {
    return std::make_unique<UserLayer<double, Backend, L>>(layer, grid, in, out, parameters);
  };
  s.alone = [layer, s, o] {
    GridShape one;
    one.axes = o.layouts.front().axes;
    for (int a = 0; a < one.axes; ++a) one.size[std::size_t(a)] = 1;
    const auto maps = s.maps(one, o.layouts.front());
    local_contract(layer, s.name, maps.front().first.extents(), maps.front().second.extents(), s.weights, o.seed);
  };
  return s;
}

} // namespace tessera::check
