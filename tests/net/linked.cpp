// Networks whose device memory goes through a DeviceLink: halos, their adjoints, redistributions and sums of gradients
// give what the plain loops on the host give, on every grid.
#include "networks.hpp"

#include <tessera/comm/host_staged.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

/// Counts the calls, so that a test knows the link was used.
struct Counted final : comm::DeviceLink {
  explicit Counted(comm::Endpoint& e, std::shared_ptr<std::array<long, 2>> n) : link(e), calls(std::move(n)) {}
  std::string_view name() const override { return "counted"; }
  std::unique_ptr<comm::Pending> exchange(std::span<const comm::DeviceMessage> sends,
                                          std::span<const comm::DeviceMessage> receives, int tag) override {
    ++(*calls)[0];
    return link.exchange(sends, receives, tag);
  }
  std::unique_ptr<comm::Pending> all_reduce(void* data, std::size_t n, comm::Element e, comm::Reduce r) override {
    ++(*calls)[1];
    return link.all_reduce(data, n, e, r);
  }
  std::shared_ptr<DeviceLink> over(comm::Endpoint& part) override { return std::make_shared<Counted>(part, calls); }
  comm::HostStaged<emulated_device> link;
  std::shared_ptr<std::array<long, 2>> calls;
};

NetworkDescription network() {
  return describe({conv(3).with_bias(0.1), leaky_relu(0.1), average_pool(window(3).pad(1).strided(2)),
                   conv(4, window(2, 3, 3).pad(d, 0, 1).pad(h, 1, 1).pad(w, 1, 1).periodic()), batch_norm(),
                   max_pool(window(2).strided(2, 1, 2)), relu(), to(place(w, h, d, n)), conv(3), to(whole_samples),
                   flatten(), dense(5).with_bias(0.2), leaky_relu(0.3), dense(2)},
                  {.c = 2, .d = 9, .h = 7, .w = 6}, over_ndhw);
}

} // namespace

TEST_CASE("device link: a network on every grid equals the host's, and its messages and sums took the link") {
  const NetworkOptions options{.batch = 3, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), network(), options);
  const Passed want = pass(one, 3);
  on_ranks({2, 3, 4}, [&](const Communicator& world) {
    const Communicator c = world.split(0);
    const auto calls = std::make_shared<std::array<long, 2>>();
    c.endpoint().device_link = std::make_shared<Counted>(c.endpoint(), calls);
    on_every_grid(c, [&](const AnyGrid& grid) {
      OnDevice net(grid, network(), options);
      for (int k = 0; k < 2; ++k) { // twice: buffers are used again
        const Passed got = pass(net, 3);
        CHECK_MESSAGE(distance(got.y, want.y) < 1e-10, grid.shape().str());
        CHECK_MESSAGE(distance(got.gradients, want.gradients) < 1e-10, grid.shape().str());
      }
    });
    CHECK((*calls)[0] > 0);
    CHECK((*calls)[1] > 0);
  });
}
