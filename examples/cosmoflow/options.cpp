#include "options.hpp"
#include <CLI/CLI.hpp>

std::optional<Options> parse(int argc, char** argv, bool prints) {
  Options o;
  CLI::App app{
      "Trains CosmoFlow: four cosmological parameters from the matter in a cube, each cube split over the ranks."};
  bool no_augmentation = false, no_plots = false;
  app.add_option("--data", o.data, "folder of universe files (*.hdf5), as make_universes writes them")
      ->capture_default_str();
  app.add_option("--width", o.width, "cells a side of a sample: 32, 64, 128, 256 or 512")->capture_default_str();
  app.add_flag("--tiles", o.tiles, "cut larger files into samples of this width");
  app.add_option("--grid", o.grid,
                 "NxDxHxW: ways to split samples, depth, height, width (default: all ranks on depth)");
  app.add_option("--batch", o.batch, "samples per step over all ranks")->capture_default_str();
  app.add_option("--epochs", o.epochs, "passes over the training samples")->capture_default_str();
  app.add_option("--rate", o.rate, "learning rate of Adam")->capture_default_str();
  app.add_option("--norm", o.norm, "none, or batch: batch normalisation over all ranks after each convolution")
      ->check(CLI::IsMember({"none", "batch"}))
      ->capture_default_str();
  app.add_option("--schedule", o.schedule,
                 "of the rate: constant, linear (decay to 1 %) or cosine; all warm up for one epoch")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of weights, dropout, shuffles, split and augmentation")->capture_default_str();
  app.add_option("--out", o.out, "folder for metrics.jsonl, predictions.csv, checkpoint.h5 and plots")
      ->capture_default_str();
  app.add_option("--resume", o.resume, "checkpoint to go on from, on any grid");
  app.add_option("--predict", o.predict, "checkpoint to predict the test samples with; trains nothing");
  app.add_option("--store-gib", o.store_gib, "host memory a rank may keep samples in (0: as much as it takes)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--no-augmentation", no_augmentation,
               "train on the cubes as they are, without flips and permutations of axes");
  app.add_flag("--no-plots", no_plots, "do not call gnuplot");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (prints) std::fputs(app.help().c_str(), stdout);
    return {};
  } catch (const CLI::ParseError& e) {
    throw tessera::usage_error(std::string(e.what()) + "; --help lists the options");
  }
  o.augment = !no_augmentation, o.plots = !no_plots;
  TESSERA_REQUIRE(o.width == 32 || o.width == 64 || o.width == 128 || o.width == 256 || o.width == 512, "--width ",
                  o.width, ": the network exists for 32, 64, 128, 256 and 512");
  TESSERA_REQUIRE(o.batch >= 1, "--batch ", o.batch, ": give at least 1");
  TESSERA_REQUIRE(o.epochs >= 0, "--epochs ", o.epochs, ": give at least 0");
  TESSERA_REQUIRE(o.rate > 0, "--rate ", o.rate, ": give a positive rate");
  TESSERA_REQUIRE(o.resume.empty() || o.predict.empty(), "--resume and --predict exclude each other");
  return o;
}
