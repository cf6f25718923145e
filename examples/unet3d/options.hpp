// unet3d/options.hpp: what the program can be asked for, and the words it answers with when asked wrongly.
#pragma once

#include "volumes.hpp"
#include <optional>

struct Options {
  Target target = Target::brain;
  int base_width = 8, steps = 120, views = 8;
  double resolution = 2, rate = 1e-3;
  std::string grid, out = "out";
  std::uint64_t seed = 1;
  bool plots = true;
};

/// Reads the command line. Nothing, if help was asked for and printed; throws usage_error on every rank if it is wrong.
std::optional<Options> parse(int argc, char** argv, bool prints);
