// cosmoflow/universe_file.hpp: universes as HDF5 files in the published layout, and which of a set are there already.
//
// A file holds `full` (counts), `unitPar`, `physPar`, `namePar`, `redshifts`, and as attributes all that the counts
// follow from. It is written under another name and renamed when complete, so a file with its final name is whole.
//
// May know: universe.hpp, tessera (io, comm).
// Example: if (!have_universe(dir, recipe, 7)) write_universe(comm, dir, recipe, 7, drawn, universe, counts);
#pragma once

#include "universe.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tessera/io/hdf5.hpp>

namespace cosmology {

/// The published files keep the redshifts last; LBANN splits files that keep them first.
enum class Order { channel_last, channel_first };

/// What, together with its index, determines a universe's file.
struct Recipe {
  long width = 64;       ///< cells along a side
  double cell = 4;       ///< Mpc/h
  std::int64_t seed = 1; ///< of the whole set
  double range = 0.1;    ///< of the parameters, relative to their means
  Order order = Order::channel_last;
  tessera::io::ElementType type = tessera::io::ElementType::i16; ///< of the counts in the file: i16 or f32
};

/// Raised whenever the same recipe gives other counts than before.
inline constexpr std::int64_t generator_version = 1;

using Attributes = std::map<std::string, tessera::io::Value>;

inline Attributes attributes(const Recipe& r, long index) {
  using Whole = std::int64_t;
  return {{"generator", "tessera make_universes"},
          {"generator_version", generator_version},
          {"seed", r.seed},
          {"index", Whole{index}},
          {"width", Whole{r.width}},
          {"cell", r.cell},
          {"range", r.range},
          {"order", r.order == Order::channel_last ? "channel-last" : "channel-first"},
          {"type", std::string(tessera::io::name_of(r.type))}};
}

inline std::filesystem::path universe_path(const std::filesystem::path& dir, long index) {
  char name[48];
  std::snprintf(name, sizeof name, "universe_%06ld.hdf5", index);
  return dir / name;
}

/// True if the universe's file is there and follows from this recipe; false if there is none.
/// usage_error that says what differs if the file follows from another recipe; io_error if it cannot be read.
inline bool have_universe(const std::filesystem::path& dir, const Recipe& recipe, long index) {
  const auto path = universe_path(dir, index);
  std::error_code none;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, none))) return false;
  Attributes found;
  try {
    found = tessera::io::Hdf5Reader(path.string()).attributes();
  } catch (const tessera::io_error& e) {
    throw tessera::io_error(tessera::text(e.what(), "; or delete it, and it is made again"));
  }
  auto str = [](const tessera::io::Value& v) {
    if (const auto* s = std::get_if<std::string>(&v)) return *s;
    if (const auto* i = std::get_if<std::int64_t>(&v)) return std::to_string(*i);
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", std::get<double>(v));
    return std::string(number);
  };
  std::string differs;
  for (const auto& [name, wanted] : attributes(recipe, index)) {
    const auto at = found.find(name);
    if (at != found.end() && at->second == wanted) continue;
    differs += (differs.empty() ? "" : ", ") + name + " is " + (at == found.end() ? "missing" : str(at->second)) +
               ", not " + str(wanted);
  }
  TESSERA_REQUIRE(differs.empty(), "file '", path.string(), "' is another universe: ", differs,
                  "; give the options it was made with, or another directory");
  return true;
}

/// Writes one universe whose slabs lie on the ranks of `comm`; rank 0 of it writes the file. `counts` is what
/// Universe::count returned here. Collective. If that fails, rank 0 alone throws io_error, and there is no file with
/// the final name: the caller lets the ranks agree.
inline void write_universe(const Communicator& comm, const std::filesystem::path& dir, const Recipe& recipe, long index,
                           const Draw& drawn, const Universe& universe, std::span<const std::int16_t> counts) {
  constexpr long channels = redshifts.size();
  constexpr int tag = 103;
  constexpr long planes_at_once = 16; // bounds what the writing rank holds of the others' slabs
  const long n = universe.width(), plane = n * n * channels;
  const auto path = universe_path(dir, index);
  const auto unfinished = std::filesystem::path(path).concat(".part");
  const bool last = recipe.order == Order::channel_last;

  // The slabs pass rank 0 in pieces of planes, in order. It takes all of them even after a failure.
  auto each_piece = [&](int r, auto&& f) {
    const Interval slab = universe.slabs()[r];
    for (long lo = slab.lo; lo < slab.hi; lo += planes_at_once) f(Interval{lo, std::min(slab.hi, lo + planes_at_once)});
  };
  auto own = [&](const Interval& x) {
    return counts.subspan(detail::to_size((x.lo - universe.planes().lo) * plane), detail::to_size(x.size() * plane));
  };
  if (comm.rank() > 0) {
    each_piece(comm.rank(), [&](const Interval& x) { comm.isend(0, tag, own(x)).wait(); });
    return;
  }

  std::string failure;
  std::optional<tessera::io::Hdf5Writer> file;
  auto attempt = [&](auto&& f) {
    if (!failure.empty()) return;
    try {
      f();
    } catch (const tessera::error& e) { failure = e.what(); }
  };
  attempt([&] {
    file.emplace(unfinished.string());
    for (const auto& [name, value] : attributes(recipe, index)) file->attribute("/", name, value);
    const std::array<long, 4> extents = last ? std::array{n, n, n, channels} : std::array{channels, n, n, n};
    if (recipe.type == tessera::io::ElementType::f32)
      file->create<float>("full", extents);
    else
      file->create<std::int16_t>("full", extents);
  });
  std::vector<std::int16_t> received, one_channel;
  for (int r = 0; r < comm.size(); ++r)
    each_piece(r, [&](const Interval& x) {
      std::span<const std::int16_t> piece;
      if (r == 0)
        piece = own(x);
      else {
        received.resize(detail::to_size(x.size() * plane));
        comm.irecv(r, tag, std::span(received)).wait();
        piece = received;
      }
      attempt([&] {
        if (last) {
          file->write<std::int16_t>("full", std::array{x.lo, 0L, 0L, 0L}, std::array{x.hi, n, n, channels}, piece);
          return;
        }
        one_channel.resize(piece.size() / channels);
        for (long c = 0; c < channels; ++c) {
          for (std::size_t i = 0; i < one_channel.size(); ++i)
            one_channel[i] = piece[i * channels + detail::to_size(c)];
          file->write<std::int16_t>("full", std::array{c, x.lo, 0L, 0L}, std::array{c + 1, x.hi, n, n}, one_channel);
        }
      });
    });
  attempt([&] {
    auto floats = [&](const char* name, const auto& values) {
      std::vector<float> v;
      for (const auto value : values) v.push_back(static_cast<float>(value));
      const auto size = static_cast<long>(v.size());
      file->write_all<float>(name, std::span(&size, 1), v);
    };
    floats("unitPar", drawn.unit);
    floats("physPar", drawn.physical.values());
    floats("redshifts", redshifts);
    file->write_strings("namePar", std::vector<std::string>(names.begin(), names.end()));
    file->close();
    std::error_code error;
    std::filesystem::rename(unfinished, path, error);
    if (error) throw tessera::io_error(tessera::text("file '", path.string(), "': cannot rename: ", error.message()));
  });
  if (failure.empty()) return;
  file.reset();
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  throw tessera::io_error(failure);
}

} // namespace cosmology
