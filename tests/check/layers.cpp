// check::layer on every layer of the library.
#include "../support/ranks.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/check/layer.hpp>

using namespace tessera;
using namespace tessera::names;

namespace {

struct Tried {
  LayerSpec spec;
  bool linear;
};

const std::vector<Tried>& layers() {
  static const std::vector<Tried> all{
      {conv(3), true},
      {conv(2, window(3, 2, 1).pad(1, 2).strided(2, 1, 3).dilated(1, 2, 1)).with_bias(), true},
      {conv(2, window(3).same().padded_with(Padding::reflect).padded_with(h, Padding::replicate, Padding::zeros)),
       true},
      {conv(2, window(3).same().periodic()), true},
      {max_pool(2), false},
      {max_pool(window(3).pad(1).strided(2).padded_with(d, Padding::replicate)), false},
      {average_pool(window(3).pad(1).strided(2)), true},
      {average_pool(window(3).pad(1), PaddingCounts::no), true},
      {relu(), false},
      {leaky_relu(0.1), false},
      {dropout(0.7), true},
      {batch_norm(), false},
      {flatten(), true},
      {dense(3), true},
      {to(place(w, h, d, n)), true},
      {to(place(n, rep, rep, d)), true},
      {to(place(w, d)), true},
  };
  return all;
}

} // namespace

TEST_CASE("every layer of the library keeps its contract: plain loops") {
  for (const Tried& t : layers()) {
    const check::LayerReport r = check::layer(t.spec, {.ranks = {1, 2, 3, 4, 6}});
    CHECK_MESSAGE(r.linear == t.linear, r.str());
    CHECK(r.gradient < 1e-6);
    CHECK(r.grids >= 2);
    MESSAGE(r.str());
  }
}

TEST_CASE("every layer of the library keeps its contract: cpu backend") {
  for (const Tried& t : layers()) check::layer<cpu>(t.spec, {.ranks = {1, 4, 8}});
}
