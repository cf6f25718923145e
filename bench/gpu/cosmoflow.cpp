// bench/gpu/cosmoflow.cpp: a CosmoFlow training step on GPUs, depth split, batch 1, with the peaks of the GPU measured
// in the same run.
//
//   [mpirun -n 2] bench_gpu_cosmoflow WIDTH STEPS        TESSERA_MATH=tf32 for tensor cores
//
// Seconds are the median over the steps of the slowest rank's time. The peaks: copying within the GPU's memory (read +
// write), and a matrix product of 8192^3 through cuBLASLt in the arithmetic of the run.
#include "../../examples/cosmoflow/model.hpp"
#include "../record.hpp"
#include <algorithm>
#include <tessera/backend/cuda.hpp>
#include <tessera/comm/environment.hpp>
#include <tessera/train/trainer.hpp>

namespace {
using namespace tessera;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
  return v[v.size() / 2];
}
/// Seconds of one call of f, of many in a row.
template <class F> double seconds_of(int calls, const F& f) {
  f();
  cuda_device::stream().synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) f();
  cuda_device::stream().synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
}
double copy_peak() {
  constexpr std::size_t count = std::size_t{1} << 28;
  const Buffer<float, cuda_device> from(count);
  Buffer<float, cuda_device> to(count);
  return 2.0 * double(from.bytes()) /
         seconds_of(20, [&] { cuda_device::copy(to.data(), from.data(), from.bytes(), cuda_device::stream()); });
}
double matrix_peak() {
  const kernel::Dense p{.n = 8192, .ci = 8192, .co = 8192};
  const Buffer<float, cuda_device> x(8192UL * 8192), w(8192UL * 8192);
  Buffer<float, cuda_device> y(8192UL * 8192);
  kernel::CudaDense<float> product(p);
  return p.flop() / seconds_of(10, [&] { product.forward(x.data(), w.data(), nullptr, y.data()); });
}

template <int W> void measure(const Communicator& group, int steps) {
  const CudaStart start = start_cuda(group);
  const Communicator& world = start.world;
  if (world.rank() == 0) std::fprintf(stderr, "%s\n", start.str().c_str());
  const double copy = copy_peak(), matrix = matrix_peak();
  Grid<4> grid(world, {1, world.size(), 1, 1});
  Network<CosmoFlow<W>, float, cuda> net(grid);
  Trainer trainer(net, adam{.rate = 1e-5}, mean_squared_error{});
  auto x = net.make_input();
  auto t = net.make_target();
  fill(x, [](const Index<5>& i) {
    return std::log1p(double((i[0] * 7 + i[1] * 13 + i[2] * 31 + i[3] * 17 + i[4] * 5) % 7));
  });
  fill(t, [](const Index<5>& i) { return 0.1 * double(i[1]); });
  for (int s = 0; s < 3; ++s) trainer.step(x, t);
  std::vector<double> seconds;
  for (int s = 0; s < steps; ++s) {
    cuda_device::stream().synchronize();
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    trainer.step(x, t);
    cuda_device::stream().synchronize();
    seconds.push_back(world.all_reduce(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                                       comm::Reduce::max));
  }
  if (world.rank() != 0) return;
  const bool tf32 = kernel::policy_from_environment().math == kernel::PlanPolicy::Math::tf32;
  const std::string which = text("w", W, tf32 ? " tf32" : " f32", " n", world.size());
  const double step = median(seconds), flop = net.plan().training_flop();
  using bench::record;
  record("gpu_cosmoflow_step", which, step, "seconds", text("median of ", steps, " steps; ", start.str()));
  record("gpu_cosmoflow_step", which, flop / step / 1e12, "tflops");
  record("gpu_cosmoflow_step", which, flop / step / (matrix * world.size()), "fraction_of_matrix_peak");
  record("gpu_peak", which, matrix / 1e12, "tflops", "matrix product of 8192^3, one GPU");
  record("gpu_peak", which, copy / 1e9, "gb_per_second", "copy within the memory of one GPU, read + write");
}
} // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [&](Environment& env) {
    TESSERA_REQUIRE(argc == 3, "usage: bench_gpu_cosmoflow WIDTH STEPS");
    const int width = std::atoi(argv[1]), steps = std::atoi(argv[2]);
    TESSERA_REQUIRE((width == 64 || width == 128 || width == 256) && steps > 0,
                    "WIDTH is 64, 128 or 256, STEPS at least 1");
    if (width == 64)
      measure<64>(env.world(), steps);
    else if (width == 128)
      measure<128>(env.world(), steps);
    else
      measure<256>(env.world(), steps);
  });
}
