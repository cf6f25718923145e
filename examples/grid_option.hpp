// grid_option.hpp: the option --grid of the examples.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <tessera/base/error.hpp>

/// "NxDxHxW" as four numbers; the default, an empty text, puts all ranks on depth. Throws usage_error on every rank.
inline std::array<int, 4> grid_option(const std::string& grid, int ranks) {
  if (grid.empty()) return {1, ranks, 1, 1};
  std::array<int, 4> g{};
  int used = 0;
  const int read = std::sscanf(grid.c_str(), "%dx%dx%dx%d%n", &g[0], &g[1], &g[2], &g[3], &used);
  TESSERA_REQUIRE(read == 4 && std::size_t(used) == grid.size() && *std::min_element(g.begin(), g.end()) >= 1,
                  "--grid ", grid,
                  ": give NxDxHxW, for example 1x2x1x1: how many ways to split samples, depth, height and width");
  return g;
}
