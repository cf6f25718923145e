#include "files.hpp"

#include <cmath>
#include <tessera/io/volume_reader.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {
VolumeFormat format(long channels, const Extents<3>& sample) {
  VolumeFormat f;
  f.channels = channels;
  f.sample = sample;
  f.labels = "unitPar";
  f.label_count = 4;
  return f;
}

/// How many voxels of the box differ from what write_volume(salt) stored, read into memory of two strides.
long wrong_voxels(VolumeReader& reader, const std::string& path, long salt, const Box<4>& box, double (*f)(double)) {
  const Extents<4> e = box.extents();
  long wrong = 0;
  for (const Index<4>& strides : {dense_strides(e), Index<4>{{e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}}}) {
    std::vector<float> v(static_cast<std::size_t>(box.volume()), -7);
    const View<float, 4> view(v.data(), e, strides);
    reader.read(path, box, view);
    for_each_index(box, [&](const Index<4>& i) {
      const double want = f(static_cast<double>(voxel(salt, i)));
      wrong += std::abs(static_cast<double>(view[i - box.lo]) - want) > 1e-6 * (1 + std::abs(want));
    });
  }
  return wrong;
}
double same(double x) { return x; }
double log1p_of(double x) { return std::log1p(x); }

template <class T> void every_order(const std::string& path, Transform transform) {
  const Extents<4> e{{3, 5, 4, 6}};
  for (const Stored order : {Stored::channel_first, Stored::channel_last})
    for (const Storage& how : {Storage{}, Storage{{2, 3, 2, 3}, 3}}) {
      write_volume<T>(path, 17, e, order, how);
      VolumeFormat f = format(3, {{5, 4, 6}});
      f.transform = transform;
      VolumeReader reader(f);
      const Volume v = reader.inspect(path);
      CHECK(v.extents == f.sample);
      CHECK(v.type == element_type_of<T>());
      CHECK((v.order == ChannelOrder::first) == (order == Stored::channel_first));
      for (const Box<4>& b : {whole(e), Box<4>{{{0, 2, 1, 3}}, {{3, 5, 4, 5}}}, Box<4>{{{1, 0, 0, 0}}, {{2, 5, 4, 6}}}})
        CHECK(wrong_voxels(reader, path, 17, b, transform == Transform::none ? same : log1p_of) == 0);
      CHECK(reader.bytes_read() == 2 * (360 + 3 * 3 * 3 * 2 + 120) * sizeof(T));
    }
}
} // namespace

TEST_CASE("volume: channel-first and channel-last files of several types, with and without log(1+x)") {
  const Scratch dir{Communicator()};
  for (const Transform t : {Transform::none, Transform::log1p}) {
    every_order<std::int16_t>(dir / "v.h5", t);
    every_order<std::uint16_t>(dir / "v.h5", t);
    every_order<std::int32_t>(dir / "v.h5", t);
    every_order<float>(dir / "v.h5", t);
    every_order<double>(dir / "v.h5", t);
  }
}

TEST_CASE("volume: int16 4x17x16x16 over three ranks in depth: slabs 6, 6, 5, nothing dropped, every byte read once") {
  on_ranks({3}, [](const Communicator& c) {
    const Scratch dir(c);
    for (const Stored order : {Stored::channel_first, Stored::channel_last}) {
      if (c.rank() == 0) write_volume<std::int16_t>(dir / "v.h5", 5, {{4, 17, 16, 16}}, order, {{2, 4, 4, 4}, 2});
      c.barrier();
      VolumeReader reader(format(4, {{17, 16, 16}}));
      const Box<4> mine = block(4, {{17, 16, 16}}, {{3, 1, 1}}, c.rank());
      CHECK(mine.extent(1) == std::array{6, 6, 5}[static_cast<std::size_t>(c.rank())]);
      std::vector<float> v(static_cast<std::size_t>(mine.volume()));
      const View<float, 4> view(v.data(), mine.extents());
      reader.read(dir / "v.h5", mine, view);
      long wrong = 0;
      for_each_index(mine, [&](const Index<4>& i) { wrong += view[i - mine.lo] != static_cast<float>(voxel(5, i)); });
      CHECK(wrong == 0);
      CHECK(c.all_reduce(reader.bytes_read()) == 4 * 17 * 16 * 16 * 2);
      c.barrier();
    }
  });
}

TEST_CASE("volume: a larger file is cut into tiles") {
  const Scratch dir{Communicator()};
  write_volume<std::int16_t>(dir / "v.h5", 9, {{2, 4, 6, 4}}, Stored::channel_last);
  VolumeFormat f = format(2, {{2, 3, 4}});
  CHECK_THROWS_WITH_AS(VolumeReader(f).inspect(dir / "v.h5"),
                       doctest::Contains("the file has 4x6x4, 2x3x4 was asked for"), io_error);
  f.cut = Cut::tiles;
  VolumeReader reader(f);
  const Volume v = reader.inspect(dir / "v.h5");
  CHECK(v.extents == Extents<3>{{4, 6, 4}});
  const std::vector<Sample> all = samples_of({v, v}, f.sample);
  REQUIRE(all.size() == 8);
  CHECK(all[1] == Sample{0, {{0, 3, 0}}});
  CHECK(all[2] == Sample{0, {{2, 0, 0}}});
  CHECK(all[7] == Sample{1, {{2, 3, 0}}});
  f.sample = {{3, 3, 4}};
  CHECK_THROWS_WITH_AS(VolumeReader(f).inspect(dir / "v.h5"), doctest::Contains("a width that divides"), io_error);
}

TEST_CASE("volume: a file that could be read both ways needs the option") {
  const Scratch dir{Communicator()};
  write_volume<std::int16_t>(dir / "v.h5", 1, {{4, 4, 4, 4}}, Stored::channel_first);
  VolumeFormat f = format(4, {{4, 4, 4}});
  CHECK_THROWS_WITH_AS(VolumeReader(f).inspect(dir / "v.h5"), doctest::Contains("option for the channel order"),
                       io_error);
  f.order = ChannelOrder::first;
  VolumeReader reader(f);
  CHECK(wrong_voxels(reader, dir / "v.h5", 1, {{{0, 1, 0, 2}}, {{4, 3, 4, 4}}}, same) == 0);
}

TEST_CASE("volume: one channel without a channel dim") {
  const Scratch dir{Communicator()};
  std::vector<std::uint8_t> v(24);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint8_t>(i * 10);
  Hdf5Writer w(dir / "v.h5");
  w.write_all<std::uint8_t>("full", std::vector<long>{2, 3, 4}, v);
  w.close();
  VolumeFormat f;
  f.sample = {{2, 3, 4}};
  std::vector<float> out(4);
  VolumeReader(f).read(dir / "v.h5", {{{0, 1, 0, 1}}, {{1, 2, 2, 3}}}, View<float, 4>(out.data(), {{1, 1, 2, 2}}));
  CHECK(out == std::vector<float>{130, 140, 170, 180});
}

TEST_CASE("volume: a value without a logarithm is refused, for integers and floats") {
  const Scratch dir{Communicator()};
  VolumeFormat f;
  f.sample = {{1, 1, 2}};
  f.transform = Transform::log1p;
  std::vector<float> out(2);
  const View<float, 4> view(out.data(), {{1, 1, 1, 2}});
  const auto refused = [&]<class T>(std::vector<T> v) {
    Hdf5Writer w(dir / "v.h5");
    w.write_all<T>("full", std::vector<long>{1, 1, 1, 2}, v);
    w.close();
    CHECK_THROWS_WITH_AS(VolumeReader(f).read(dir / "v.h5", whole(view.extents), view), doctest::Contains("overflowed"),
                         io_error);
  };
  f.order = ChannelOrder::first;
  refused(std::vector<std::int16_t>{3, -1});
  refused(std::vector<float>{3, -1.5f});
  refused(std::vector<float>{3, std::nanf("")});
}

TEST_CASE("volume: each way to be wrong tells what was found, what was expected and what to do") {
  const Scratch dir{Communicator()};
  const std::string file = dir / "v.h5";
  write_volume<std::int16_t>(file, 1, {{4, 8, 8, 8}}, Stored::channel_last);
  const auto told = [&](const VolumeFormat& f) {
    try {
      VolumeReader(f).inspect(file);
    } catch (const io_error& e) {
      const std::string s = e.what();
      CHECK(s.find(file) != s.npos);
      return s;
    }
    FAIL_CHECK("nothing was thrown");
    return std::string();
  };
  VolumeFormat f = format(4, {{16, 16, 16}});
  CHECK(told(f) ==
        "file '" + file +
            "', dataset 'full': found 8x8x8x4 of int16, expected 4 channels of 16x16x16: the file has 8x8x8, "
            "16x16x16 was asked for; ask for the width of the files, or cut larger files into tiles");
  f = format(3, {{8, 8, 8}});
  CHECK(told(f).find("no first or last dim of 3 channels; check the number of channels") != std::string::npos);
  f = format(4, {{8, 8, 8}});
  f.order = ChannelOrder::first;
  CHECK(told(f).find("no first dim of 4 channels") != std::string::npos);
  f = format(4, {{8, 8, 8}});
  f.dataset = "unitPar";
  CHECK(told(f).find("found 4 of float32") != std::string::npos);
  CHECK(told(f).find("it has 1 dims") != std::string::npos);
  f.dataset = "volume";
  CHECK(told(f).find("the file has 'full', 'unitPar'") != std::string::npos);
  f = format(4, {{8, 8, 8}});
  f.label_count = 3;
  CHECK(told(f).find("dataset 'unitPar': found 4 of float32, expected 3 numbers") != std::string::npos);
  f.labels = "namePar";
  CHECK(told(f).find("'namePar'") != std::string::npos);
  CHECK_THROWS_AS(VolumeReader(format(0, {{8, 8, 8}})), usage_error);
}

TEST_CASE("volume: a fault in one file, seen by one rank only, is the same io_error everywhere") {
  enum class Fault { missing, truncated, other_name, other_rank, other_type, text };
  for (const Fault fault :
       {Fault::missing, Fault::truncated, Fault::other_name, Fault::other_rank, Fault::other_type, Fault::text})
    on_ranks([&](const Communicator& c) {
      const Scratch dir(c);
      std::vector<std::string> files;
      for (int f = 0; f < 9; ++f) files.push_back(dir / text("u", f, ".h5"));
      const std::string bad = files[5];
      if (c.rank() == 0) {
        for (const auto& f : files) write_volume<std::int16_t>(f, 1, {{2, 8, 8, 8}}, Stored::channel_first);
        if (fault == Fault::missing)
          std::filesystem::remove(bad);
        else if (fault == Fault::truncated)
          std::filesystem::resize_file(bad, std::filesystem::file_size(bad) - 100);
        else if (fault == Fault::text)
          std::ofstream(bad) << "text";
        else {
          Hdf5Writer w(bad);
          if (fault == Fault::other_name) w.write_all<float>("half", std::vector<long>{1}, std::vector<float>{1});
          if (fault == Fault::other_rank) w.write_all<float>("full", std::vector<long>{1}, std::vector<float>{1});
          if (fault == Fault::other_type) w.write_strings("full", std::vector<std::string>{"a"});
          w.close();
        }
      }
      c.barrier();
      const VolumeReader reader(format(2, {{8, 8, 8}}));
      const std::string told = all_throw<io_error>(c, [&] { reader.check_all(c, files); });
      CHECK(told.find(bad) != told.npos);
      if (fault == Fault::other_name || fault == Fault::other_rank || fault == Fault::other_type)
        CHECK(told.find("dataset 'full'") != told.npos);
      CHECK(told.find(text("on rank ", 5 % c.size(), " of ", c.size())) != told.npos);

      files.erase(files.begin() + 5);
      CHECK(reader.check_all(c, files).size() == 8);
      CHECK(reader.all_labels(c, files).size() == 32);

      // One rank alone asks for another dataset.
      const std::string alone = all_throw<io_error>(c, [&] {
        VolumeFormat f = format(2, {{8, 8, 8}});
        if (c.rank() == c.size() - 1) f.dataset = "fall";
        agree(c, [&] { VolumeReader(f).inspect(files[0]); });
      });
      CHECK(alone.find("'fall'") != alone.npos);
    });
}
