// cosmoflow: trains the CosmoFlow network on universes that are split over ranks inside each sample.
//
//   mpirun -n 2 cosmoflow --data universes --width 64 --epochs 20 --out out
#include "../grid_option.hpp"
#include "feed.hpp"
#include "options.hpp"
#include "report.hpp"
#include "training.hpp"
#include <sys/resource.h>
#include <tessera/base/progress.hpp>
#include <tessera/comm/environment.hpp>
#include <tessera/net/memory.hpp>
#include <tessera/tensor/gather.hpp>

namespace {
using namespace tessera;
using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// The pieces of a list of samples, `batch` at a time; the last may be short.
std::span<const long> piece(const std::vector<long>& ids, long batch, std::size_t k) {
  const std::size_t from = std::min(ids.size(), k * std::size_t(batch));
  return std::span(ids).subspan(from, std::min(std::size_t(batch), ids.size() - from));
}
std::size_t pieces(const std::vector<long>& ids, long batch) {
  return (ids.size() + std::size_t(batch) - 1) / std::size_t(batch);
}

using Net = CosmoFlowNet;

/// Predictions for `ids` on every rank.
Predictions predict(Net& net, Feed& feed, const io::VolumeSet& set, const std::vector<long>& ids) {
  Predictions p;
  const long batch = net.options().batch;
  feed.start(piece(ids, batch, 0));
  for (std::size_t k = 0; k < pieces(ids, batch); ++k) {
    const auto b = feed.finish(Feed::Augment::no, 0);
    const std::vector<float> y = gather(net.forward(*b.x, Mode::inference));
    for (std::size_t i = 0; i < b.ids.size(); ++i) {
      p.samples.push_back(b.ids[i]);
      auto& truth = p.truth.emplace_back();
      auto& predicted = p.predicted.emplace_back();
      for (std::size_t q = 0; q < 4; ++q) truth[q] = set.labels_of(b.ids[i])[q], predicted[q] = y[i * 4 + q];
    }
    feed.start(piece(ids, batch, k + 1));
  }
  return p;
}

std::uint64_t peak_rss() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return std::uint64_t(u.ru_maxrss) * 1024;
}

int train(Environment& env, const Options& o) {
  const Communicator world = env.world();
  const bool speaks = world.rank() == 0;
  Grid<4> grid(world, grid_option(o.grid, world.size()));

  const Universes universes = open_universes(world, o.data, o.width, o.tiles, o.seed);
  const io::VolumeSet& set = universes.set;
  TESSERA_REQUIRE(!set.train.empty() && !set.validation.empty() && !set.test.empty(), "--data ", o.data, ": ",
                  set.list.files.size(),
                  " files are too few to split by universe into training, validation and test; "
                  "give at least 3");

  const auto made = make_network(o.width, o.norm == "batch" ? cosmoflow::Norm::batch : cosmoflow::Norm::none, grid,
                                 {.batch = std::min(o.batch, long(set.train.size())), .seed = o.seed});
  Net& net = *made;
  const std::uint64_t steps_per_epoch = pieces(set.train, net.options().batch);
  const std::uint64_t all_steps = steps_per_epoch * std::uint64_t(o.epochs);
  const Schedule schedule = (o.schedule == "constant" ? constant()
                             : o.schedule == "linear" ? linear_decay(all_steps, 0.01)
                                                      : cosine(all_steps, 0.01))
                                .warm_up(std::min(steps_per_epoch, all_steps / 4));
  CosmoFlowTrainer trainer(net, adam{.rate = o.rate}, mean_squared_error{}, schedule);
  const std::string memory = memory_report(net, int(trainer.moment_count));
  if (speaks) std::fputs(memory.c_str(), stdout);

  int epoch = 0;
  Standard standard;
  const std::string checkpoint = o.resume.empty() ? o.predict : o.resume;
  if (!checkpoint.empty()) {
    const auto numbers = resume(trainer, checkpoint);
    const auto at = [&](const char* name) {
      return numbers.contains(name) ? std::get<std::int64_t>(numbers.at(name)) : -1;
    };
    TESSERA_REQUIRE(at("width") == o.width, "checkpoint ", checkpoint, " was trained at --width ", at("width"),
                    ", not ", o.width);
    TESSERA_REQUIRE(at("seed") == std::int64_t(o.seed), "checkpoint ", checkpoint, " was trained with --seed ",
                    at("seed"), ", not ", o.seed,
                    ": its training samples would be among the test samples; give that seed");
    epoch = int(at("epoch"));
    for (std::size_t q = 0; q < 4; ++q) {
      standard.mean[q] = std::get<double>(numbers.at(text("mean_", q)));
      standard.deviation[q] = std::get<double>(numbers.at(text("deviation_", q)));
    }
  }

  const std::filesystem::path out = o.out;
  agree(world, [&] {
    std::error_code error;
    if (speaks) std::filesystem::create_directories(out, error);
    if (error) throw io_error(text("--out ", o.out, ": ", error.message()));
  });
  const auto record = [&](const auto& r) {
    agree(world, [&] {
      if (speaks) append_line(out / "metrics.jsonl", r.json());
    });
  };
  if (speaks && o.resume.empty() && o.predict.empty()) std::filesystem::remove(out / "metrics.jsonl");

  const auto limit = o.store_gib > 0 ? std::uint64_t(o.store_gib * double(1 << 30)) : io::SampleStore::unbounded;
  Feed feed(net, universes, limit, o.seed);
  const long batch = net.options().batch;
  if (checkpoint.empty()) // from a few universes: the numbers only have to be about right, and the same for ever
    standard = feed.measure(std::span(set.train).first(std::min(set.train.size(), std::size_t(16))));
  feed.standardise(standard);

  double seconds_per_step = 0, samples_per_second = 0;
  if (o.predict.empty()) {
    using Augment = Feed::Augment;
    const long to_do = long(steps_per_epoch) * std::max(0, o.epochs - epoch);
    Progress progress(to_do, "steps", speaks ? Progress::Style::automatic : Progress::Style::silent);
    long done = 0, trained = 0;
    double training_seconds = 0;
    auto saved = Clock::now();
    std::string said;
    for (; epoch < o.epochs; ++epoch) {
      const std::vector<long> order = io::shuffled(set.train, o.seed, std::uint64_t(epoch));
      const auto began = Clock::now();
      double loss = 0;
      feed.start(piece(order, batch, 0));
      for (std::size_t k = 0; k < steps_per_epoch; ++k) {
        const auto b = feed.finish(o.augment ? Augment::yes : Augment::no, std::uint64_t(epoch));
        const long samples = long(b.ids.size());
        feed.start(piece(order, batch, k + 1));
        loss += trainer.step(*b.x, *b.t) * double(samples);
        trained += samples;
        progress.update(++done, said);
      }
      const double seconds = since(began);
      training_seconds += seconds;
      seconds_per_step = training_seconds / double(done);
      samples_per_second = double(trained) / training_seconds;
      loss /= double(order.size());
      const auto validation = predict(net, feed, set, set.validation).mse();
      record(EpochRecord{.epoch = epoch + 1,
                         .train_loss = loss,
                         .validation_mse = validation,
                         .rate = o.rate * schedule.factor(trainer.steps() - 1),
                         .seconds = seconds,
                         .samples_per_second = double(order.size()) / seconds,
                         .bytes_read = world.all_reduce(std::int64_t(feed.bytes_read()))});
      char line[160];
      std::snprintf(line, sizeof line,
                    "epoch %d/%d  train %.4f  validation Omega_m %.3f sigma_8 %.3f n_s %.3f H_0 %.3f", epoch + 1,
                    o.epochs, loss, validation[0], validation[1], validation[2], validation[3]);
      said = line;
      // Short epochs would spend their time on checkpoints; rank 0 looks at the clock for all.
      const bool due = world.all_reduce(speaks && since(saved) > 60 ? 1 : 0) == 1;
      if (!due && epoch + 1 < o.epochs) continue;
      saved = Clock::now();
      std::map<std::string, io::Value> numbers{
          {"epoch", std::int64_t(epoch + 1)}, {"width", std::int64_t(o.width)}, {"seed", std::int64_t(o.seed)}};
      for (std::size_t q = 0; q < 4; ++q)
        numbers[text("mean_", q)] = standard.mean[q], numbers[text("deviation_", q)] = standard.deviation[q];
      save(trainer, (out / "checkpoint.h5").string(), numbers);
    }
    progress.finish();
    if (speaks && !said.empty()) std::printf("%s\n", said.c_str());
  }

  const Predictions test = predict(net, feed, set, set.test);
  std::int64_t halo = 0;
  for (const auto& [name, t] : net.traffic()) halo += std::int64_t(t.forward.bytes + t.backward.bytes);
  const FinalRecord final_record{.ranks = world.size(),
                                 .grid = grid.shape().str(),
                                 .width = o.width,
                                 .epochs = epoch,
                                 .test_mse = test.mse(),
                                 .seconds_per_step = seconds_per_step,
                                 .samples_per_second = samples_per_second,
                                 .bytes_read = world.all_reduce(std::int64_t(feed.bytes_read())),
                                 .halo_bytes_per_step = world.all_reduce(halo),
                                 .peak_rss_bytes = world.all_reduce(std::int64_t(peak_rss()), comm::Reduce::max)};
  record(final_record);
  agree(world, [&] {
    if (!speaks) return;
    std::vector<std::string> names;
    for (long id : test.samples)
      names.push_back(
          std::filesystem::path(set.list.files[std::size_t(set.list.samples[std::size_t(id)].file)]).filename());
    write_predictions(out / "predictions.csv", test, names);
  });
  if (speaks) {
    std::printf("%s\n", final_record.json().c_str());
    std::printf("test error (mean squared, unit targets; guessing the mean scores 0.333)\n");
    for (std::size_t p = 0; p < 4; ++p) std::printf("  %-8s %.4f\n", parameter_names[p], test.mse()[p]);
    if (o.plots) {
      const auto plots = make_plots(out, test);
      if (plots.empty()) std::printf("no plots: gnuplot is not there or failed (Debian package gnuplot-nox)\n");
      for (const auto& p : plots) std::printf("plot %s\n", p.c_str());
    }
  }
  return 0;
}
} // namespace

int main(int argc, char** argv) {
  return tessera::run(argc, argv, [&](Environment& env) -> int {
    const auto o = parse(argc, argv, env.world().rank() == 0);
    if (!o) return 0;
    return train(env, *o);
  });
}
