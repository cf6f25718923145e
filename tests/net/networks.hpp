// net/networks.hpp: what the tests of networks share. The networks of run-time layers are compiled once, in
// networks.cpp.
#pragma once

#include "support/ranks.hpp"
#include "support/sweep.hpp"

#include <tessera/backend/cpu.hpp>
#include <tessera/backend/emulated.hpp>
#include <tessera/net/network.hpp>
#include <tessera/tensor/gather.hpp>

namespace tessera {
extern template class AnyNetwork<double, reference>;
extern template class AnyNetwork<float, cpu>;
extern template class AnyNetwork<double, emulated>;
} // namespace tessera

namespace tessera::test {

using Oracle = AnyNetwork<double, reference>;
using Product = AnyNetwork<float, cpu>;
using OnDevice = AnyNetwork<double, emulated>;

inline constexpr Layout over_ndhw = place(Dim::n, Dim::d, Dim::h, Dim::w);
inline constexpr Layout whole_samples = place(Dim::n, Dim::n, Dim::n, Dim::n);

/// A smooth number in [-1, 1] for each element, the same on every grid.
inline double wave(const Index<5>& i, double phase = 0) {
  return std::sin(double(7 * i[0] + 3 * i[1] + i[2] * i[3] + 5 * i[4]) + 0.3 * double(i[2]) + phase);
}

template <class F> void on_every_grid(const Communicator& c, F&& f) {
  for (const auto& sizes : factorisations(c.size(), 4)) f(AnyGrid(c, sizes));
}

/// One pass forward and backward: the output, gathered, and the parameter gradients, summed over the ranks.
struct Passed {
  std::vector<double> y, gradients;
};

/// x = wave, and the gradient of the output is wave too. Poisons the gradients first.
template <class Net> Passed pass(Net& net, long samples, Mode mode = Mode::training, std::uint64_t step = 0) {
  using T = typename Net::element_type;
  auto x = net.make_input(samples);
  fill(x, [](const Index<5>& i) { return wave(i); });
  Passed p;
  const auto y = gather(net.forward(x, mode, step));
  p.y.assign(y.begin(), y.end());
  fill(net.output_gradient(), [](const Index<5>& i) { return wave(i, 1); });
  const auto poisoned = on_host<typename Net::Space>(net.gradients());
  std::ranges::fill(poisoned.span(), std::numeric_limits<T>::quiet_NaN());
  poisoned.store();
  net.backward(x);
  net.for_each_gradient([](std::size_t, std::size_t) {});
  const auto gradients = on_host<typename Net::Space>(net.gradients());
  p.gradients.assign(gradients.span().begin(), gradients.span().end());
  return p;
}

/// max |a - b| / max(1, |b|); infinite if sizes differ or something is not a number.
template <class A, class B> double distance(const A& a, const B& b) {
  if (std::size(a) != std::size(b)) return std::numeric_limits<double>::infinity();
  double most = 0;
  auto q = std::begin(b);
  for (auto p = std::begin(a); p != std::end(a); ++p, ++q) {
    const double off = std::abs(double(*p) - double(*q)) / std::max(1.0, std::abs(double(*q)));
    if (!(off <= most)) most = std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
  }
  return most;
}

/// Checks some parameter gradients of sum over the output of wave(i, 1) * y, which are what pass() computes, against
/// central differences.
inline void check_slopes(const AnyGrid& grid, const NetworkDescription& what, long samples, std::uint64_t at_step = 0) {
  Oracle net(grid, what, {.batch = samples, .seed = 6});
  const std::vector<double> gradients = pass(net, samples, Mode::training, at_step).gradients;
  auto x = net.make_input(samples);
  fill(x, [](const Index<5>& i) { return wave(i); });
  const auto loss = [&] {
    const auto& y = net.forward(x, Mode::training, at_step);
    double sum = 0;
    for_each_index(whole(y.box().extents()), [&](const Index<5>& i) { sum += wave(i + y.box().lo, 1) * y.view()[i]; });
    return net.grid().over(y.layout().mask(Placement::Kind::split)).all_reduce(sum);
  };
  Random random(61);
  constexpr double step = 1e-6;
  for (const ParameterInfo& p : net.plan().parameters())
    for (int k = 0; k < 4; ++k) {
      const auto at = p.offset + std::size_t(random.in(0, long(p.count) - 1));
      double& value = net.parameters()[at];
      const double before = value;
      value = before + step;
      const double above = loss();
      value = before - step;
      const double below = loss();
      value = before;
      const double slope = (above - below) / (2 * step);
      CHECK_MESSAGE(std::abs(slope - gradients[at]) < 1e-6 * std::max(1.0, std::abs(slope)), p.name, " on ",
                    grid.shape().str(), ": ", gradients[at], ", differences give ", slope);
    }
}

/// Checks that a network and its input take the memory that was estimated, and give it back.
inline void check_memory(const Communicator& c, const AnyGrid& grid, const NetworkDescription& what, long samples) {
  const NetworkPlan plan(grid.shape(), what, samples);
  std::uint64_t estimated = 0;
  for (int r = 0; r < c.size(); ++r) {
    const MemoryEstimate m = plan.memory(r, sizeof(double), 0);
    estimated += m.total() - m.reductions; // those belong to the transport, and threads have none
  }
  c.barrier();
  const auto before = allocation_counter().bytes_held.load();
  c.barrier();
  {
    Oracle net(grid, what, {.batch = samples, .moments = 0});
    auto x = net.make_input();
    net.forward(x, Mode::training);
    net.backward(x);
    net.for_each_gradient([](std::size_t, std::size_t) {});
    c.barrier();
    // Ranks that are threads share the counter.
    auto taken = std::int64_t(allocation_counter().bytes_held.load() - before);
    if (c.transport() == "mpi") taken = c.all_reduce(taken);
    CHECK_MESSAGE(std::abs(double(taken) / double(estimated) - 1) < 0.03, grid.shape().str(), ": estimated ", estimated,
                  " bytes, taken ", taken);
    c.barrier();
  }
  c.barrier();
  CHECK(allocation_counter().bytes_held.load() == before);
  c.barrier();
}

} // namespace tessera::test
