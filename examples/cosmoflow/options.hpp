// cosmoflow/options.hpp: what the program can be asked for, and the words it answers with when asked wrongly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tessera/base/error.hpp>

struct Options {
  std::string data = "universes", out = "out", grid, resume, predict, schedule = "linear", norm = "none";
  int width = 64, epochs = 20;
  long batch = 4;
  double rate = 5e-4;
  std::uint64_t seed = 1;
  bool tiles = false, augment = true, plots = true;
  double store_gib = 0;
};

/// Reads the command line. Nothing, if help was asked for and printed; throws usage_error on every rank if it is wrong.
std::optional<Options> parse(int argc, char** argv, bool prints);
