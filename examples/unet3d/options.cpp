#include "options.hpp"
#include <CLI/CLI.hpp>
#include <cstdio>

std::optional<Options> parse(int argc, char** argv, bool prints) {
  Options o;
  bool no_plots = false;
  CLI::App app{"Trains a 3D U-Net on one human head, whole volumes split over the ranks, and segments another."};
  app.add_option(
         "--target", o.target,
         "brain: the brain mask, tested on another human; regions: nine groups of the AAL atlas, trained on the "
         "left half, tested on the right half in a mirror")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Target>{{"brain", Target::brain}, {"regions", Target::regions}}))
      ->default_str("brain");
  app.add_option("--base-width", o.base_width, "channels of the first convolution; the paper's network has 32")
      ->capture_default_str();
  app.add_option("--resolution", o.resolution, "mm between voxels")->capture_default_str();
  app.add_option("--grid", o.grid, "1xDxHxW: ways to split depth, height, width (default: all ranks on depth)");
  app.add_option("--steps", o.steps, "training steps of one volume each")->capture_default_str();
  app.add_option("--views", o.views, "turned, stretched and mirrored copies of the head to train on")
      ->capture_default_str();
  app.add_option("--rate", o.rate, "learning rate of Adam; decays by a cosine")->capture_default_str();
  app.add_option("--seed", o.seed, "of weights and views")->capture_default_str();
  app.add_option("--out", o.out, "folder for metrics.jsonl, segmentation.nii.gz and pictures")->capture_default_str();
  app.add_flag("--no-plots", no_plots, "do not call gnuplot");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (prints) std::fputs(app.help().c_str(), stdout);
    return {};
  } catch (const CLI::ParseError& e) {
    throw tessera::usage_error(std::string(e.what()) + "; --help lists the options");
  }
  o.plots = !no_plots;
  TESSERA_REQUIRE(o.base_width >= 1 && o.base_width <= 256, "--base-width ", o.base_width, ": give 1 to 256");
  TESSERA_REQUIRE(o.resolution >= 0.5 && o.resolution <= 8, "--resolution ", o.resolution, ": give 0.5 to 8 mm");
  TESSERA_REQUIRE(o.steps >= 0 && o.views >= 1, "--steps ", o.steps, " --views ", o.views,
                  ": give at least 0 steps and 1 view");
  TESSERA_REQUIRE(o.rate > 0, "--rate ", o.rate, ": give a positive rate");
  return o;
}
