// Makes a set of universes to train on: mpirun -n 4 make_universes --count 256 --width 64 --out universes
//
// Every universe depends on the seed and its index alone: not on the number of ranks, nor on how they share the work.
// A second run with the same options makes what is missing.

#include "universe_file.hpp"

#include <CLI/CLI.hpp>
#include <tessera/base/progress.hpp>
#include <tessera/comm/agree.hpp>
#include <tessera/comm/environment.hpp>
#include <tessera/space/memory.hpp>

using namespace cosmology;

namespace {

struct Options {
  Recipe recipe;
  long first = 0, count = 64;
  std::string out = "universes";
  bool split = false;
};

/// False, and the status to exit with, if there is nothing to do: a wrong option, or only help was wanted.
bool parse(int argc, char** argv, bool loud, Options& o, int& status) {
  CLI::App app("Makes universes for CosmoFlow: particle counts at four redshifts (second-order Lagrangian\n"
               "perturbation theory) and the four parameters behind them, one HDF5 file each.");
  std::string order = "channel-last", type = "int16";
  app.add_option("--count", o.count, "how many universes")->capture_default_str();
  app.add_option("--first", o.first, "index of the first one; a larger one extends a set")->capture_default_str();
  app.add_option("--width", o.recipe.width, "cells (and particles) along a side; even")->capture_default_str();
  app.add_option("--cell", o.recipe.cell, "size of a cell in Mpc/h")->capture_default_str();
  app.add_option("--seed", o.recipe.seed, "of the whole set")->capture_default_str();
  app.add_option("--range", o.recipe.range, "of the parameters, relative to their means")->capture_default_str();
  app.add_option("--out", o.out, "directory of the files; made if missing")->capture_default_str();
  app.add_option("--order", order, "of the axes; channel-last is that of the published files")
      ->check(CLI::IsMember({"channel-last", "channel-first"}))
      ->capture_default_str();
  app.add_option("--type", type, "of the counts in the file")
      ->check(CLI::IsMember({"int16", "float32"}))
      ->capture_default_str();
  app.add_flag("--split", o.split, "share each universe between all ranks instead of giving each rank its own");
  try {
    app.parse(argc, argv);
    o.recipe.order = order == "channel-last" ? Order::channel_last : Order::channel_first;
    o.recipe.type = type == "int16" ? tessera::io::ElementType::i16 : tessera::io::ElementType::f32;
    return true;
  } catch (const CLI::ParseError& e) {
    status = e.get_exit_code() == 0 ? 0 : 1;
    if (loud) app.exit(e);
    return false;
  }
}

void check(const Options& o) {
  Universe::check_width(o.recipe.width);
  TESSERA_REQUIRE(o.count >= 1, "--count ", o.count, ": give at least 1");
  constexpr long most = std::numeric_limits<std::uint32_t>::max();
  TESSERA_REQUIRE(o.first >= 0 && o.first <= most - o.count, "--first ", o.first, ": indices run from 0 to ", most);
  TESSERA_REQUIRE(o.recipe.cell > 0 && o.recipe.cell <= 1000, "--cell ", o.recipe.cell,
                  ": give the size of a cell in Mpc/h, above 0 and at most 1000");
  TESSERA_REQUIRE(o.recipe.seed >= 0, "--seed ", o.recipe.seed, ": give 0 or more");
  draw(0, 0, o.recipe.range); // checks the range
}

/// Bytes that programs can still get on all the machines of `comm` together; 0 if a machine does not tell.
double memory_available(const Communicator& comm) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto here = static_cast<double>(tessera::available_memory());
  const auto hosts = comm.all_gather(std::span<const char>(host));
  const auto memory = comm.all_gather(std::span<const double>(&here, 1));
  std::map<std::vector<char>, double> machines;
  for (std::size_t r = 0; r < hosts.size(); ++r) machines[hosts[r]] = memory[r][0];
  double sum = 0;
  for (const auto& [name, bytes] : machines) {
    if (bytes == 0) return 0;
    sum += bytes;
  }
  return sum;
}

/// In how many groups the ranks work, each on one universe at a time: as many as there are ranks, universes and memory.
int choose_groups(const Communicator& world, const Options& o, std::size_t universes) {
  const double each = Universe::bytes(o.recipe.width), available = memory_available(world);
  std::size_t groups = o.split ? 1 : std::min(universes, static_cast<std::size_t>(world.size()));
  if (available == 0) return static_cast<int>(groups);
  while (groups > 0 && each * static_cast<double>(groups) > available) --groups;
  TESSERA_REQUIRE(groups > 0, "a universe of width ", o.recipe.width, " needs ", std::lround(each / 1e6),
                  " MB and all machines together have ", std::lround(available / 1e6),
                  " MB free; use more machines or a smaller --width");
  return static_cast<int>(groups);
}

/// The indices whose files are not there yet. All ranks look, each at its share, and get the same list.
std::vector<long> missing(const Communicator& world, const Options& o) {
  std::vector<long> mine, all;
  tessera::agree(world, [&] {
    if (world.rank() > 0) return;
    std::error_code error;
    std::filesystem::create_directories(o.out, error);
    if (!error && ::access(o.out.c_str(), W_OK) != 0) error = std::error_code(errno, std::generic_category());
    if (error)
      throw tessera::io_error(tessera::text("directory '", o.out, "' (--out): cannot write there: ", error.message(),
                                            "; name another one"));
  });
  tessera::agree(world, [&] {
    for (long i = o.first + world.rank(); i < o.first + o.count; i += world.size())
      if (!have_universe(o.out, o.recipe, i)) mine.push_back(i);
  });
  for (const auto& share : world.all_gather(std::span<const long>(mine)))
    all.insert(all.end(), share.begin(), share.end());
  std::sort(all.begin(), all.end());
  return all;
}

void make_one(const Communicator& comm, Universe& universe, const Options& o, long index) {
  const auto seed = static_cast<std::uint64_t>(o.recipe.seed);
  const auto number = static_cast<std::uint32_t>(index);
  const Draw drawn = draw(seed, number, o.recipe.range);
  universe.draw_density(LinearPower(drawn.physical), o.recipe.cell, seed, number);
  universe.displace();
  const auto counts = universe.count(drawn.physical.omega_m);
  write_universe(comm, o.out, o.recipe, index, drawn, universe, counts);
}

void make(const Communicator& world, const Options& o, const std::vector<long>& indices) {
  const int groups = choose_groups(world, o, indices.size());
  const int group = static_cast<int>(static_cast<long>(world.rank()) * groups / world.size());
  const Communicator comm = world.split(group);
  std::optional<Universe> universe;
  tessera::agree(world, [&] { universe.emplace(comm, o.recipe.width); });

  using Style = tessera::Progress::Style;
  tessera::Progress progress(static_cast<long>(indices.size()), "universes",
                             world.rank() == 0 ? Style::automatic : Style::silent);
  for (std::size_t begin = 0; begin < indices.size(); begin += static_cast<std::size_t>(groups)) {
    std::string failure;
    try {
      if (const std::size_t at = begin + static_cast<std::size_t>(group); at < indices.size())
        make_one(comm, *universe, o, indices[at]);
    } catch (const tessera::io_error& e) { failure = e.what(); } catch (const tessera::usage_error& e) {
      failure = e.what();
    }
    tessera::agree(world, failure); // after each round, so that one rank's failure ends the others too
    progress.update(static_cast<long>(std::min(indices.size(), begin + static_cast<std::size_t>(groups))));
  }
}

} // namespace

int main(int argc, char** argv) {
  return tessera::run(argc, argv, [argc, argv](tessera::Environment& env) {
    const Communicator& world = env.world();
    Options o;
    int status = 0;
    if (!parse(argc, argv, world.rank() == 0, o, status)) return status;
    check(o);
    const std::vector<long> indices = missing(world, o);
    if (!indices.empty()) make(world, o, indices);
    if (world.rank() == 0)
      std::printf("%ld universes of width %ld in %s: %ld made, %ld were there\n", o.count, o.recipe.width,
                  o.out.c_str(), static_cast<long>(indices.size()), o.count - static_cast<long>(indices.size()));
    return 0;
  });
}
