// backend/cuda_device.hpp: which GPU a rank computes on, and a clear word where there is none.
//
// The ranks of a machine take its GPUs in turn; where there are more ranks than GPUs, some share one. CUDA's own
// CUDA_VISIBLE_DEVICES, and a batch system that shows each process one GPU, are respected: what is counted is what the
// process sees.
//
// May know: base, space, comm.
// Example: const GpuChoice gpu = choose_gpu(env.world());  std::puts(gpu.str().c_str());
#pragma once

#include <tessera/comm/transport.hpp>
#include <tessera/space/cuda_calls.hpp>

namespace tessera {

/// There is no GPU that this process can use.
struct no_gpu_error : backend_error {
  using backend_error::backend_error;
};

/// What the runtime says of GPUs.
struct GpuCount {
  int count = 0;
  int code = 0; ///< of cudaGetDeviceCount
  std::string name;

  /// "" if there is a GPU, else why there is none.
  std::string obstacle() const {
    if (count > 0) return "";
    const std::string told = text(" (", name, ", code ", code, ")");
    switch (code) {
    case cudaErrorStubLibrary: return "no GPU: the driver's library is a stub, made for linking only" + told;
    case cudaErrorInsufficientDriver: return "no GPU: driver not found, or older than this CUDA runtime" + told;
    case cudaErrorNoDevice:
    case cudaSuccess: return "no GPU: none is there, or CUDA_VISIBLE_DEVICES hides all" + told;
    default: return "no GPU that can be used" + told;
    }
  }
};
inline GpuCount count_gpus() {
  GpuCount g;
  const cudaError_t e = cudaGetDeviceCount(&g.count);
  if (e != cudaSuccess) g.count = 0; // the runtime leaves it as it was
  static_cast<void>(cudaGetLastError());
  g.code = e, g.name = cudaGetErrorName(e);
  return g;
}
/// Throws no_gpu_error if there is none.
inline GpuCount require_gpus() {
  GpuCount g = count_gpus();
  if (g.count == 0) throw no_gpu_error(g.obstacle() + "; use the backend cpu, or run where there is a GPU");
  return g;
}

/// A rank's place among the ranks of its machine.
struct LocalPlace {
  int rank = 0, size = 1;
  friend bool operator==(const LocalPlace&, const LocalPlace&) = default;
};
/// From the machine of each rank.
inline LocalPlace local_place(const std::vector<std::string>& hosts, int rank) {
  LocalPlace p{0, 0};
  for (std::size_t r = 0; r < hosts.size(); ++r)
    if (hosts[r] == hosts[std::size_t(rank)]) {
      if (int(r) < rank) ++p.rank;
      ++p.size;
    }
  return p;
}

/// The GPU of a rank.
struct GpuChoice {
  int device = 0, devices = 0; ///< its number, and how many this process sees
  LocalPlace place{};
  std::string name,
      identity; ///< the identity tells two GPUs of one machine apart, whatever numbers processes give them
  std::string host;
  std::string str() const {
    return text("GPU ", device, " of ", devices, " (", name, ", ", identity, ") of ", host, " for rank ", place.rank,
                " of ", place.size, " there", place.size > devices && devices > 1 ? "; some ranks share a GPU" : "");
  }
};

/// Collective: gives every rank its GPU and makes it the calling thread's. If a rank has none, all ranks throw the same
/// no_gpu_error.
inline GpuChoice choose_gpu(const Communicator& c) {
  const GpuCount mine = count_gpus();
  const auto strings = [&](const std::string& s) {
    std::vector<std::string> all;
    for (const auto& v : c.all_gather(std::span<const char>(s))) all.emplace_back(v.begin(), v.end());
    return all;
  };
  const auto obstacles = strings(mine.obstacle()), hosts = strings(host_name());
  for (std::size_t r = 0; r < obstacles.size(); ++r)
    if (!obstacles[r].empty())
      throw no_gpu_error(text("rank ", r, " on ", hosts[r], ": ", obstacles[r],
                              "; use the backend cpu, or start ranks only where there are GPUs"));
  GpuChoice g;
  g.place = local_place(hosts, c.rank()), g.host = hosts[std::size_t(c.rank())];
  g.devices = mine.count, g.device = g.place.rank % mine.count;
  check_cuda(cudaSetDevice(g.device), "cudaSetDevice");
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, g.device), "cudaGetDeviceProperties");
  char bus[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, g.device), "cudaDeviceGetPCIBusId");
  // A slice of a GPU (MIG) has the bus of the whole; the identity of CUDA is its own.
  g.name = p.name, g.identity = bus;
  for (const char part : p.uuid.bytes) {
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(part);
    if (&part == p.uuid.bytes) g.identity += " ";
    g.identity += digits[byte >> 4], g.identity += digits[byte & 15];
  }
  return g;
}

} // namespace tessera
