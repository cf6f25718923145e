#include "files.hpp"

#include <numeric>
#include <tessera/io/store.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {
constexpr Extents<3> cube{{6, 6, 6}};
constexpr long channels = 2;

/// `groups` sample groups, each a spatial grid: rank = group * product(grid) + place.
struct Groups {
  int groups;
  Index<3> grid;
};
std::vector<Groups> groupings(int ranks) {
  std::vector<Groups> all;
  for (int g = 1; g <= ranks; ++g)
    if (ranks % g == 0) {
      const long s = ranks / g;
      all.push_back({g, {{s, 1, 1}}});
      if (s % 2 == 0) all.push_back({g, {{s / 2, 1, 2}}});
    }
  return all;
}

struct Setup {
  Communicator all, samples, space;
  Groups how;
  int group, place;
  std::vector<Box<4>> boxes;

  Setup(const Communicator& c, const Groups& g)
      : all(c), how(g), group(c.rank() / static_cast<int>(product(g.grid))),
        place(c.rank() % static_cast<int>(product(g.grid))) {
    samples = c.split(place);
    space = c.split(group);
    for (int r = 0; r < space.size(); ++r) boxes.push_back(block(channels, cube, g.grid, r));
  }
  StoreRanks ranks() const { return {all, samples, boxes[static_cast<std::size_t>(place)]}; }
};

VolumeReader make_reader() {
  VolumeFormat f;
  f.channels = channels;
  f.sample = cube;
  f.labels = "unitPar";
  f.label_count = 4;
  f.cut = Cut::tiles;
  return VolumeReader(f);
}

/// Ten samples: eight files, one of them (number 3, int16) with three tiles in depth; types and orders mixed.
SampleList make_files(const Communicator& c, const Scratch& dir, std::uint64_t& bytes) {
  SampleList list;
  bytes = 0;
  for (long f = 0; f < 8; ++f) {
    list.files.push_back(dir / text("u", f, ".h5"));
    const Extents<4> e{{channels, f == 3 ? 18 : 6, 6, 6}};
    const Stored order = f % 2 ? Stored::channel_first : Stored::channel_last;
    if (c.rank() == 0) {
      if (f % 3 == 0)
        write_volume<std::int16_t>(list.files.back(), f, e, order);
      else
        write_volume<float>(list.files.back(), f, e, order, {{2, 4, 4, 2}, 1});
    }
    bytes += static_cast<std::uint64_t>(product(e)) * (f % 3 == 0 ? 2 : 4);
  }
  c.barrier();
  list.volumes = make_reader().check_all(c, list.files);
  list.samples = samples_of(list.volumes, cube);
  return list;
}

/// How many voxels of `x` (this rank's part of a batch) differ from the samples `ids[first...]`, seen through
/// `symmetry`.
template <class F>
long wrong_voxels(const SampleList& list, std::span<const long> ids, long first, const Box<4>& box,
                  const View<float, 5>& x, const F& symmetry) {
  long wrong = 0;
  for (long n = 0; n < x.extents[0]; ++n)
    for_each_index(box, [&](const Index<4>& i) {
      float want = 0;
      if (first + n < static_cast<long>(ids.size())) {
        const long id = ids[static_cast<std::size_t>(first + n)];
        const Sample& s = list.samples[static_cast<std::size_t>(id)];
        const Index<3> j = symmetry(id).apply(Index<3>{{i[1], i[2], i[3]}}, cube) + s.origin;
        want = static_cast<float>(voxel(s.file, {{i[0], j[0], j[1], j[2]}}));
      }
      const Index<4> at = i - box.lo;
      wrong += x(n, at[0], at[1], at[2], at[3]) != want;
    });
  return wrong;
}
Symmetry identity(long) { return {}; }

std::vector<long> boundaries(long batch, int groups) {
  std::vector<long> first{0};
  const Partition p = Partition::balanced(batch, groups);
  for (int g = 0; g < groups; ++g) first.push_back(p[g].hi);
  return first;
}
} // namespace

TEST_CASE("store: each sample is read once in all, comes to whoever needs it, in batches that do not divide") {
  on_ranks([](const Communicator& c) {
    const Scratch dir(c);
    std::uint64_t file_bytes = 0;
    const SampleList list = make_files(c, dir, file_bytes);
    REQUIRE(list.samples.size() == 10);
    std::vector<long> ids(10);
    std::iota(ids.begin(), ids.end(), 0L);
    for (const Groups& how : groupings(c.size()))
      for (const long batch : {3L, 4L}) {
        const Setup s(c, how);
        SampleStore store(s.ranks(), make_reader(), list);
        const std::vector<long> first = boundaries(batch, how.groups);
        const long mine_from = first[static_cast<std::size_t>(s.group)],
                   mine = first[static_cast<std::size_t>(s.group) + 1] - mine_from;
        const Box<4> box = s.ranks().box;
        const Extents<4> e = box.extents();
        std::vector<float> memory(static_cast<std::size_t>(mine * box.volume()));
        const View<float, 5> x(memory.data(), {{mine, e[0], e[1], e[2], e[3]}});
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
          const std::vector<long> order = shuffled(ids, 11, epoch);
          std::vector<int> seen(10);
          std::span<const long> rest = order, current;
          store.start(current = rest.first(static_cast<std::size_t>(batch)), first);
          while (!current.empty()) {
            store.finish(x);
            const auto done = current;
            rest = rest.subspan(current.size());
            current = rest.first(std::min(rest.size(), static_cast<std::size_t>(batch)));
            if (!current.empty()) store.start(current, first); // while the batch before is worked on
            CHECK(wrong_voxels(list, done, mine_from, box, x, identity) == 0);
            for (const long id : done) ++seen[static_cast<std::size_t>(id)];
          }
          CHECK(seen == std::vector<int>(10, 1));
          CHECK(c.all_reduce(store.bytes_read()) == file_bytes);
          CHECK(c.all_reduce(store.bytes_held()) == file_bytes); // every type here is held as it is in the file
        }
      }
  });
}

TEST_CASE("store: a bound on its memory holds, and the rest is read again") {
  on_ranks({1, 2, 4}, [](const Communicator& c) {
    const Scratch dir(c);
    std::uint64_t file_bytes = 0;
    const SampleList list = make_files(c, dir, file_bytes);
    for (const Groups& how : groupings(c.size())) {
      const Setup s(c, how);
      const auto bound = static_cast<std::uint64_t>(s.boxes[0].volume()) * 4 * 2; // two samples of float
      SampleStore store(s.ranks(), make_reader(), list, bound);
      const std::vector<long> first = boundaries(2, how.groups);
      const long from = first[static_cast<std::size_t>(s.group)],
                 mine = first[static_cast<std::size_t>(s.group) + 1] - from;
      const Extents<4> e = s.ranks().box.extents();
      std::vector<float> memory(static_cast<std::size_t>(mine * product(e)));
      const View<float, 5> x(memory.data(), {{mine, e[0], e[1], e[2], e[3]}});
      for (int epoch = 0; epoch < 2; ++epoch)
        for (long b = 0; b < 5; ++b) {
          const std::vector<long> ids{(2 * b + epoch) % 10, (2 * b + 1 + epoch) % 10};
          store.start(ids, first);
          store.finish(x);
          CHECK(wrong_voxels(list, ids, from, s.ranks().box, x, identity) == 0);
          CHECK(store.bytes_held() <= bound);
        }
      CHECK(c.all_reduce(store.bytes_read()) == 2 * file_bytes - c.all_reduce(store.bytes_held()));
    }
  });
}

TEST_CASE("store: augmentation acts on the whole sample, whatever the grid") {
  on_ranks({1, 2, 4, 6}, [](const Communicator& c) {
    const Scratch dir(c);
    std::uint64_t file_bytes = 0;
    const SampleList list = make_files(c, dir, file_bytes);
    for (const Groups& how : groupings(c.size())) {
      const Setup s(c, how);
      SampleStore store(s.ranks(), make_reader(), list);
      Augmentation augmentation{s.space, s.boxes, 5, 0};
      const std::vector<long> first = boundaries(4, how.groups);
      const long from = first[static_cast<std::size_t>(s.group)],
                 mine = first[static_cast<std::size_t>(s.group) + 1] - from;
      const Extents<4> e = s.ranks().box.extents();
      std::vector<float> memory(static_cast<std::size_t>(mine * product(e)));
      const View<float, 5> x(memory.data(), {{mine, e[0], e[1], e[2], e[3]}});
      for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
        augmentation.epoch = epoch;
        const std::vector<long> ids{9, 0, 4, 3};
        store.start(ids, first);
        store.finish(x, &augmentation);
        CHECK(wrong_voxels(list, ids, from, s.ranks().box, x, [&](long id) {
                return Symmetry::draw(5, epoch, static_cast<std::uint64_t>(id), cube);
              }) == 0);
      }
    }
  });
}

TEST_CASE("store: a file that goes bad on the way is the same io_error everywhere, and the batch can be tried again") {
  on_ranks([](const Communicator& c) {
    const Scratch dir(c);
    std::uint64_t file_bytes = 0;
    const SampleList list = make_files(c, dir, file_bytes);
    for (const Groups& how : groupings(c.size())) {
      const Setup s(c, how);
      SampleStore store(s.ranks(), make_reader(), list);
      const std::vector<long> ids{0, 1, 2, 6, 7}, first = boundaries(5, how.groups); // sample 6 is file 4
      const long from = first[static_cast<std::size_t>(s.group)],
                 mine = first[static_cast<std::size_t>(s.group) + 1] - from;
      const Extents<4> e = s.ranks().box.extents();
      std::vector<float> memory(static_cast<std::size_t>(mine * product(e)));
      const View<float, 5> x(memory.data(), {{mine, e[0], e[1], e[2], e[3]}});
      const std::string bad = list.files[4];
      const auto attempt = [&] {
        store.start(ids, first);
        store.finish(x);
      };
      for (const bool remove : {true, false}) {
        c.barrier();
        if (c.rank() == 0) {
          std::filesystem::copy_file(bad, bad + ".kept", std::filesystem::copy_options::overwrite_existing);
          if (remove)
            std::filesystem::remove(bad);
          else
            write_volume<std::int16_t>(bad, 4, {{channels, 6, 6, 6}}, Stored::channel_first);
        }
        c.barrier();
        const std::string told = all_throw<io_error>(c, attempt);
        CHECK(told.find(bad) != told.npos);
        CHECK(told.find(remove ? "No such file" : "do not change files") != told.npos);
        if (c.rank() == 0) std::filesystem::rename(bad + ".kept", bad);
        c.barrier();
      }
      attempt();
      CHECK(wrong_voxels(list, ids, from, s.ranks().box, x, identity) == 0);
    }
  });
}

TEST_CASE("store: misuse is refused") {
  on_ranks({1, 2}, [](const Communicator& c) {
    const Scratch dir(c);
    std::uint64_t file_bytes = 0;
    const SampleList list = make_files(c, dir, file_bytes);
    const Setup s(c, {c.size(), {{1, 1, 1}}});
    SampleStore store(s.ranks(), make_reader(), list);
    std::vector<float> memory(static_cast<std::size_t>(2 * product(s.ranks().box.extents())));
    const View<float, 5> x(memory.data(), {{2, channels, 6, 6, 6}});
    const std::vector<long> ids{1, 2}, first = boundaries(2 * c.size(), c.size()), bad_id{10}, short_first{0};
    all_throw<usage_error>(c, [&] { store.finish(x); });
    all_throw<usage_error>(c, [&] { store.start(bad_id, first); });
    all_throw<usage_error>(c, [&] { store.start(ids, short_first); });
    store.start(ids, first);
    all_throw<usage_error>(c, [&] { store.start(ids, first); });
    store.finish(x);
  });
}
