// The walk through a network: shapes, parameters, operations and faults, all when compiling.
#include <cosmoflow/model.hpp>
#include <doctest/doctest.h>
#include <tessera/net/graph.hpp>
#include <tessera/net/walk.hpp>

using namespace tessera;
using namespace tessera::names;

namespace {

struct Keep { // a user's layer that keeps channels
  constexpr Stencil stencil() const { return window(3).same(); }
};
struct Double { // one that doubles them, with a weight for each
  constexpr Stencil stencil() const { return window(2).strided(2); }
  constexpr int channels(int in) const { return 2 * in; }
  constexpr Extents<5> parameters(int in) const { return {{2 * in, 1, 1, 1, 1}}; }
};

constexpr Input cube{.c = 2, .d = 8, .h = 8, .w = 8};
constexpr Layout spatial = place(n, d);

constexpr auto fault_of(const auto& net, const Layout& layout = spatial, const Input& input = cube) {
  return static_cast<WalkFault>(walk(net, input, layout));
}
constexpr bool is(const WalkFault& f, Fault fault, int layer, Dim dim = Dim::n, long need = 0, long have = 0) {
  return f.fault == fault && f.layer == layer && f.dim == dim && f.need == need && f.have == have;
}

// Each fault, at its layer, with its dim and its numbers.
static_assert(is(fault_of(seq()), Fault::empty_network, -1));
static_assert(is(fault_of(seq(conv(2), leaky_relu(0.1), max_pool(2))), Fault::none, -1));
static_assert(is(fault_of(seq(conv(2), conv(2, window(3).pad(-1)))), Fault::bad_window, 1));
static_assert(is(fault_of(seq(average_pool(window(3).strided(0)))), Fault::bad_window, 0));
static_assert(is(fault_of(seq(max_pool(window(1, 1, 2).dilated(0)))), Fault::bad_window, 0));
static_assert(is(fault_of(seq(conv(2), max_pool(4), max_pool(4))), Fault::window_larger_than_input, 2, d, 4, 2));
static_assert(is(fault_of(seq(conv(2, window(1, 5, 1).dilated(1, 3, 1).pad(h, 1, 2)))), Fault::window_larger_than_input,
                 0, h, 13, 11));
static_assert(is(fault_of(seq(conv(2, window(1, 1, 9)))), Fault::window_larger_than_input, 0, w, 9, 8));
static_assert(is(fault_of(seq(conv(1, window(3).pad(w, 9, 1).periodic()))), Fault::periodic_padding_too_wide, 0, w, 9,
                 8));
static_assert(is(fault_of(seq(conv(2), max_pool(window(3).strided(2).pad(1).periodic().ceil()))),
                 Fault::ceil_without_zeros, 1, d));
static_assert(is(fault_of(seq(conv(1, window(3).pad(w, 7, 8).padded_with(Padding::reflect)))),
                 Fault::reflecting_padding_too_wide, 0, w, 8, 7));
static_assert(is(fault_of(seq(conv(1, window(3).pad(w, 9, 7).padded_with(w, Padding::replicate, Padding::reflect)))),
                 Fault::none, -1));
static_assert(is(fault_of(seq(conv(2), relu(), conv(0))), Fault::no_channels, 2));
static_assert(is(fault_of(seq(to(place(n, rep)), flatten(), dense(-3))), Fault::no_channels, 2));
static_assert(is(fault_of(seq(conv(6), conv(4).grouped(4))), Fault::conv_groups_do_not_divide, 1));
static_assert(is(fault_of(seq(conv(6), conv(8).grouped(3))), Fault::conv_groups_do_not_divide, 1));
static_assert(is(fault_of(seq(conv(6).grouped(0))), Fault::conv_groups_do_not_divide, 0));
static_assert(is(fault_of(seq(conv(2), conv_transpose(4, window(3)).grouped(2))), Fault::groups_without_conv, 1));
static_assert(is(fault_of(seq(conv_transpose(4, window(3).ceil()))), Fault::ceil_without_window, 0, d));
static_assert(is(fault_of(seq(conv(2), upsample(2, 0, 1))), Fault::bad_scale, 1, h));
static_assert(is(fault_of(seq(conv(2), flatten())), Fault::flatten_splits_sample, 1));
static_assert(is(fault_of(seq(conv(2), to(place(n, n)), dense(3))), Fault::dense_without_flatten, 2));
static_assert(is(fault_of(seq(dropout(0))), Fault::bad_keep_probability, 0));
static_assert(is(fault_of(seq(dropout(1), dropout(1.5))), Fault::bad_keep_probability, 1));
static_assert(is(fault_of(seq(conv(1), leaky_relu(-0.1))), Fault::negative_slope, 1));
static_assert(is(fault_of(seq(conv(1), elu(-0.1))), Fault::negative_alpha, 1));
static_assert(is(fault_of(seq(conv(1), elu(0), gelu(), silu(), sigmoid(), tanh(), softmax())), Fault::none, -1));
static_assert(is(fault_of(seq(conv(1), batch_norm({.epsilon = 0}))), Fault::bad_normalisation, 1));
static_assert(is(fault_of(seq(batch_norm({.momentum = 1.5}))), Fault::bad_normalisation, 0));
static_assert(is(fault_of(seq(conv(2), batch_norm({.over = grid_axes(0, 2)}))), Fault::no_such_axis, 1));
static_assert(is(fault_of(seq(batch_norm({.over = grid_axes(-1)}))), Fault::no_such_axis, 0));
static_assert(is(fault_of(seq(batch_norm({.over = grid_axes(1)}))), Fault::none, -1));
static_assert(is(fault_of(seq(conv(8), group_norm(3))), Fault::groups_do_not_divide, 1, c, 3, 8));
static_assert(is(fault_of(seq(conv(8), group_norm(0))), Fault::groups_do_not_divide, 1, c, 1, 8));
static_assert(is(fault_of(seq(conv(8), group_norm(-1))), Fault::groups_do_not_divide, 1, c, 1, 8));
static_assert(is(fault_of(seq(conv(8), group_norm(4, {.epsilon = 0}))), Fault::bad_normalisation, 1));
static_assert(is(fault_of(seq(max_pool(8), group_norm(2))), Fault::one_value_per_group, 1));
static_assert(is(fault_of(seq(max_pool(8), instance_norm())), Fault::one_value_per_group, 1));
static_assert(is(fault_of(seq(max_pool(8), layer_norm())), Fault::none, -1));
static_assert(is(fault_of(seq(conv(8), group_norm(8), instance_norm(), layer_norm())), Fault::none, -1));
static_assert(walk(seq(conv(8, window(1)), batch_norm(), batch_norm({.affine = Affine::no}), group_norm(2),
                       instance_norm({.affine = Affine::no}), layer_norm()),
                   cube, spatial)
                  .parameters() == 2 * 8 + 3 * 2 * 8);
static_assert(is(fault_of(seq(conv(1), to(place(n)))), Fault::another_number_of_axes, 1));
static_assert(is(fault_of(seq(conv(1), to(place(n, sum)))), Fault::pending_sum, 1));
static_assert(is(fault_of(seq(conv(1), to(place(n, c)))), Fault::split_channel, 1));
static_assert(is(fault_of(seq(conv(1)), place(n, sum)), Fault::pending_sum, -1));
static_assert(is(fault_of(seq(conv(1)), place(c, n)), Fault::split_channel, -1));
static_assert(is(fault_of(seq(LayerSpec{.kind = LayerKind::user})), Fault::unknown_layer, 0));
// Softmax needs the channels of a cell together, whatever the layers before it allow.
constexpr Fault softmax_on(const Layout& layout) {
  WalkFault fault;
  detail::infer(
      softmax(), {{{4, 8, 8, 8}}, layout}, {}, [](int, LayerInfo&) {}, fault);
  return fault.fault;
}
static_assert(group_norm(2).name() == std::string_view("group_norm") &&
              layer_norm().name() == std::string_view("layer_norm") &&
              instance_norm().name() == std::string_view("instance_norm"));
static_assert(softmax_on(place(n, c)) == Fault::split_channel && softmax_on(place(n, d)) == Fault::none);
// The first fault counts.
static_assert(is(fault_of(seq(conv(2), max_pool(16), conv(0))), Fault::window_larger_than_input, 1, d, 16, 8));

// Sequences in sequences are one array; users' layers keep their numbers.
constexpr auto nested = seq(seq(conv(2), Keep{}), repeat<2>(seq(relu(), Double{})), seq(), Keep{});
static_assert(nested.size() == 7);
static_assert(nested.layers[1].user == 0 && nested.layers[3].user == 1 && nested.layers[5].user == 2 &&
              nested.layers[6].user == 3);
constexpr auto walked = walk(nested, cube, spatial);
static_assert(walked.fault == Fault::none);
static_assert(walked.layers[3].out == Extents<4>{{4, 4, 4, 4}} && walked.layers[5].out == Extents<4>{{8, 2, 2, 2}});
static_assert(walked.layers[6].out == Extents<4>{{8, 2, 2, 2}});
static_assert(walked.parameters() == 2 * 2 * 27 + 4 + 8);
// A chain by hand: 8 -> (8 + 3 - 2 * 2 - 1) / 3 + 1 = 3.
constexpr auto chain =
    walk(seq(conv(5, window(3).dilated(2).pad(1, 2).strided(3)).with_bias(), to(place(n, rep)), flatten(), dense(10)),
         cube, spatial);
static_assert(chain.layers[0].out == Extents<4>{{5, 3, 3, 3}} && chain.layers[2].out == Extents<4>{{135, 1, 1, 1}});
static_assert(chain.layers[0].layout_out == spatial && chain.layers[1].layout_out == place(n, rep));
static_assert(chain.parameters() == 5 * 2 * 27 + 5 + 10 * 135 + 10);
static_assert(chain.layers[0].flop == 2.0 * 5 * 2 * 27 * 27 && chain.layers[3].flop == 2.0 * 10 * 135);

// Groups: weights and operations by a factor fewer; 6 channels each by itself, then 6 -> 12 in 3 groups.
constexpr auto in_groups =
    walk(seq(conv(6), conv(6).grouped(6).with_bias(), conv(12, window(1)).grouped(3)), cube, spatial);
static_assert(in_groups.fault == Fault::none);
static_assert(in_groups.layers[1].weights == Extents<5>{{6, 1, 3, 3, 3}} &&
              in_groups.layers[1].parameters() == 6 * 27 + 6);
static_assert(in_groups.layers[1].flop == 2.0 * 6 * 27 * 512);
static_assert(in_groups.layers[2].weights == Extents<5>{{12, 2, 1, 1, 1}} &&
              in_groups.layers[2].flop == 2.0 * 24 * 512);

// Upsampling and global pools, which replicate what split the volume.
constexpr auto up_and_down = walk(
    seq(upsample(3, 1, 2), conv(4), upsample(2).trilinear(), global_average_pool(), dense(3)), cube, place(n, d, w));
static_assert(up_and_down.fault == Fault::none);
static_assert(up_and_down.layers[0].out == Extents<4>{{2, 24, 8, 16}});
static_assert(up_and_down.layers[2].out == Extents<4>{{4, 48, 16, 32}} &&
              up_and_down.layers[2].layout_out == place(n, d, w));
static_assert(up_and_down.layers[3].out == Extents<4>{{4, 1, 1, 1}} &&
              up_and_down.layers[3].layout_out == place(n, rep, rep));
// One window more where 8 - 3 leaves a rest.
static_assert(walk(seq(max_pool(window(3).strided(2).ceil())), cube, spatial).layers[0].out ==
              Extents<4>{{2, 4, 4, 4}});

// CosmoFlow by the table of its paper.
template <int W> constexpr auto cosmoflow_walk = walk(CosmoFlow<W>::net, CosmoFlow<W>::input, CosmoFlow<W>::layout);
template <int W> constexpr double convolutions() {
  double flop = 0;
  for (std::size_t k = 0; k < cosmoflow_walk<W>.layers.size(); ++k)
    if (CosmoFlow<W>::net.layers[k].kind == LayerKind::conv) flop += cosmoflow_walk<W>.layers[k].flop;
  return flop;
}
/// Side and channels behind each convolution and each pooling.
template <int W> constexpr bool passes_through(std::initializer_list<std::pair<long, long>> want) {
  auto next = want.begin();
  for (std::size_t k = 0; k < cosmoflow_walk<W>.layers.size(); ++k) {
    const LayerKind kind = CosmoFlow<W>::net.layers[k].kind;
    if (kind != LayerKind::conv && kind != LayerKind::pool) continue;
    const Extents<4>& o = cosmoflow_walk<W>.layers[k].out;
    if (next == want.end() || o != Extents<4>{{next->second, next->first, next->first, next->first}}) return false;
    ++next;
  }
  return next == want.end();
}
static_assert(cosmoflow_walk<128>.parameters() == 9'437'636);
static_assert(cosmoflow_walk<256>.parameters() == 9'437'636);
static_assert(cosmoflow_walk<512>.parameters() == 9'437'636);
static_assert(walk(CosmoFlow<128, cosmoflow::Norm::batch>::net, CosmoFlow<128>::input, CosmoFlow<128>::layout)
                  .parameters() == 9'439'652);
static_assert(passes_through<128>({{128, 16},
                                   {64, 16},
                                   {64, 32},
                                   {32, 32},
                                   {32, 64},
                                   {16, 64},
                                   {8, 128},
                                   {4, 128},
                                   {4, 256},
                                   {2, 256},
                                   {2, 256},
                                   {2, 256}}));
static_assert(passes_through<256>({{256, 16},
                                   {128, 16},
                                   {128, 32},
                                   {64, 32},
                                   {64, 64},
                                   {32, 64},
                                   {16, 128},
                                   {8, 128},
                                   {8, 256},
                                   {4, 256},
                                   {4, 256},
                                   {2, 256},
                                   {2, 256}}));
static_assert(passes_through<512>({{512, 16},
                                   {256, 16},
                                   {256, 32},
                                   {128, 32},
                                   {128, 64},
                                   {64, 64},
                                   {32, 128},
                                   {16, 128},
                                   {16, 256},
                                   {8, 256},
                                   {8, 256},
                                   {4, 256},
                                   {4, 256},
                                   {2, 256}}));
constexpr double cells = 128.0 * 128 * 128;
static_assert(convolutions<128>() == 2.0 * 27 *
                                         (4 * 16 * cells + 16 * 32 * cells / 8 + 32 * 64 * cells / 64 + 64 * 128 * 512 +
                                          128 * 256 * 64 + 256 * 256 * 8 + 256 * 256 * 8));

} // namespace

TEST_CASE("walk: the published numbers of CosmoFlow") {
  CHECK(convolutions<128>() / 1e9 == doctest::Approx(18.5).epsilon(0.003));
  CHECK(convolutions<256>() / 1e9 == doctest::Approx(147.9).epsilon(0.001));
  CHECK(convolutions<512>() / 1e9 == doctest::Approx(1183).epsilon(0.001));
}

TEST_CASE("walk: every fault has words, and no two the same") {
  std::vector<std::string> all;
  for (int f = 0; f <= static_cast<int>(Fault::split_channel); ++f) all.emplace_back(fault_text(static_cast<Fault>(f)));
  CHECK(std::ranges::count(all, "?") == 0);
  std::ranges::sort(all);
  CHECK(std::ranges::adjacent_find(all) == all.end());
}

TEST_CASE("walk: at run time as when compiling") {
  const NetworkDescription at_run_time = describe({conv(2), max_pool(4), max_pool(4)}, cube, spatial);
  CHECK(is(at_run_time.fault, Fault::window_larger_than_input, 2, d, 4, 2));
  const NetworkDescription good =
      describe(std::vector<LayerSpec>(CosmoFlow<32>::net.layers.begin(), CosmoFlow<32>::net.layers.end()),
               CosmoFlow<32>::input, CosmoFlow<32>::layout);
  CHECK(good.fault.fault == Fault::none);
  for (std::size_t k = 0; k < good.infos.size(); ++k) {
    CHECK(good.infos[k].out == cosmoflow_walk<32>.layers[k].out);
    CHECK(good.infos[k].weights == cosmoflow_walk<32>.layers[k].weights);
  }
}

TEST_CASE("walk: blocks should start at multiples of all strides up to a redistribution, along every path") {
  CHECK(stride_quantum(nested.layers) == Index<3>{{4, 4, 4}});
  CHECK(stride_quantum(seq(conv(2, window(3).strided(1, 2, 3)), to(spatial), max_pool(5)).layers) ==
        Index<3>{{1, 2, 3}});
  // Layers that enlarge bring boundaries in: 2 -> 1 -> 4; 2/3; 4, 2, 4; nothing.
  CHECK(stride_quantum(seq(max_pool(2), upsample(2), max_pool(4)).layers) == Index<3>{{4, 4, 4}});
  CHECK(stride_quantum(seq(upsample(3, 1, 2), max_pool(2)).layers) == Index<3>{{2, 2, 1}});
  CHECK(stride_quantum(seq(max_pool(4), upsample(2), max_pool(2)).layers) == Index<3>{{4, 4, 4}});
  CHECK(stride_quantum(seq(upsample(4), max_pool(2), max_pool(2)).layers) == Index<3>{{1, 1, 1}});
  CHECK(stride_quantum(seq(max_pool(2), global_max_pool(), max_pool(1)).layers) == Index<3>{{2, 2, 2}});
  CHECK(stride_quantum(branch(max_pool(2), seq(conv(1), max_pool(3))).layers) == Index<3>{{6, 6, 6}});
}
