#include "files.hpp"

#include <map>
#include <numeric>
#include <set>
#include <tessera/io/dataset.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

TEST_CASE("dataset: a folder is found, checked, cut into tiles and split by file, the same on any number of ranks") {
  on_ranks([](const Communicator& c) {
    const Scratch dir(c);
    if (c.rank() == 0) {
      for (int f = 0; f < 12; ++f)
        write_volume<std::int16_t>(dir / text(f % 2 ? "b" : "a", f, f % 3 ? ".hdf5" : ".h5"), f, {{1, 4, 4, 8}},
                                   Stored::channel_last);
      std::ofstream(dir / "notes.txt") << "not a volume";
    }
    c.barrier();
    VolumeFormat f;
    f.sample = {{4, 4, 4}};
    f.cut = Cut::tiles;
    f.labels = "unitPar";
    f.label_count = 4;
    const VolumeSet set = VolumeSet::open(c, dir.path(), VolumeReader(f), {.train = 0.6, .validation = 0.2, .seed = 3});
    CHECK(set.list.files.size() == 12);
    CHECK(std::is_sorted(set.list.files.begin(), set.list.files.end()));
    CHECK(set.list.files[0] == dir / "a0.h5");
    CHECK(set.list.samples.size() == 24);
    // 12 files: 0.2 of them are 2.4, so 2 for validation and 2 for the test; two tiles each
    CHECK(set.validation.size() == 4);
    CHECK(set.test.size() == 4);
    CHECK(set.train.size() == 16);
    std::map<long, std::set<int>> parts; // of each file
    std::set<long> all;
    int part = 0;
    for (const auto* ids : {&set.train, &set.validation, &set.test}) {
      for (const long id : *ids) {
        all.insert(id);
        parts[set.list.samples[static_cast<std::size_t>(id)].file].insert(part);
      }
      ++part;
    }
    CHECK(all.size() == 24);
    for (const auto& [file, in] : parts) CHECK(in.size() == 1);
    // File "b11.hdf5" is the 8th by name: a0 a10 a2 a4 a6 a8 b1 b11 ...; its labels begin with 11.
    CHECK(set.labels_of(14)[0] == 11);
    CHECK(set.labels_of(15)[3] == 14);
    const FileSplit alone = FileSplit::of(12, {.train = 0.6, .validation = 0.2, .seed = 3});
    for (const long id : set.test)
      CHECK(std::ranges::find(alone.test, set.list.samples[static_cast<std::size_t>(id)].file) != alone.test.end());
  });
}

TEST_CASE("dataset: every part gets a file while there are enough") {
  const auto sizes = [](long files, double train, double validation) {
    const FileSplit s = FileSplit::of(files, {train, validation, 1});
    return std::array{s.train.size(), s.validation.size(), s.test.size()};
  };
  using Sizes = std::array<std::size_t, 3>;
  CHECK(sizes(100, 0.8, 0.1) == Sizes{80, 10, 10});
  CHECK(sizes(5, 0.8, 0.1) == Sizes{3, 1, 1});
  CHECK(sizes(2, 0.8, 0.1) == Sizes{1, 1, 0});
  CHECK(sizes(1, 0.8, 0.1) == Sizes{1, 0, 0});
  CHECK(sizes(7, 1, 0) == Sizes{7, 0, 0});
  CHECK(sizes(10, 0.9, 0) == Sizes{9, 0, 1});
  CHECK_THROWS_AS(sizes(10, 0.9, 0.2), usage_error);
  CHECK_THROWS_AS(sizes(10, 0, 0.2), usage_error);
  CHECK(FileSplit::of(50, {.seed = 1}).test != FileSplit::of(50, {.seed = 2}).test);
}

TEST_CASE("dataset: folders without volumes are the same io_error everywhere") {
  on_ranks({1, 3}, [](const Communicator& c) {
    const Scratch dir(c);
    const std::string empty = all_throw<io_error>(c, [&] { hdf5_files(c, dir.path()); });
    CHECK(empty.find("no *.hdf5 or *.h5 file") != empty.npos);
    const std::string absent = all_throw<io_error>(c, [&] { hdf5_files(c, dir / "absent"); });
    CHECK(absent.find(dir / "absent") != absent.npos);
    CHECK(absent.find("No such file") != absent.npos);
  });
}

TEST_CASE("shuffle: every epoch is another permutation, and all permutations are equally likely") {
  std::vector<long> ids(101);
  std::iota(ids.begin(), ids.end(), 1000L);
  std::set<std::vector<long>> different;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<long> order = shuffled(ids, 42, epoch);
    CHECK(order == shuffled(ids, 42, epoch));
    different.insert(order);
    std::sort(order.begin(), order.end());
    CHECK(order == ids);
  }
  CHECK(different.size() == 20);
  CHECK(shuffled(ids, 42, 0) != shuffled(ids, 43, 0));
  CHECK(shuffled(ids, 42, 0) != shuffled(ids, 42 + (std::uint64_t{1} << 40), 0));
  std::map<std::vector<long>, int> count;
  for (std::uint64_t k = 0; k < 24000; ++k) ++count[permutation(4, k / 10, Stream::order, k % 10)];
  CHECK(count.size() == 24);
  double chi2 = 0;
  for (const auto& [order, n] : count) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  CHECK(chi2 < 58); // 23 degrees of freedom: a chance of 8e-5
}
