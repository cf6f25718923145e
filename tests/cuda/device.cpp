// What programs say where there is no GPU, and how the ranks of a machine take its GPUs.
#include "support/ranks.hpp"

#include <tessera/backend/cuda_device.hpp>
#include <tessera/comm/nccl.hpp>

using namespace tessera;
using namespace tessera::test;

TEST_CASE("cuda: without a GPU the same binary says so: why, with the code, and what to do") {
  const GpuCount gpus = count_gpus();
  if (gpus.count > 0) {
    CHECK(gpus.obstacle().empty());
    CHECK_NOTHROW(require_gpus());
    return;
  }
  try {
    require_gpus();
    FAIL("there is no GPU, and nothing was thrown");
  } catch (const no_gpu_error& e) {
    const std::string what = e.what();
    CHECK(what.find("no GPU") == 0);
    CHECK(what.find(text("code ", gpus.code)) != what.npos);
    CHECK(what.find("use the backend cpu") != what.npos);
  }
  on_ranks({1, 2}, [](const Communicator& c) {
    CHECK(all_throw<no_gpu_error>(c, [&] { choose_gpu(c); }).find("rank 0 on ") == 0);
  });
}

TEST_CASE("cuda: what the codes mean") {
  CHECK(GpuCount{2, cudaSuccess, "cudaSuccess"}.obstacle().empty());
  CHECK(GpuCount{0, cudaErrorInsufficientDriver, "x"}.obstacle().find("driver not found") != std::string::npos);
  CHECK(GpuCount{0, cudaErrorInsufficientDriver, "x"}.obstacle().find("code 35") != std::string::npos);
  CHECK(GpuCount{0, cudaErrorNoDevice, "x"}.obstacle().find("code 100") != std::string::npos);
  CHECK(GpuCount{0, cudaErrorStubLibrary, "x"}.obstacle().find("stub") != std::string::npos);
  CHECK(GpuCount{0, cudaSuccess, "x"}.obstacle().find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  CHECK(GpuCount{0, cudaErrorInitializationError, "x"}.obstacle().find("no GPU that can be used") == 0);
}

TEST_CASE("cuda: the ranks of a machine are numbered in their order") {
  const std::vector<std::string> hosts{"a", "b", "a", "a", "b"};
  CHECK(local_place(hosts, 0) == LocalPlace{0, 3});
  CHECK(local_place(hosts, 1) == LocalPlace{0, 2});
  CHECK(local_place(hosts, 2) == LocalPlace{1, 3});
  CHECK(local_place(hosts, 3) == LocalPlace{2, 3});
  CHECK(local_place(hosts, 4) == LocalPlace{1, 2});
}

TEST_CASE("nccl: without a GPU its set-up is an error that names the call, on no rank a hang") {
  if (count_gpus().count > 0) return;
  Communicator alone;
  try {
    comm::NcclLink link(alone.endpoint(), [] { return cudaStream_t{}; });
    FAIL("NCCL was set up without a GPU");
  } catch (const error& e) { CHECK_MESSAGE(std::string(e.what()).find("nccl") != std::string::npos, e.what()); }
}
