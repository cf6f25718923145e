// The plan of a network: faults in words, block boundaries, and the memory it will take against what it takes.
#include "networks.hpp"

#include <cosmoflow/model.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

template <class F> std::string thrown(F&& f) {
  try {
    f();
  } catch (const usage_error& e) { return e.what(); }
  return "nothing";
}

NetworkDescription cosmoflow_network(int width) {
  const auto of = [](auto model) { return describe(model.net, model.input, model.layout); };
  return width == 32 ? of(CosmoFlow<32>{}) : width == 64 ? of(CosmoFlow<64>{}) : of(CosmoFlow<128>{});
}

} // namespace

TEST_CASE("plan: every fault names its layer, its dim and the remedy, in the same words on every rank") {
  struct Case {
    std::vector<LayerSpec> layers;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases{
      {{}, {"the network has no layers"}},
      {{conv(2), max_pool(window(3).strided(0))}, {"layer 1 (max_pool)", "at least 1"}},
      {{conv(2), max_pool(3), average_pool(4)}, {"layer 2 (average_pool), dim d", "smaller kernel", "needs 4, has 2"}},
      {{conv(1, window(3).pad(h, 9, 0).periodic())}, {"layer 0 (conv), dim h", "at most one period", "needs 9, has 8"}},
      {{conv(1, window(3).pad(h, 0, 8).padded_with(Padding::reflect))},
       {"layer 0 (conv), dim h", "use at most size - 1, or Padding::replicate", "needs 8, has 7"}},
      {{conv(1), relu(), conv(0)}, {"layer 2 (conv)", "give conv(channels)"}},
      {{conv(1), flatten()}, {"layer 1 (flatten)", "put to(place(n,...)) with only n and rep before it"}},
      {{to(place(n, n)), dense(2)}, {"layer 1 (dense)", "put flatten() before it"}},
      {{dropout(1.1)}, {"layer 0 (dropout)", "0 < keep <= 1"}},
      {{conv(1), leaky_relu(-1)}, {"layer 1 (leaky_relu)", "slope >= 0"}},
      {{to(place(n))}, {"layer 0 (to)", "one placement per axis"}},
      {{to(place(n, sum))}, {"layer 0 (to)", "use rep or a split"}},
      {{to(place(n, c))}, {"layer 0 (to)", "split n, d, h or w"}},
      {{LayerSpec{.kind = LayerKind::user}}, {"layer 0 (user layer)", "name it in seq(...)"}},
  };
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size()});
    for (const Case& k : cases) {
      const auto before = allocation_counter().bytes_peak.load();
      const std::string told = all_throw<usage_error>(
          c, [&] { Oracle(grid, describe(k.layers, {.c = 1, .d = 8, .h = 8, .w = 8}, place(n, d)), {}); });
      CHECK(allocation_counter().bytes_peak.load() == before);
      for (const std::string& part : k.says) CHECK_MESSAGE(told.find(part) != told.npos, told, " lacks ", part);
    }
  });
}

TEST_CASE("plan: a layout, a grid or a batch that does not fit is refused with a remedy") {
  const auto network = [](const Layout& layout) {
    return describe({conv(1)}, {.c = 1, .d = 8, .h = 8, .w = 8}, layout);
  };
  const GridShape two = shape_of({1, 1});
  const auto says = [](const std::string& told, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts) CHECK_MESSAGE(told.find(part) != told.npos, told, " lacks ", part);
  };
  says(thrown([&] { NetworkPlan(two, network(place(n, d, h)), 1); }),
       {"place(n,d,h)", "3 grid axes", "grid 1x1 has 2"});
  says(thrown([&] { NetworkPlan(two, network(place(n, sum)), 1); }), {"its layout place(n,sum)", "use rep or a split"});
  says(thrown([&] { NetworkPlan(two, network(place(n, c)), 1); }), {"its layout place(n,c)", "split n, d, h or w"});
  says(thrown([&] { NetworkPlan(two, network(place(n, d)), 0); }), {"a batch of 0 samples; give at least 1"});
}

TEST_CASE("plan: blocks start at multiples of the strides to come, as far as that leaves no rank idle") {
  const auto depth_blocks = [](int width, int ranks, std::size_t step) {
    const NetworkPlan plan(shape_of({1, ranks, 1, 1}), cosmoflow_network(width), 1);
    return plan.steps()[step].in.partition(2).sizes();
  };
  // 128 has strides 2^6 until the layouts change: two blocks of 64.
  CHECK(depth_blocks(128, 2, 0) == std::vector<long>{64, 64});
  CHECK(depth_blocks(128, 2, 11) == std::vector<long>{1, 1});
  // Four ranks: 32 is the largest part of 64 that gives each a block.
  CHECK(depth_blocks(128, 4, 0) == std::vector<long>{32, 32, 32, 32});
  // Three: 32 again, and the first has two.
  CHECK(depth_blocks(128, 3, 0) == std::vector<long>{64, 32, 32});
  CHECK(NetworkPlan(shape_of({1, 2, 1, 1}), cosmoflow_network(128), 1).idle_ranks().empty());
  const std::string idle = NetworkPlan(shape_of({1, 4, 1, 1}), cosmoflow_network(128), 1).idle_ranks();
  CHECK(idle.find("2 of 4 blocks of dim d are empty") != idle.npos);
  CHECK(idle.find("to(place(...))") != idle.npos);
}

TEST_CASE("plan: parameters lie one after the other, weights before biases, in the order of the layers") {
  const NetworkPlan plan(shape_of({1, 1, 1, 1}), cosmoflow_network(32), 1);
  CHECK(plan.parameter_count() == 9'437'636 - 0 * 27);
  std::size_t end = 0;
  for (const ParameterInfo& p : plan.parameters()) {
    CHECK(p.offset == end);
    CHECK(p.count == std::size_t(product(p.extents)));
    end += p.count;
  }
  CHECK(end == plan.parameter_count());
  CHECK(plan.parameters().front().name == "0.conv.weight");
  CHECK(plan.parameters().back().name.ends_with(".dense.bias"));
  CHECK(plan.parameters().back().extents == Extents<5>{{4, 1, 1, 1, 1}});
}

TEST_CASE("memory: what a network and its input take is what was estimated") {
  const NetworkDescription what = describe({conv(4), relu(), average_pool(window(3).pad(1).strided(2)),
                                            conv(8, window(3).same().padded_with(Padding::reflect)), leaky_relu(0.1),
                                            conv(8, window(3).same().periodic()), to(whole_samples), flatten(),
                                            dropout(0.5), dense(20), relu(), dense(2)},
                                           {.c = 2, .d = 16, .h = 16, .w = 16}, over_ndhw);
  on_ranks({1, 2, 4, 8}, [&](const Communicator& c) {
    on_every_grid(c, [&](const AnyGrid& grid) { check_memory(c, grid, what, 4); });
  });
}

TEST_CASE("memory: the report holds the estimate, the layers and what the machine has") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Oracle net(grid, describe({conv(4), relu(), max_pool(2)}, {.c = 2, .d = 64, .h = 64, .w = 64}, over_ndhw),
               {.batch = 2});
    const std::string report = memory_report(net, 2);
    char together[60];
    std::snprintf(together, sizeof together, "together %.1f MiB",
                  double(net.plan().memory(0, sizeof(double), 2).total()) / (1 << 20));
    for (const std::string& part : {std::string(together), std::string("conv"), std::string("max_pool"),
                                    std::string("4x32x32x32"), text(c.size(), " ranks need"), std::string("available")})
      CHECK_MESSAGE(report.find(part) != report.npos, report, " lacks ", part);
  });
}

TEST_CASE("memory: what no machine has is refused before anything is allocated") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    const auto peak = allocation_counter().bytes_peak.load();
    const std::string told = all_throw<usage_error>(c, [&] {
      Oracle(grid, describe({conv(64)}, {.c = 4, .d = 20000, .h = 20000, .w = 20000}, over_ndhw), {.batch = 2});
    });
    CHECK(told.find("MiB together but it has") != told.npos);
    CHECK(told.find("use a smaller batch or sample, or more machines") != told.npos);
    CHECK(allocation_counter().bytes_peak.load() == peak);
  });
}
