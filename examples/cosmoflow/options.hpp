// cosmoflow/options.hpp: what the program can be asked for, and the words it answers with when asked wrongly.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
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

  /// "NxDxHxW" as four numbers; the default puts all ranks on depth.
  std::array<int, 4> grid_sizes(int ranks) const {
    if (grid.empty()) return {1, ranks, 1, 1};
    std::array<int, 4> g{};
    int used = 0;
    const int read = std::sscanf(grid.c_str(), "%dx%dx%dx%d%n", &g[0], &g[1], &g[2], &g[3], &used);
    TESSERA_REQUIRE(read == 4 && std::size_t(used) == grid.size() && *std::min_element(g.begin(), g.end()) >= 1,
                    "--grid ", grid,
                    ": give NxDxHxW, for example 1x2x1x1: how many ways to split samples, depth, height "
                    "and width");
    return g;
  }
};

/// Reads the command line. Nothing, if help was asked for and printed; throws usage_error on every rank if it is wrong.
std::optional<Options> parse(int argc, char** argv, bool prints);
