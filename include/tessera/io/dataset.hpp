// io/dataset.hpp: VolumeSet, a folder of volume files with labels, split into training, validation and test by file.
//
// One file is one universe (patient, simulation): all its tiles go into the same part, or the test would know the
// answer.
//
// May know: base, comm, volume_reader, shuffle.
// Example: const auto set = VolumeSet::open(comm, "universes", VolumeReader(format), {.train = 0.8, .validation =
// 0.1});
#pragma once

#include <algorithm>
#include <filesystem>
#include <tessera/io/shuffle.hpp>
#include <tessera/io/store.hpp>

namespace tessera::io {

/// Fractions of the files; what `train` and `validation` leave is the test part.
struct Split {
  double train = 0.8, validation = 0.1;
  std::uint64_t seed = 0;
};

/// The *.hdf5 and *.h5 files of a folder, sorted by name. Rank 0 looks. Collective; all ranks throw the same io_error.
inline std::vector<std::string> hdf5_files(const Communicator& comm, const std::string& folder) {
  std::vector<std::string> files;
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      if (const auto ext = at->path().extension(); ext == ".hdf5" || ext == ".h5") files.push_back(at->path().string());
    if (error) throw io_error(text("folder '", folder, "': cannot list: ", error.message(), "; check the path"));
    if (files.empty()) throw io_error(text("folder '", folder, "': no *.hdf5 or *.h5 file in it; check the path"));
    std::sort(files.begin(), files.end());
  });
  std::string joined;
  for (const auto& f : files) joined += f + '\0';
  std::uint64_t size = joined.size();
  comm.broadcast(std::span(&size, 1), 0);
  joined.resize(size);
  comm.broadcast(std::span(joined.data(), joined.size()), 0);
  files.clear();
  for (std::size_t from = 0; from < joined.size();) {
    files.emplace_back(joined.c_str() + from);
    from += files.back().size() + 1;
  }
  return files;
}

/// Which of `files` belong to each part: deterministic, disjoint, complete; each part sorted. Each part with a positive
/// fraction gets a file if there are enough files for that.
struct FileSplit {
  std::vector<long> train, validation, test;

  static FileSplit of(long files, const Split& split) {
    const double test_fraction = 1 - split.train - split.validation;
    TESSERA_REQUIRE(split.train > 0 && split.validation >= 0 && test_fraction > -1e-9, "Split: fractions ", split.train,
                    " for training and ", split.validation,
                    " for validation; they must be positive with a sum of at most 1");
    const auto part = [&](double fraction, long most) {
      if (fraction < 1e-9) return 0L;
      return std::min(most, std::max(1L, std::lround(fraction * static_cast<double>(files))));
    };
    const long validation = part(split.validation, std::max(0L, files - 1));
    const long test = part(test_fraction, std::max(0L, files - 1 - validation));
    const std::vector<long> order = permutation(files, split.seed, Stream::split, 0);
    FileSplit s;
    for (long i = 0; i < files; ++i)
      (i < validation          ? s.validation
       : i < validation + test ? s.test
                               : s.train)
          .push_back(order[static_cast<std::size_t>(i)]);
    for (auto* p : {&s.train, &s.validation, &s.test}) std::sort(p->begin(), p->end());
    return s;
  }
};

/// Everything that all ranks know about a data set. Sample numbers are global: they do not depend on the grid.
struct VolumeSet {
  SampleList list;
  std::vector<float> labels; ///< of each file, one after the other
  long label_count = 0;
  std::vector<long> train, validation, test; ///< sample numbers, ascending

  /// Looks into the folder and checks every file. Collective; all ranks throw the same io_error.
  static VolumeSet open(const Communicator& comm, const std::string& folder, const VolumeReader& reader,
                        const Split& split) {
    VolumeSet set;
    set.list.files = hdf5_files(comm, folder);
    set.list.volumes = reader.check_all(comm, set.list.files);
    set.list.samples = samples_of(set.list.volumes, reader.format().sample);
    if (!reader.format().labels.empty()) {
      set.labels = reader.all_labels(comm, set.list.files);
      set.label_count = reader.format().label_count;
    }
    const FileSplit files = FileSplit::of(static_cast<long>(set.list.files.size()), split);
    const auto holds = [](const std::vector<long>& sorted, long f) {
      return std::binary_search(sorted.begin(), sorted.end(), f);
    };
    for (std::size_t id = 0; id < set.list.samples.size(); ++id) {
      const long file = set.list.samples[id].file;
      (holds(files.validation, file) ? set.validation
       : holds(files.test, file)     ? set.test
                                     : set.train)
          .push_back(static_cast<long>(id));
    }
    return set;
  }

  /// The labels of a sample: those of its file.
  std::span<const float> labels_of(long id) const {
    const auto n = static_cast<std::size_t>(label_count);
    const auto file = static_cast<std::size_t>(list.samples[static_cast<std::size_t>(id)].file);
    return std::span(labels).subspan(file * n, n);
  }
};

} // namespace tessera::io
