// bench/cosmoflow_step.cpp: a CosmoFlow training step on the ranks it is started with, depth split, batch 1.
//
//   mpirun -n 2 bench_cosmoflow_step WIDTH STEPS
//
// Seconds are the median over the steps of the slowest rank's time; the FMA peak is measured on all ranks at once,
// between the steps, so that both see the same machine. FLOP are those computed: convolutions and dense layers,
// forward, weight gradients, and data gradients of all but the first layer.
#include "../examples/cosmoflow/model.hpp"
#include "fma_peak.hpp"
#include "record.hpp"
#include <algorithm>
#include <sys/resource.h>
#include <tessera/backend/cpu.hpp>
#include <tessera/comm/environment.hpp>
#include <tessera/train/trainer.hpp>

namespace {
using namespace tessera;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// The bytes that the halos of this rank's layers cannot do without: what their outputs read and other ranks hold.
std::uint64_t fewest_halo_bytes(const NetworkPlan& plan, int rank) {
  std::uint64_t cells = 0;
  for (std::size_t k = 0; k < plan.steps().size(); ++k)
    cells += std::uint64_t(plan.block(k, rank).volume() - plan.steps()[k].in.box(rank).volume());
  return cells * sizeof(float);
}

template <int W> void measure(const Communicator& world, int steps) {
  const int ranks = world.size();
  Grid<4> grid(world, {1, ranks, 1, 1});
  Network<CosmoFlow<W>, float, cpu> net(grid);
  Trainer trainer(net, adam{.rate = 1e-5}, mean_squared_error{});
  auto x = net.make_input();
  auto t = net.make_target();
  fill(x, [](const Index<5>& i) {
    return std::log1p(double((i[0] * 7 + i[1] * 13 + i[2] * 31 + i[3] * 17 + i[4] * 5) % 7));
  });
  fill(t, [](const Index<5>& i) { return 0.1 * double(i[1]); });
  trainer.step(x, t);
  trainer.step(x, t);

  net.times(); // of the first steps

  std::vector<double> seconds, peaks, waits;
  for (int s = 0; s < steps; ++s) {
    world.barrier();
    peaks.push_back(bench::fma_peak(0.05));
    world.barrier();
    const double waited = comm::seconds_waited();
    const auto start = std::chrono::steady_clock::now();
    trainer.step(x, t);
    seconds.push_back(world.all_reduce(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                                       comm::Reduce::max));
    waits.push_back(comm::seconds_waited() - waited);
  }
  const double step = median(seconds), peak = world.all_reduce(median(peaks)) / ranks;
  const double wait = world.all_reduce(median(waits), comm::Reduce::max);
  double halo = 0, copies = 0;
  for (const auto& [name, traffic] : net.traffic()) {
    if (name.ends_with(".to")) continue;
    halo += double(traffic.forward.bytes);
    copies += double(traffic.dense_copies);
  }
  halo = world.all_reduce(halo);
  copies = world.all_reduce(copies);
  const double fewest = world.all_reduce(double(fewest_halo_bytes(net.plan(), world.rank())));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double rss = world.all_reduce(double(usage.ru_maxrss) * 1024, comm::Reduce::max);
  const double estimate =
      world.all_reduce(double(net.plan().memory(world.rank(), sizeof(float), 2).total()), comm::Reduce::max);
  if (world.rank() != 0) return;

  const std::string which = "w" + std::to_string(W) + " f32 n" + std::to_string(ranks);
  const double flop = net.plan().training_flop();
  using bench::record;
  record("cosmoflow_step", which, step, "seconds", "median of " + std::to_string(steps) + " steps");
  record("cosmoflow_step", which, flop / step / 1e9, "gflops");
  record("cosmoflow_step", which, flop / step / 1e9 / (peak * ranks), "fraction_of_fma_peak",
         "peak " + std::to_string(peak) + " GFLOP/s a core, measured between the steps");
  record("cosmoflow_step", which, wait, "seconds_not_hidden", "waiting for messages, the most of any rank");
  record("cosmoflow_step", which, halo, "halo_bytes_forward");
  record("cosmoflow_step", which, fewest > 0 ? halo / fewest : 1, "halo_bytes_over_minimum");
  record("cosmoflow_step", which, copies, "dense_copies",
         "operands copied because a kernel could not read them in place");
  record("cosmoflow_step", which, rss, "peak_rss_bytes", "largest rank");
  record("cosmoflow_step", which, estimate, "estimated_bytes", "largest rank, before training");
  for (const auto& [layer, time] : net.times()) {
    record("layer", which + " " + layer, time.forward / steps, "seconds_forward", "per step on rank 0");
    record("layer", which + " " + layer, time.backward / steps, "seconds_backward", "per step on rank 0");
    record("layer", which + " " + layer, time.waited / steps, "seconds_waited", "per step on rank 0");
  }
}
} // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [&](Environment& env) {
    TESSERA_REQUIRE(argc == 3, "usage: bench_cosmoflow_step WIDTH STEPS");
    const int width = std::atoi(argv[1]), steps = std::atoi(argv[2]);
    TESSERA_REQUIRE((width == 64 || width == 128) && steps > 0, "WIDTH is 64 or 128, STEPS at least 1");
    if (width == 64)
      measure<64>(env.world(), steps);
    else
      measure<128>(env.world(), steps);
  });
}
