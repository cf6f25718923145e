// unet3d: trains a 3D U-Net on one human head and segments another, whole volumes, split over the ranks.
//
//   mpirun -n 2 unet3d --target brain --resolution 2 --base-width 8 --out out
//
// No sliding windows: every voxel sees what the network's windows reach, whichever rank holds it.
#include "../grid_option.hpp"
#include "network.hpp"
#include "options.hpp"
#include "slices.hpp"
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <tessera/base/progress.hpp>
#include <tessera/comm/environment.hpp>
#include <tessera/kernel/random.hpp>
#include <tessera/net/memory.hpp>
#include <tessera/train/metrics.hpp>
#include <tessera/train/trainer.hpp>

namespace {
using namespace tessera;
using Clock = std::chrono::steady_clock;
using Image = Tensor<float, 5>;
using Labels = Tensor<std::uint8_t, 5>;

/// Number `i` of view `view`, uniform in [-1, 1]: the same on every rank.
double draw(std::uint64_t seed, int view, std::uint64_t i) {
  return 2 * double(kernel::uniform(kernel::random_word(kernel::random_key(seed, 7001, std::uint64_t(view)), i))) - 1;
}

/// The grid turned by up to 10 degrees about each axis, stretched by up to 15 % and, every second time, mirrored left
/// to right, about its middle. View 0 is the grid itself.
io::VoxelGrid turned(const io::VoxelGrid& grid, std::uint64_t seed, int view, bool mirror) {
  if (view == 0) return grid;
  io::Affine about_middle, change;
  for (int k = 0; k < 3; ++k) about_middle.m[k][3] = -0.5 * double(grid.extents[2 - k] - 1);
  for (int axis = 0; axis < 3; ++axis) {
    const double angle = draw(seed, view, std::uint64_t(axis)) * 10 * std::numbers::pi / 180;
    io::Affine turn;
    const int a = (axis + 1) % 3, b = (axis + 2) % 3;
    turn.m[a][a] = turn.m[b][b] = std::cos(angle);
    turn.m[a][b] = -std::sin(angle), turn.m[b][a] = std::sin(angle);
    change = turn * change;
  }
  io::Affine stretch;
  for (int k = 0; k < 3; ++k) stretch.m[k][k] = 1 + 0.15 * draw(seed, view, 3 + std::uint64_t(k));
  if (mirror && view % 2 == 1) stretch.m[0][0] *= -1;
  return {grid.extents, grid.affine * about_middle.inverse() * stretch * change * about_middle};
}

/// Other contrasts of the same head: v -> gain * sign(v) |v|^gamma + offset + a slow drift over space, and noise. All
/// from the global index, so the same on any grid.
void disturb(const Image& from, Image& to, std::uint64_t seed, std::uint64_t step) {
  const kernel::PhiloxKey key = kernel::random_key(seed, 7002, step), noise = kernel::random_key(seed, 7003, step);
  const auto u = [&](std::uint64_t i) { return 2 * double(kernel::uniform(kernel::random_word(key, i))) - 1; };
  const double gain = std::exp(0.4 * u(0)), gamma = std::exp(0.4 * u(1)), offset = 0.4 * u(2),
               grain = 0.1 * std::abs(u(3));
  const double drift[3] = {0.4 * u(4), 0.4 * u(5), 0.4 * u(6)};
  const View<const float, 5> x = from.view();
  const View<float, 5> y = to.view();
  const Extents<5>& e = from.extents();
  for_each_index(whole(x.extents), [&](const Index<5>& i) {
    const Index<5> g = i + from.box().lo;
    const double v = double(x[i]);
    double slow = 1;
    for (int k = 0; k < 3; ++k) slow += drift[k] * (double(g[2 + k]) / double(e[2 + k]) - 0.5);
    const auto cell = std::uint64_t((g[2] * e[3] + g[3]) * e[4] + g[4]);
    const double rough = grain * (double(kernel::uniform(kernel::random_word(noise, cell))) - 0.5);
    y[i] = float(gain * slow * (v < 0 ? -1 : 1) * std::pow(std::abs(v), gamma) + offset + rough);
  });
}

/// Dice of each class, by name.
nlohmann::json per_class(const Confusion& c, const std::vector<std::string>& names) {
  nlohmann::json j;
  for (std::size_t k = 1; k < names.size(); ++k) j[names[k]] = c.dice(long(k));
  return j;
}

int train(Environment& env, const Options& o) {
  const Communicator world = env.world();
  const bool speaks = world.rank() == 0, brain = o.target == Target::brain;
  const std::array<int, 4> sizes = grid_option(o.grid, world.size());
  TESSERA_REQUIRE(sizes[0] == 1, "--grid ", o.grid, ": there is one sample at a time; give 1xDxHxW");
  const Grid<4> grid(world, sizes);
  const auto names = class_names(o.target);
  const int classes = class_count(o.target);

  // Honest splits of what there is: another human, or the other half seen in a mirror.
  const Subject learnt = colin(), unseen = brain ? itk_head() : colin();
  const GridWish wish{.resolution = o.resolution, .half = brain ? Half::both : Half::left};
  GridWish other = wish;
  if (!brain) other.half = Half::right_mirrored;
  const io::VoxelGrid ours = head_grid(world, learnt, wish), theirs = head_grid(world, unseen, other);

  const auto net = make_network(o.base_width, classes, ours.extents, grid, o.seed);
  const auto loss = cross_entropy{} + dice{};
  Trainer trainer(*net, adam{.rate = o.rate}, loss, cosine(std::uint64_t(std::max(1, o.steps)), 0.02));
  const std::string memory = memory_report(*net, int(trainer.moment_count));
  if (speaks) std::fputs(memory.c_str(), stdout);

  std::vector<Image> images;
  std::vector<Labels> labels;
  for (int v = 0; v < o.views; ++v) {
    images.push_back(net->make_input());
    labels.push_back(net->make_labels());
    load_sample(learnt, o.target, turned(ours, o.seed, v, brain), images.back(), labels.back(), 0);
  }

  const std::filesystem::path out(o.out);
  std::ofstream metrics;
  agree(world, [&] {
    if (!speaks) return;
    std::filesystem::create_directories(out);
    metrics.open(out / "metrics.jsonl");
    if (!metrics) throw io_error(text((out / "metrics.jsonl").string(), ": cannot be written"));
  });

  Image x = net->make_input();
  const auto start = Clock::now();
  {
    Progress progress(o.steps, "steps", speaks ? Progress::Style::automatic : Progress::Style::silent);
    for (int s = 0; s < o.steps; ++s) {
      const auto view = std::size_t(s) % images.size();
      disturb(images[view], x, o.seed, std::uint64_t(s));
      const double value = trainer.step(x, labels[view]);
      if (speaks) {
        metrics << nlohmann::json{{"event", "step"}, {"step", s + 1}, {"loss", value}} << '\n';
        progress.update(s + 1, text("loss ", value));
      }
      TESSERA_REQUIRE(std::isfinite(value), "the loss is ", value, " in step ", s + 1, "; use a lower --rate");
    }
    progress.finish();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();

  // The same weights for a volume of another size.
  const auto test = make_network(o.base_width, classes, theirs.extents, grid, o.seed);
  std::ranges::copy(net->parameters(), test->parameters().begin());
  std::ranges::copy(net->state(), test->state().begin());
  Image head = test->make_input();
  Labels truth = test->make_labels(), found = test->make_labels();
  load_sample(unseen, o.target, theirs, head, truth, 0);
  argmax(test->forward(head, Mode::inference), found);
  ConfusionCounter counter(classes);
  counter.add_labels(found, truth);
  const Confusion all = counter.result();

  const Extents<3>& e = theirs.extents;
  const std::string segmentation = (out / "segmentation.nii.gz").string();
  io::write_nifti(segmentation, found,
                  io::NiftiHeader::make({{1, e[0], e[1], e[2]}}, theirs.affine, io::element_type_of<std::uint8_t>()));
  std::int64_t halo = 0;
  for (const auto& [name, t] : net->traffic()) halo += std::int64_t(t.forward.bytes + t.backward.bytes);
  halo = world.all_reduce(halo);
  const Picture picture = overlay(head, {&truth, &found}, 0, middle_of(truth, 0));
  if (speaks) {
    const nlohmann::json last{{"event", "final"},
                              {"target", brain ? "brain" : "regions"},
                              {"ranks", world.size()},
                              {"grid", grid.shape().str()},
                              {"resolution_mm", o.resolution},
                              {"base_width", o.base_width},
                              {"steps", o.steps},
                              {"test_dice", per_class(all, names)},
                              {"test_mean_dice", all.mean_dice(Background::left_out)},
                              {"test_accuracy", all.accuracy()},
                              {"seconds_per_step", o.steps > 0 ? seconds / o.steps : 0},
                              {"halo_bytes_per_step", halo}};
    metrics << last << '\n';
    std::printf("Dice on %s\n", brain ? "another human" : "the right half, seen in a mirror");
    for (int k = 1; k < classes; ++k) std::printf("  %-24s %.3f\n", names[std::size_t(k)].c_str(), all.dice(k));
    std::printf("  %-24s %.3f   (from intensities alone %.3f)\n", "mean", all.mean_dice(Background::left_out),
                brain ? 0.779 : 0.05);
    std::printf("segmentation %s\n", segmentation.c_str());
    const std::string png = (out / "slices.png").string();
    if (o.plots)
      std::printf(write_png(png, picture) ? "picture %s: true labels above, found ones below\n"
                                          : "no picture %s: gnuplot is not there or failed (package gnuplot-nox)\n",
                  png.c_str());
  }
  return 0;
}
} // namespace

int main(int argc, char** argv) {
  return tessera::run(argc, argv, [&](Environment& env) -> int {
    const auto o = parse(argc, argv, env.world().rank() == 0);
    return o ? train(env, *o) : 0;
  });
}
