// bench/convolution.cpp: the convolutions of CosmoFlow at 128^3 on one core, as fractions of the FMA peak, and the
// pooling and optimizer passes as bytes per second beside a plain copy.
#include "fma_peak.hpp"
#include <benchmark/benchmark.h>
#include <numeric>
#include <tessera/kernel/cpu.hpp>
#include <tessera/kernel/optimizer.hpp>
#include <tessera/kernel/pooling.hpp>

namespace {
using namespace tessera;
using Floats = std::vector<float>;

kernel::Conv layer(long ci, long co, long side, long stride) {
  kernel::Conv p;
  p.n = 1, p.ci = ci, p.co = co;
  for (int i = 0; i < 3; ++i)
    p.in[i] = side, p.out[i] = (side - 1) / stride + 1, p.k[i] = 3, p.stride[i] = stride, p.below[i] = p.above[i] = 1;
  p.act = kernel::Activation::leaky_relu, p.slope = 0.01;
  return p;
}

enum class Way { forward, backward_data, backward_weights };

void convolution(benchmark::State& state, const kernel::Conv& p, Way way) {
  const Extents<5> ex{{1, p.ci, p.in[0], p.in[1], p.in[2]}}, ey{{1, p.co, p.out[0], p.out[1], p.out[2]}},
      ew{{p.co, p.ci, 3, 3, 3}};
  Floats x(std::size_t(product(ex)), 0.5F), y(std::size_t(product(ey)), 0.5F), w(std::size_t(product(ew)), 0.01F);
  kernel::Convolution<float> conv(p);
  const View<float, 5> vx(x.data(), ex), vy(y.data(), ey), vw(w.data(), ew);
  double peak = 0;
  const auto run = [&] {
    switch (way) {
    case Way::forward: conv.forward(vx, vw, nullptr, vy); break;
    case Way::backward_data: conv.backward_data(vy, vw, vx); break;
    case Way::backward_weights: conv.backward_weights(vx, vy, vw, nullptr, kernel::Gradient::overwrite); break;
    }
  };
  run();
  peak = bench::fma_peak(0.1);
  for (auto _ : state) run();
  peak = std::max(peak, bench::fma_peak(0.1));
  const double flop = p.flop() * double(state.iterations());
  state.counters["gflops"] = benchmark::Counter(flop / 1e9, benchmark::Counter::kIsRate);
  state.counters["fraction_of_fma_peak"] = benchmark::Counter(flop / 1e9 / peak, benchmark::Counter::kIsRate);
}

void pooling(benchmark::State& state, long channels, long side, Way way) {
  kernel::Pooling p;
  p.n = 1, p.c = channels;
  for (int i = 0; i < 3; ++i)
    p.in[i] = p.global[i] = side, p.out[i] = side / 2, p.k[i] = 3, p.stride[i] = 2, p.padding[i] = 1;
  const Extents<5> ex{{1, channels, side, side, side}}, ey{{1, channels, side / 2, side / 2, side / 2}};
  Floats x(std::size_t(product(ex)), 0.5F), dx(x.size()), y(std::size_t(product(ey)), 0.5F);
  const View<float, 5> vx(x.data(), ex), vdx(dx.data(), ex), vy(y.data(), ey);
  for (auto _ : state)
    if (way == Way::forward)
      kernel::pool_forward<float>(p, vx, vy);
    else
      kernel::pool_backward<float>(p, vx, vy, vdx, kernel::Activation::leaky_relu, 0.01);
  const std::size_t floats = way == Way::forward ? x.size() + y.size() : 2 * x.size() + y.size();
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(floats * sizeof(float)));
}

void adam(benchmark::State& state) {
  Floats p(9437636, 0.1F), g(p.size(), 0.01F), m(p.size()), v(p.size());
  std::uint64_t t = 0;
  for (auto _ : state) kernel::adam<float>(p, g, m, v, {.rate = 1e-4}, ++t);
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(7 * p.size() * sizeof(float)));
}

void copy(benchmark::State& state) {
  Floats a(std::size_t(16) << 20, 1.0F), b(a.size());
  for (auto _ : state) {
    std::copy(a.begin(), a.end(), b.begin());
    benchmark::DoNotOptimize(b.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(2 * a.size() * sizeof(float)));
}
} // namespace

int main(int argc, char** argv) {
  struct Shape {
    const char* name;
    long ci, co, side, stride;
  };
  constexpr Shape shapes[] = {{"conv1", 4, 16, 128, 1},  {"conv2", 16, 32, 64, 1},  {"conv3", 32, 64, 32, 1},
                              {"conv4", 64, 128, 16, 2}, {"conv5", 128, 256, 4, 1}, {"conv6", 256, 256, 2, 1}};
  constexpr std::pair<const char*, Way> ways[] = {
      {"forward", Way::forward}, {"backward_data", Way::backward_data}, {"backward_weights", Way::backward_weights}};
  for (const Shape& s : shapes)
    for (const auto& [name, way] : ways) {
      if (way == Way::backward_data && s.ci == 4) continue; // the input layer needs none
      benchmark::RegisterBenchmark(
          (std::string(s.name) + "/" + name).c_str(),
          [s, way = way](benchmark::State& state) { convolution(state, layer(s.ci, s.co, s.side, s.stride), way); })
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.3);
    }
  for (const auto& [channels, side] : {std::pair{16L, 128L}, {32L, 64L}, {64L, 32L}})
    for (const auto& [name, way] : {ways[0], ways[1]})
      benchmark::RegisterBenchmark(("average_pool/" + std::to_string(channels) + "x" + std::to_string(side) + "/" +
                                    (way == Way::forward ? "forward" : "backward"))
                                       .c_str(),
                                   [channels = channels, side = side, way = way](benchmark::State& state) {
                                     pooling(state, channels, side, way);
                                   })
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.3);
  benchmark::RegisterBenchmark("adam/9437636", adam)->Unit(benchmark::kMillisecond)->MinTime(0.3);
  benchmark::RegisterBenchmark("copy/64MiB", copy)->Unit(benchmark::kMillisecond)->MinTime(0.3);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
