// The training test: CosmoFlow at 32^3 has the same losses on every grid, whatever is split.
#include "net/networks.hpp"

#include <cosmoflow/model.hpp>
#include <tessera/train/trainer.hpp>

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr long batch = 2;
constexpr int steps = 10;

/// Counts of particles, as logarithms, and parameters to learn: functions of the global index.
float particles(const Index<5>& i) {
  const auto hash = static_cast<std::uint64_t>((((i[0] * 4 + i[1]) * 32 + i[2]) * 32 + i[3]) * 32 + i[4]);
  return std::log1p(float(kernel::random_word(kernel::random_key(9, 1), hash) % 8));
}
float target(const Index<5>& i) { return 0.25F * float(i[0] + 1) - 0.2F * float(i[1]); }

std::vector<double> losses(const AnyGrid& grid) {
  Product net(grid, describe(CosmoFlow<32>::net, CosmoFlow<32>::input, CosmoFlow<32>::layout),
              {.batch = batch, .seed = 4});
  Trainer trainer(net, adam{.rate = 1e-4}, mean_squared_error{});
  auto x = net.make_input(), t = net.make_target();
  fill(x, particles);
  fill(t, target);
  std::vector<double> all;
  for (int s = 0; s < steps; ++s) all.push_back(trainer.step(x, t));
  return all;
}

/// The first rank of the program alone; the others are told.
std::vector<double> losses_on_one_rank() {
  const Communicator& world = environment().world();
  std::vector<double> all(steps);
  if (world.rank() == 0) all = losses(AnyGrid(Communicator(), {1, 1, 1, 1}));
  world.broadcast(std::span<double>(all), 0);
  return all;
}

} // namespace

TEST_CASE("cosmoflow: ten training steps have the same losses on every grid") {
  // Eight ranks as processes only: as threads of one they would take half a minute.
  const int world = environment().world().size();
  if (world != 1 && world != 2 && world != 4 && world != 8) return;
  const std::vector<double> want = losses_on_one_rank();
  CHECK(want.back() < want.front());
  const auto check = [&](const Communicator& c) {
    for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
             {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 2, 2, 1}, {2, 2, 1, 1}, {1, 2, 2, 2}}) {
      if (shape_of(sizes).ranks() != c.size()) continue;
      const std::vector<double> got = losses(AnyGrid(c, sizes));
      for (std::size_t s = 0; s < got.size(); ++s)
        CHECK_MESSAGE(std::abs(got[s] / want[s] - 1) < 1e-4, "step ", s, " on ", shape_of(sizes).str(), ": ", got[s],
                      " instead of ", want[s]);
    }
  };
  if (world == 1)
    on_ranks({2, 4}, check);
  else
    on_ranks({2, 4, 8}, check);
}
