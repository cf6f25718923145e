// comm/transport.hpp: which way device memory goes between ranks, chosen at run time from what the machine has.
//
// NCCL serves ranks that each have a GPU of their own; it refuses two ranks on one. Pinned host memory and the
// messages of the communicator serve everybody else. A device pointer never goes to MPI: that an MPI can take one is
// not something a program can prove. The environment variable TESSERA_TRANSPORT (auto, nccl, host) overrides the
// choice, and must be the same on every rank.
//
// May know: base, comm/communicator.hpp.
// Example: const TransportChoice c = choose_transport(gather_facts(world, my_gpu, Nccl::available));
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tessera/comm/communicator.hpp>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tessera {

/// The name of this machine.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

namespace comm {

/// Whether this program was built with NCCL.
enum class Nccl { missing, available };

/// Where a rank computes: a machine, and one of its GPUs by an identity that no other GPU there has ("" for none).
struct RankPlace {
  std::string host, gpu;
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// What the choice rests on; the same on every rank.
struct TransportFacts {
  std::vector<RankPlace> ranks;
  Nccl nccl = Nccl::missing; ///< on every rank
  std::string wish;          ///< rank 0's TESSERA_TRANSPORT
};

struct TransportChoice {
  enum class Way { none, host_staged, nccl } way = Way::none;
  std::string why; ///< a sentence
  friend bool operator==(const TransportChoice&, const TransportChoice&) = default;
};

/// Collective: what choose_transport() wants to know.
inline TransportFacts gather_facts(const Communicator& c, const std::string& gpu, Nccl nccl,
                                   const char* wish = std::getenv("TESSERA_TRANSPORT")) {
  const auto strings = [&](const std::string& mine) {
    std::vector<std::string> all;
    for (const auto& v : c.all_gather(std::span<const char>(mine))) all.emplace_back(v.begin(), v.end());
    return all;
  };
  TransportFacts f;
  const auto hosts = strings(host_name()), gpus = strings(gpu), wishes = strings(wish ? wish : "");
  for (std::size_t r = 0; r < hosts.size(); ++r) f.ranks.push_back({hosts[r], gpus[r]});
  for (std::size_t r = 0; r < wishes.size(); ++r)
    TESSERA_REQUIRE(wishes[r] == wishes[0], "TESSERA_TRANSPORT is '", wishes[0], "' on rank 0 and '", wishes[r],
                    "' on rank ", r, "; give every rank the same, with mpirun -x TESSERA_TRANSPORT for example");
  f.wish = wishes[0];
  f.nccl = c.all_reduce(nccl == Nccl::available ? 1 : 0, Reduce::min) ? Nccl::available : Nccl::missing;
  return f;
}

namespace detail {
/// The first two ranks that share a GPU.
inline std::pair<int, int> sharing(const std::vector<RankPlace>& ranks) {
  for (std::size_t a = 0; a < ranks.size(); ++a)
    for (std::size_t b = a + 1; b < ranks.size(); ++b)
      if (ranks[a] == ranks[b]) return {int(a), int(b)};
  return {-1, -1};
}
} // namespace detail

/// Throws usage_error if the wish is none that there is, or cannot be met.
inline TransportChoice choose_transport(const TransportFacts& f) {
  using Way = TransportChoice::Way;
  TESSERA_REQUIRE(f.wish.empty() || f.wish == "auto" || f.wish == "nccl" || f.wish == "host",
                  "TESSERA_TRANSPORT=", f.wish, ": give auto, nccl or host",
                  f.wish == "mpi" ? " (device memory is never given to MPI; host sends it through pinned memory)" : "");
  for (std::size_t r = 0; r < f.ranks.size(); ++r)
    TESSERA_REQUIRE(!f.ranks[r].gpu.empty(), "rank ", r, " on ", f.ranks[r].host,
                    " has no GPU; use the backend cpu, or start ranks only where there are GPUs");
  const auto [a, b] = detail::sharing(f.ranks);
  const std::string obstacle = f.nccl == Nccl::missing ? "this program was built without NCCL"
                               : a >= 0 ? text("ranks ", a, " and ", b, " share a GPU (", f.ranks[std::size_t(a)].gpu,
                                               " of ", f.ranks[std::size_t(a)].host, "), which NCCL refuses")
                                        : "";
  TESSERA_REQUIRE(f.wish != "nccl" || obstacle.empty(), "TESSERA_TRANSPORT=nccl: ", obstacle,
                  "; unset it, or give every rank a GPU of its own");
  if (f.wish == "host")
    return {Way::host_staged, "device memory goes through pinned host memory, as TESSERA_TRANSPORT=host asks"};
  if (f.wish == "nccl") return {Way::nccl, "device memory goes through NCCL, as TESSERA_TRANSPORT=nccl asks"};
  if (f.ranks.size() < 2) return {Way::none, "one rank: no device memory goes anywhere"};
  if (!obstacle.empty()) return {Way::host_staged, text("device memory goes through pinned host memory: ", obstacle)};
  return {Way::nccl, text("device memory goes through NCCL: ", f.ranks.size(), " ranks, each with a GPU of its own")};
}

} // namespace comm
} // namespace tessera
