// The cuda backend on a GPU: each operator against the plain loops on the host in double, CosmoFlow whole and split,
// messages through NCCL and through pinned memory. Without a GPU: that this is said by name.
#include "net/networks.hpp"

#include <cosmoflow/model.hpp>
#include <random>
#include <tessera/backend/cuda.hpp>
#include <tessera/train/trainer.hpp>

using namespace tessera;
using namespace tessera::test;
using kernel::Activation;
using kernel::Conv;
using kernel::Gradient;

namespace {

const bool there = count_gpus().count > 0;

std::vector<double> random(long count, unsigned seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<float> any(-0.5F, 0.5F);
  std::vector<double> v(std::size_t(count), 0.0);
  for (double& x : v) x = double(any(generator)); // exact in float
  return v;
}
Buffer<float, cuda_device> on_gpu(const std::vector<double>& v) {
  const std::vector<float> f(v.begin(), v.end());
  Buffer<float, cuda_device> b(f.size());
  write_from_host<cuda_device>(b.data(), f.data(), f.size());
  return b;
}
std::vector<float> back(const Buffer<float, cuda_device>& b) {
  std::vector<float> v(b.size());
  read_back<cuda_device>(v.data(), b.data(), v.size());
  return v;
}

/// All passes of a convolution against the definition; accumulating into what stands there as well.
void compare(const Conv& p) {
  const auto x = random(product(kernel::x_extents(p)), 1), w = random(product(kernel::w_extents(p)), 2),
             dy = random(product(kernel::y_extents(p)), 3), bias = random(p.co, 4);
  const auto gx = on_gpu(x), gw = on_gpu(w), gdy = on_gpu(dy), gbias = on_gpu(bias);
  const View<const double, 5> vx(x.data(), x_extents(p)), vw(w.data(), w_extents(p)), vdy(dy.data(), y_extents(p));
  const View<const float, 5> ux(gx.data(), x_extents(p)), uw(gw.data(), w_extents(p)), udy(gdy.data(), y_extents(p));
  kernel::CudaConvolution<float> conv(p);
  for (const bool biased : {false, true}) {
    std::vector<double> y(dy.size());
    auto gy = on_gpu(dy); // poisoned with other numbers
    kernel::reference::convolution<double>(p, vx, vw, biased ? bias.data() : nullptr, {y.data(), y_extents(p)});
    conv.forward(ux, uw, biased ? gbias.data() : nullptr, {gy.data(), y_extents(p)});
    CHECK_MESSAGE(distance(back(gy), y) < 1e-5, p.str(), ", forward, bias ", biased);
  }
  std::vector<double> dx(x.size());
  auto gdx = on_gpu(x);
  kernel::reference::convolution_backward_data<double>(p, vdy, vw, {dx.data(), x_extents(p)});
  conv.backward_data(udy, uw, {gdx.data(), x_extents(p)});
  CHECK_MESSAGE(distance(back(gdx), dx) < 1e-5, p.str(), ", backward-data");
  for (const Gradient mode : {Gradient::overwrite, Gradient::accumulate}) {
    auto dw = w, db = bias;
    auto gdw = on_gpu(w), gdb = on_gpu(bias);
    kernel::reference::convolution_backward_weights<double>(p, vx, vdy, {dw.data(), w_extents(p)}, db.data(), mode);
    conv.backward_weights(ux, udy, {gdw.data(), w_extents(p)}, gdb.data(), mode);
    CHECK_MESSAGE(distance(back(gdw), dw) < 1e-5, p.str(), ", backward-weights, mode ", int(mode));
    CHECK_MESSAGE(distance(back(gdb), db) < 1e-5, p.str(), ", bias gradient, mode ", int(mode));
  }
}

} // namespace

TEST_CASE("gpu: without one, starting says so by name, the same on every rank" * doctest::skip(there)) {
  on_ranks({1, 2}, [](const Communicator& c) {
    CHECK(all_throw<no_gpu_error>(c, [&] { start_cuda(c); }).find("use the backend cpu") != std::string::npos);
  });
}

TEST_CASE("gpu: convolutions equal the definition" * doctest::skip(!there)) {
  for (const Activation act : {Activation::none, Activation::relu, Activation::leaky_relu}) {
    compare({.n = 2,
             .ci = 4,
             .co = 16,
             .in = {{7, 8, 8}},
             .out = {{6, 8, 8}},
             .k = {{3, 3, 3}},
             .below = {{0, 1, 1}},
             .above = {{1, 1, 1}},
             .act = act,
             .slope = 0.1});
    compare({.n = 1,
             .ci = 1,
             .co = 3,
             .in = {{5, 6, 7}},
             .out = {{5, 6, 7}},
             .k = {{3, 3, 3}},
             .below = {{1, 1, 1}},
             .above = {{1, 1, 1}},
             .act = act,
             .slope = 0.1});
  }
  // Strides with cells that no window reads, even kernels, dilation, one cell wide.
  compare({.n = 2,
           .ci = 8,
           .co = 8,
           .in = {{9, 8, 8}},
           .out = {{4, 4, 4}},
           .k = {{3, 3, 3}},
           .stride = {{2, 2, 2}},
           .below = {{0, 1, 1}}});
  compare({.n = 1, .ci = 8, .co = 8, .in = {{11, 4, 4}}, .out = {{2, 4, 4}}, .k = {{2, 1, 1}}, .stride = {{3, 1, 1}}});
  compare({.n = 1, .ci = 16, .co = 16, .in = {{8, 8, 8}}, .out = {{4, 4, 4}}, .k = {{2, 2, 2}}, .stride = {{2, 2, 2}}});
  compare({.n = 1,
           .ci = 4,
           .co = 4,
           .in = {{9, 9, 9}},
           .out = {{5, 9, 9}},
           .k = {{3, 3, 3}},
           .dilation = {{2, 2, 2}},
           .below = {{0, 2, 2}},
           .above = {{0, 2, 2}}});
  compare({.n = 1,
           .ci = 16,
           .co = 8,
           .in = {{3, 4, 1}},
           .out = {{2, 2, 1}},
           .k = {{3, 3, 3}},
           .stride = {{2, 2, 2}},
           .below = {{1, 1, 1}},
           .above = {{1, 1, 1}}});
  compare({.n = 1, .ci = 64, .co = 3, .in = {{4, 4, 4}}, .out = {{4, 4, 4}}, .k = {{1, 1, 1}}});
}

TEST_CASE("gpu: dense layers equal the definition" * doctest::skip(!there)) {
  for (const Activation act : {Activation::none, Activation::relu, Activation::leaky_relu})
    for (const auto& [n, ci, co] : {std::array<long, 3>{4, 256, 64}, {1, 2048, 256}, {3, 7, 5}, {2, 256, 4}}) {
      const kernel::Dense p{.n = n, .ci = ci, .co = co, .act = act, .slope = 0.1};
      const auto x = random(n * ci, 1), w = random(co * ci, 2), dy = random(n * co, 3), bias = random(co, 4);
      const auto gx = on_gpu(x), gw = on_gpu(w), gdy = on_gpu(dy), gbias = on_gpu(bias);
      kernel::CudaDense<float> dense(p);
      for (const bool biased : {false, true}) {
        std::vector<double> y(dy.size());
        auto gy = on_gpu(dy);
        kernel::reference::dense<double>(p, x.data(), w.data(), biased ? bias.data() : nullptr, y.data());
        dense.forward(gx.data(), gw.data(), biased ? gbias.data() : nullptr, gy.data());
        CHECK_MESSAGE(distance(back(gy), y) < 1e-5, n, "x", ci, " -> ", co, ", forward, bias ", biased);
      }
      std::vector<double> dx(x.size());
      auto gdx = on_gpu(x);
      kernel::reference::dense_backward_data<double>(p, dy.data(), w.data(), dx.data());
      dense.backward_data(gdy.data(), gw.data(), gdx.data());
      CHECK_MESSAGE(distance(back(gdx), dx) < 1e-5, n, "x", ci, " -> ", co, ", backward-data");
      for (const Gradient mode : {Gradient::overwrite, Gradient::accumulate}) {
        auto dw = w, db = bias;
        auto gdw = on_gpu(w), gdb = on_gpu(bias);
        kernel::reference::dense_backward_weights<double>(p, x.data(), dy.data(), dw.data(), db.data(), mode);
        dense.backward_weights(gx.data(), gdy.data(), gdw.data(), gdb.data(), mode);
        CHECK_MESSAGE(distance(back(gdw), dw) < 1e-5, n, "x", ci, " -> ", co, ", backward-weights");
        CHECK_MESSAGE(distance(back(gdb), db) < 1e-5, n, "x", ci, " -> ", co, ", bias gradient");
      }
    }
}

TEST_CASE("gpu: CosmoFlow equals the plain loops, whole and split along depth" * doctest::skip(!there)) {
  using Model = CosmoFlow<32>;
  const NetworkDescription network = describe(Model::net, Model::input, Model::layout);
  const NetworkOptions options{.batch = 1, .seed = 5};
  Oracle one(AnyGrid(Communicator(), {1, 1, 1, 1}), network, options);
  const Passed want = pass(one, 1, Mode::training, 5);
  on_ranks({1, 2, 4}, [&](const Communicator& c) {
    const CudaStart start = start_cuda(c);
    MESSAGE(start.str());
    AnyNetwork<float, cuda> net(AnyGrid(start.world, {1, c.size(), 1, 1}), network, options);
    for (int k = 0; k < 2; ++k) {
      const Passed got = pass(net, 1, Mode::training, 5);
      CHECK(distance(got.y, want.y) < 1e-5);
      CHECK(distance(got.gradients, want.gradients) < 1e-5);
    }
  });
}

TEST_CASE("gpu: NCCL from a rank to itself, and its sums" * doctest::skip(!there)) {
  if (environment().world().size() > 1) return; // several processes may share a GPU
  Communicator alone;
  cuda_device::select(0);
  comm::NcclLink link(alone.endpoint(), [] { return cuda_device::stream().handle(); });
  const auto a = random(5000, 1), b = random(300, 2);
  auto first = on_gpu(a), second = on_gpu(b);
  Buffer<float, cuda_device> to_first(a.size()), to_second(b.size());
  const comm::DeviceMessage sends[]{{0, first.data(), first.bytes()}, {0, second.data(), second.bytes()}};
  const comm::DeviceMessage receives[]{{0, to_first.data(), first.bytes()}, {0, to_second.data(), second.bytes()}};
  Request(link.exchange(sends, receives, 3)).wait();
  CHECK(back(to_first) == back(first));
  CHECK(back(to_second) == back(second));
  Request(link.all_reduce(first.data(), first.size(), comm::Element::f32, comm::Reduce::sum)).wait();
  CHECK(back(to_first) == back(first));
}

TEST_CASE("gpu: pinned host memory between ranks on one GPU" * doctest::skip(!there)) {
  on_ranks({1, 2, 3}, [](const Communicator& world) {
    choose_gpu(world);
    const Communicator c = world.split(0);
    comm::HostStaged<cuda_device> link(c.endpoint());
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    auto out = on_gpu(random(4000, unsigned(c.rank() + 1)));
    Buffer<float, cuda_device> in(out.size());
    const comm::DeviceMessage send{to, out.data(), out.bytes()}, receive{from, in.data(), in.bytes()};
    Request(link.exchange({&send, 1}, {&receive, 1}, 1)).wait();
    CHECK(distance(back(in), random(4000, unsigned(from + 1))) == 0);
    Request(link.all_reduce(out.data(), out.size(), comm::Element::f32, comm::Reduce::sum)).wait();
    std::vector<double> sum(4000, 0.0);
    for (int r = 0; r < c.size(); ++r)
      for (std::size_t i = 0; const double v : random(4000, unsigned(r + 1))) sum[i++] += v;
    CHECK(distance(back(out), sum) < 1e-6);
  });
}
