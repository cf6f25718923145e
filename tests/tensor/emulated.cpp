// Tensors in memory that the host cannot touch: what goes there and comes back by name.
#include "support/ranks.hpp"
#include "support/sweep.hpp"

#include <tessera/space/emulated.hpp>
#include <tessera/tensor/dist_tensor.hpp>
#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {
constexpr Extents<5> extents{{3, 2, 7, 4, 5}};
using Device = Tensor<double, 5, emulated_device>;
} // namespace

TEST_CASE("a device tensor is filled and gathered as one on the host, with and without room for a halo") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    for (const auto& sizes : factorisations(c.size(), 3)) {
      const AnyGrid grid(c, sizes);
      const Map<5> map(place(n, d, w), grid.shape(), extents);
      Device x(grid, map), wide(grid, map);
      Box<5> more = wide.box();
      for (int k = 2; k < 5; ++k) --more.lo[k], ++more.hi[k];
      wide.reserve(more);
      std::vector<double> want;
      for_each_index(whole(extents), [&](const Index<5>& i) { want.push_back(linear(i, extents)); });
      for (Device* each : {&x, &wide}) {
        fill(*each, [](const Index<5>& i) { return linear(i, extents); });
        CHECK(gather(*each) == want);
      }
      const Device copied = wide;
      fill(wide, [](const Index<5>&) { return -1; });
      CHECK(gather(copied) == want);
      scatter(wide, want);
      CHECK(gather(wide) == want);
      wide.reserve(hull(more, shifted(more, {{0, 0, 1, 1, 1}}))); // grows and keeps what is there
      CHECK(gather(wide) == want);

      const Tensor<double, 5> there = host_copy(wide);
      CHECK(gather(there) == want);
      Device back(grid, map);
      copy(there, back);
      CHECK(gather(back) == want);
    }
  });
}

TEST_CASE("copies between spaces want equal maps, and say so on every rank in the same words") {
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const AnyGrid grid(c, {c.size()});
    const Tensor<double, 5> mine(grid, Map<5>(place(d), grid.shape(), extents));
    Device other(grid, Map<5>(place(w), grid.shape(), extents));
    const std::string said = all_throw<usage_error>(c, [&] { copy(mine, other); });
    CHECK(said.find("copy between memory spaces") != said.npos);
    CHECK(said.find("make both with one map") != said.npos);
  });
}
