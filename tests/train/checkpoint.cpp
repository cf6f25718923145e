// Checkpoints: training goes on elsewhere as if nothing had happened, and what does not fit is refused by all ranks.
#include "io/files.hpp"
#include "net/networks.hpp"

#include <tessera/train/checkpoint.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr long batch = 4;

NetworkDescription network(int channels = 3) {
  return describe({conv(channels).with_bias(), leaky_relu(0.1), max_pool(2), conv(2, window(3, 1, 2).pad(d, 1, 1)),
                   to(whole_samples), flatten(), dropout(0.8), dense(4), relu(), dense(2)},
                  {.c = 2, .d = 6, .h = 4, .w = 4}, over_ndhw);
}

/// A network with its trainer and its place in the data: step s takes the samples from s * batch on.
template <class Optimizer = adam> struct Training {
  Oracle net;
  Trainer<double, reference, Optimizer, mean_squared_error> trainer;
  explicit Training(const AnyGrid& grid, const NetworkDescription& what = network())
      : net(grid, what, {.batch = batch, .seed = 8}),
        trainer(net, Optimizer{.rate = 1e-2}, mean_squared_error{}, linear_decay(20)) {}
  double step() {
    auto x = net.make_input(), t = net.make_target();
    const long first = static_cast<long>(trainer.steps()) * batch;
    fill(x, [&](Index<5> i) { return i[0] += first, wave(i); });
    fill(t, [&](Index<5> i) { return i[0] += first, 0.5 * wave(i, 2); });
    return trainer.step(x, t);
  }
  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }
  std::vector<double> state() {
    std::vector<double> all(net.parameters().begin(), net.parameters().end());
    for (std::size_t m = 0; m < trainer.moment_count; ++m)
      all.insert(all.end(), trainer.moment(m).begin(), trainer.moment(m).end());
    return all;
  }
};

AnyGrid alone() { return {Communicator(), {1, 1, 1, 1}}; }

} // namespace

TEST_CASE("checkpoint: five steps on data 2 x depth 2, and five more on other grids, equal ten on one rank") {
  const std::vector<double> want = Training(alone()).steps(10);
  on_ranks({4}, [&](const Communicator& c) {
    const Scratch dir(c);
    const std::string path = dir / "five.h5";
    Training first(AnyGrid(c, {2, 2, 1, 1}));
    CHECK(distance(first.steps(5), std::span(want).first(5)) < 1e-11);
    save(first.trainer, path, {{"epoch", std::int64_t{3}}, {"best", 0.25}});
    const std::vector<double> state = first.state();

    const auto go_on = [&](const AnyGrid& grid) {
      Training second(grid);
      auto numbers = resume(second.trainer, path);
      CHECK(numbers == std::map<std::string, io::Value>{{"epoch", std::int64_t{3}}, {"best", 0.25}});
      CHECK(second.trainer.steps() == 5);
      CHECK(second.state() == state); // bit by bit
      CHECK_MESSAGE(distance(second.steps(5), std::span(want).last(5)) < 1e-11, grid.shape().str());
    };
    go_on(AnyGrid(c, {1, 2, 2, 1}));
    go_on(AnyGrid(c, {4, 1, 1, 1}));
    go_on(alone());
  });
}

TEST_CASE("checkpoint: arrays in logical order under the names of their layers") {
  const Scratch dir{Communicator()};
  Training t(alone());
  t.step();
  save(t.trainer, dir / "c.h5");
  const io::Checkpoint c = io::load_checkpoint(Communicator(), dir / "c.h5");
  CHECK(c.scalar<std::int64_t>("steps") == 1);
  CHECK(c.scalar<std::string>("optimizer") == "adam");
  CHECK(c.arrays.size() == 3 * t.net.plan().parameters().size());
  const io::CheckpointArray& w = c.arrays.at("parameters/3.conv.weight");
  CHECK(w.shape == std::vector<long>{2, 3, 3, 1, 2});
  const ParameterInfo& p = t.net.plan().parameters()[2];
  const View<const double, 5> stored(t.net.parameters().data() + p.offset, p.extents);
  CHECK(std::get<std::vector<double>>(w.values)[((1 * 3 + 2) * 3 + 1) * 2 + 1] == stored(1, 2, 1, 0, 1));
  CHECK(c.arrays.at("second_moment/0.conv.bias").shape == std::vector<long>{3});
}

TEST_CASE("checkpoint: what does not fit is an io_error in the same words on every rank, and nothing is changed") {
  on_ranks({1, 2, 3}, [](const Communicator& c) {
    const Scratch dir(c);
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    const std::string path = dir / "c.h5";
    Training good(grid);
    good.step();
    save(good.trainer, path);
    const auto refused = [&](auto&& training, const std::string& file, std::initializer_list<std::string> says) {
      const std::vector<double> before = training.state();
      const std::string told = all_throw<io_error>(c, [&] { resume(training.trainer, file); });
      for (const std::string& part : says) CHECK_MESSAGE(told.find(part) != told.npos, told, " lacks ", part);
      CHECK(training.state() == before);
      CHECK(training.trainer.steps() == 0);
    };
    refused(Training(grid, network(5)), path,
            {"c.h5", "does not fit the network", "'parameters/0.conv.weight' is 3x2x3x3x3, expected 5x2x3x3x3"});
    refused(Training<sgd>(grid), path, {"c.h5", "written by the optimizer adam, this trainer uses sgd"});
    refused(Training(grid), dir / "none.h5", {"none.h5"});
    if (c.rank() == 0) {
      std::filesystem::copy_file(path, dir / "cut.h5");
      std::filesystem::resize_file(dir / "cut.h5", std::filesystem::file_size(path) / 2);
      std::ofstream(dir / "text.h5") << "This is no checkpoint.\n";
      write_volume<float>(dir / "volume.h5", 1, {{1, 2, 2, 2}}, Stored::channel_first);
    }
    c.barrier();
    refused(Training(grid), dir / "cut.h5", {"cut.h5"});
    refused(Training(grid), dir / "text.h5", {"text.h5"});
    refused(Training(grid), dir / "volume.h5", {"volume.h5", "not a checkpoint"});
  });
}

TEST_CASE("checkpoint: a full disk is an io_error on every rank, and the file that was there still resumes") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const Scratch dir(c);
    const std::string path = dir / "c.h5";
    const AnyGrid grid(c, {1, c.size(), 1, 1});
    Training t(grid);
    t.step();
    save(t.trainer, path);
    const std::vector<double> state = t.state();
    t.step();
    for (const rlim_t limit : {0, 4096}) {
      const std::string told = all_throw<io_error>(c, [&] {
        std::optional<FullDisk> full;
        if (c.rank() == 0) full.emplace(limit);
        save(t.trainer, path);
      });
      CHECK(told.find("free some space") != told.npos);
      c.barrier();
    }
    Training again(grid);
    resume(again.trainer, path);
    CHECK(again.state() == state);
  });
}
