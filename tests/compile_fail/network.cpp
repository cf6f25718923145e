// expect(EMPTY): the network has no layers
// expect(WINDOW): kernel, stride and dilation must be at least 1, padding at least 0
// expect(SMALL): a window is larger than its padded input; use a smaller kernel, fewer poolings or a larger input
// expect(NO_CHANNELS): a layer has no channels; give conv\(channels\) or dense\(channels\) at least 1
// expect(CONV_GROUPS): grouped\(groups\) needs at least 1 group, and divides the input and the output channels
// expect(SCALE): upsample\(scale\) needs scales of at least 1
// expect(CEIL): ceil\(\) needs padding with zeros
// expect(SPLIT_SAMPLE): flatten needs whole samples on a rank; put to\(place\(n,...\)\) with only n and rep before it
// expect(VOLUME): dense needs 1x1x1 volumes; put flatten\(\) before it
// expect(KEEP): dropout\(keep\) needs 0 < keep <= 1
// expect(SLOPE): leaky_relu\(slope\) needs slope >= 0
// expect(ALPHA): elu\(alpha\) needs alpha >= 0
// expect(NORM): a normalisation needs epsilon > 0, batch_norm 0 < momentum <= 1
// expect(GROUPS): group_norm\(groups\) needs at least one group, and groups that divide the channels
// expect(ONE_VALUE): a group of one value per sample has no variance
// expect(NO_AXIS): batch_norm takes statistics over a grid axis that the layout does not place
// expect(AXES): to\(place\(...\)\) places another number of grid axes than the network's layout
// expect(SUM): activations cannot be a pending sum; use rep or a split
// expect(CHANNEL): channels cannot be split here; split n, d, h or w
// expect(NO_MODEL): a model needs static constexpr members input
#include <tessera/backend/reference.hpp>
#include <tessera/net/network.hpp>
using namespace tessera;
using namespace tessera::names;

struct Model {
#if !defined(NO_MODEL)
  static constexpr Input input = {.c = 1, .d = 8, .h = 8, .w = 8};
#endif
  static constexpr Layout layout = place(n, d);
#if defined(EMPTY)
  static constexpr auto net = seq();
#elif defined(WINDOW)
  static constexpr auto net = seq(conv(2, window(3).same().strided(0)));
#elif defined(SMALL)
  static constexpr auto net = seq(max_pool(4), max_pool(4));
#elif defined(NO_CHANNELS)
  static constexpr auto net = seq(conv(0));
#elif defined(CONV_GROUPS)
  static constexpr auto net = seq(conv(6), conv(4).grouped(4));
#elif defined(SCALE)
  static constexpr auto net = seq(upsample(0));
#elif defined(CEIL)
  static constexpr auto net = seq(max_pool(window(3).strided(2).periodic().ceil()));
#elif defined(SPLIT_SAMPLE)
  static constexpr auto net = seq(conv(2), flatten(), dense(3));
#elif defined(VOLUME)
  static constexpr auto net = seq(conv(2), to(place(n, n)), dense(3));
#elif defined(KEEP)
  static constexpr auto net = seq(conv(2), dropout(0));
#elif defined(SLOPE)
  static constexpr auto net = seq(conv(2), leaky_relu(-1));
#elif defined(ALPHA)
  static constexpr auto net = seq(conv(2), elu(-0.5));
#elif defined(NORM)
  static constexpr auto net = seq(conv(2), batch_norm({.momentum = 0}));
#elif defined(GROUPS)
  static constexpr auto net = seq(conv(6), group_norm(4));
#elif defined(ONE_VALUE)
  static constexpr auto net = seq(max_pool(8), instance_norm());
#elif defined(NO_AXIS)
  static constexpr auto net = seq(conv(2), batch_norm({.over = grid_axes(2)}));
#elif defined(AXES)
  static constexpr auto net = seq(conv(2), to(place(n)));
#elif defined(SUM)
  static constexpr auto net = seq(conv(2), to(place(n, sum)));
#elif defined(CHANNEL)
  static constexpr auto net = seq(conv(2), to(place(n, c)));
#else
  static constexpr auto net = seq(conv(2), leaky_relu(0.1), max_pool(2), to(place(n, n)), flatten(), dense(3));
#endif
};

long use() { return Network<Model, float, reference>::parameter_count; }
