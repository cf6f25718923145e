// net/memory.hpp: what a network will allocate on each rank, against what the machines have. Said before it is taken.
//
// May know: base, comm, tensor/grid.hpp, net/plan.hpp.
// Example: require_memory(grid, plan, sizeof(float), 2);   std::puts(memory_report(net, 2).c_str());
#pragma once

#include <cstdio>
#include <map>
#include <tessera/net/plan.hpp>
#include <unistd.h>

namespace tessera {

/// One machine of the job, or one GPU.
struct HostMemory {
  int ranks = 0;
  std::uint64_t available = 0, needed = 0;
};

/// What the ranks on each machine need together and what it has, by host name (and device, where the space has its own
/// memory); the same on every rank. Collective.
template <class Space = host>
std::map<std::string, HostMemory> host_memory(const AnyGrid& grid, const NetworkPlan& plan, std::size_t element,
                                              int moments) {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  std::string mine = text(name, ' ', available_memory());
  if constexpr (!Space::host_accessible) mine = text(name, ", ", Space::device_name(), ' ', Space::available_memory());
  mine += text(' ', plan.memory(grid.rank(), element, moments).total());
  const auto all = grid.world().all_gather(std::span<const char>(mine));
  std::map<std::string, HostMemory> hosts;
  for (int r = 0; r < grid.ranks(); ++r) {
    const std::string said(all[std::size_t(r)].begin(), all[std::size_t(r)].end());
    const auto second = said.rfind(' '), first = said.rfind(' ', second - 1);
    HostMemory& h = hosts[said.substr(0, first)];
    const auto available = std::stoull(said.substr(first + 1, second - first - 1));
    h.available = h.ranks == 0 ? available : std::min<std::uint64_t>(h.available, available);
    h.needed += std::stoull(said.substr(second + 1));
    ++h.ranks;
  }
  return hosts;
}

/// Throws usage_error on every rank if some machine cannot hold what its ranks are about to allocate.
template <class Space = host>
void require_memory(const AnyGrid& grid, const NetworkPlan& plan, std::size_t element, int moments) {
  for (const auto& [name, h] : host_memory<Space>(grid, plan, element, moments))
    TESSERA_REQUIRE(h.available == 0 || h.needed <= h.available, "Network: the ", h.ranks, " ranks on ", name, " need ",
                    h.needed >> 20, " MiB together but it has ", h.available >> 20,
                    " MiB; use a smaller batch or sample, or more machines");
}

/// A table for people: what rank 0 allocates and why, and what each machine has.
template <class Net> std::string memory_report(const Net& net, int moments) {
  using T = typename Net::element_type;
  const NetworkPlan& plan = net.plan();
  const double mib = 1 << 20;
  char line[200];
  std::string s = "layer              output (c,d,h,w)      block on rank 0            MiB    parameters\n";
  for (std::size_t k = 0; k < plan.steps().size(); ++k) {
    const PlanStep& step = plan.steps()[k];
    const Extents<5>& e = step.out.extents();
    const Extents<4> sample{{e[1], e[2], e[3], e[4]}};
    const Box<5> block = plan.edge_block(k + 1, 0);
    long parameters = 0;
    for (const ParameterInfo& p : plan.parameters())
      if (p.layer == step.layer) parameters += long(p.count);
    std::snprintf(line, sizeof line, "%2d %-14s %-20s  %-22s %8.1f  %12ld\n", step.layer, step.spec.name(),
                  sample.str().c_str(), block.extents().str().c_str(), double(block.volume()) * sizeof(T) / mib,
                  parameters);
    s += line;
  }
  const MemoryEstimate m = plan.memory(0, sizeof(T), moments);
  std::snprintf(line, sizeof line,
                "rank 0: activations and error signals %.1f, parameters and gradients %.1f, optimizer %.1f, halo "
                "%.1f, copies %.1f, "
                "reductions %.1f, together %.1f MiB\n",
                double(m.activations) / mib, double(m.parameters) / mib, double(m.optimizer) / mib,
                double(m.halo_buffers) / mib, double(m.scratch) / mib, double(m.reductions) / mib,
                double(m.total()) / mib);
  s += line;
  for (const auto& [name, h] : host_memory<typename Net::Space>(net.grid(), plan, sizeof(T), moments)) {
    std::snprintf(line, sizeof line, "%s: %d ranks need %.1f MiB, %.1f MiB are available\n", name.c_str(), h.ranks,
                  double(h.needed) / mib, double(h.available) / mib);
    s += line;
  }
  if (const std::string idle = plan.idle_ranks(); !idle.empty()) s += idle + "\n";
  return s;
}

} // namespace tessera
