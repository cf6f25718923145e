// What a network on oneDNN must not do: reorder activations, copy blocks that lie dense, make primitives or allocate
// memory once it runs, fall to a reference kernel, or grow with the number of shapes it has seen.
#include "networks.hpp"
#include "support/convolutions.hpp"

#include <cosmoflow/model.hpp>
#include <fstream>
#include <tessera/train/trainer.hpp>
#include <unistd.h>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

long resident_bytes() {
  long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

NetworkDescription four_convolutions(int side) {
  return describe({conv(8), relu(), conv(16), relu(), conv(16), relu(), conv(8)}, {.c = 4, .d = 6, .h = 5, .w = side},
                  over_ndhw);
}

} // namespace

TEST_CASE("onednn: no convolution of CosmoFlow falls to a reference kernel, whole or split along depth") {
  if (environment().world().rank() != 0) return; // a question about kernels, not about ranks
  for (const int ranks : {1, 2, 4}) {
    const NetworkPlan plan(shape_of({1, ranks, 1, 1}), describe(CosmoFlow<64>::net, CosmoFlow<64>::input, over_ndhw), 1);
    for (int r = 0; r < std::min(ranks, 2); ++r)
      for (const kernel::Conv& p : convolutions(plan, r)) {
        kernel::Convolution<float> conv(p);
        for (const auto pass : {kernel::Pass::forward, kernel::Pass::backward_data, kernel::Pass::backward_weights}) {
          const std::string name = conv.implementation(pass);
          CHECK_MESSAGE(name.find("ref") == name.npos, p.str(), ": ", name);
        }
      }
  }
}

TEST_CASE("onednn: training settles: no primitive, no allocation after the second step; no reorder, no copy ever") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    for (const auto& sizes : {std::vector<int>{1, c.size(), 1, 1}, {c.size(), 1, 1, 1}}) {
      const AnyGrid grid(c, sizes);
      Product net(grid,
                  describe({conv(8), leaky_relu(0.01), average_pool(window(3).pad(1).strided(2)), conv(16), relu(),
                            max_pool(2), conv(16, window(3).pad(1).strided(2)).with_bias(), relu(), to(whole_samples),
                            flatten(), dropout(0.8), dense(32), leaky_relu(0.01), dense(4)},
                           {.c = 4, .d = 16, .h = 16, .w = 16}, over_ndhw),
                  {.batch = 4});
      Trainer trainer(net, adam{}, mean_squared_error{});
      auto x = net.make_input(), t = net.make_target();
      fill(x, [](const Index<5>& i) { return wave(i); });
      for (int s = 0; s < 2; ++s) trainer.step(x, t);
      const auto look = [&] { // ranks that are threads share the counters
        c.barrier();
        const std::array<std::uint64_t, 2> now{std::uint64_t(kernel::onednn_counters().primitives.load()),
                                               allocation_counter().allocations.load()};
        c.barrier();
        return now;
      };
      const auto before = look();
      for (int s = 0; s < 2; ++s) trainer.step(x, t);
      CHECK(look() == before);
      CHECK(kernel::onednn_counters().activation_reorders == 0);
      for (const auto& [name, traffic] : net.traffic()) CHECK_MESSAGE(traffic.dense_copies == 0, name);
    }
  });
}

TEST_CASE("onednn: float on every grid equals the plain loops in double") {
  const NetworkDescription network =
      describe({conv(8).with_bias(0.1), leaky_relu(0.1), average_pool(window(3).pad(1).strided(2)), conv(16), relu(),
                max_pool(2), to(whole_samples), flatten(), dropout(0.8), dense(9), leaky_relu(0.2), dense(3)},
               {.c = 3, .d = 9, .h = 8, .w = 10}, over_ndhw);
  Oracle oracle(AnyGrid(Communicator(), {1, 1, 1, 1}), network, {.batch = 3});
  const Passed want = pass(oracle, 3, Mode::training, 1);
  on_ranks([&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) {
      Product net(grid, network, {.batch = 3});
      const Passed got = pass(net, 3, Mode::training, 1);
      CHECK_MESSAGE(distance(got.y, want.y) < 1e-5, grid.shape().str());
      CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-5, grid.shape().str());
    });
  });
}

TEST_CASE("onednn: four convolutions in a row reorder no activation, and make no primitive in the second iteration") {
  on_ranks({1, 2}, [](const Communicator& c) {
    Product net(AnyGrid(c, {1, c.size(), 1, 1}), four_convolutions(9), {.batch = 2});
    pass(net, 2);
    c.barrier();
    const long primitives = kernel::onednn_counters().primitives;
    c.barrier();
    pass(net, 2);
    c.barrier();
    CHECK(kernel::onednn_counters().primitives == primitives);
    CHECK(kernel::onednn_counters().activation_reorders == 0);
    c.barrier();
  });
}

TEST_CASE("onednn: memory stays bounded over 200 shapes") {
  if (environment().world().rank() != 0) return; // one process is enough
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  const auto held = allocation_counter().bytes_held.load();
  std::vector<long> resident;
  for (int side = 3; side < 203; ++side) {
    {
      Product net(grid, four_convolutions(side), {});
      pass(net, 1);
    }
    resident.push_back(resident_bytes());
  }
  // The kernels' workspace of this thread stays, as large as the largest need.
  CHECK(allocation_counter().bytes_held.load() - held < (4 << 20));
  const long first = (resident[99] - resident[0]) >> 20, second = (resident[199] - resident[99]) >> 20;
  MESSAGE("resident memory grew by ", first, " MiB over shapes 1 to 100 and by ", second, " MiB over 101 to 200");
  CHECK(second < 16);
}
