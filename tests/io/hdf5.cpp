#include "files.hpp"

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {
template <class T> void round_trip(const std::string& path, const Storage& how) {
  const std::vector<long> shape{3, 5, 4};
  std::vector<T> v(60);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<T>(2 * i + 1);
  {
    Hdf5Writer w(path);
    w.write_all<T>("x", shape, v, how);
    w.close();
  }
  const Hdf5Reader r(path);
  const DatasetInfo info = r.info("x");
  CHECK(info.extents == shape);
  CHECK(info.type == element_type_of<T>());
  CHECK(info.file_bytes == sizeof(T));
  CHECK(info.chunk == how.chunk);
  CHECK(r.read<T>("x") == v);
  CHECK(r.read<double>("x") == std::vector<double>(v.begin(), v.end()));
  std::vector<float> part(2 * 2 * 2);
  r.read<float>("x", Box<3>{{{1, 3, 2}}, {{3, 5, 4}}}, part);
  // index (1,3,2) of 3x5x4 is 1*20 + 3*4 + 2 = 34, and so on by hand; the value is 2 * index + 1
  CHECK(part == std::vector<float>{69, 71, 77, 79, 109, 111, 117, 119});
}
} // namespace

TEST_CASE("hdf5: every element type comes back, whole, as a box and converted") {
  const Scratch dir{Communicator()};
  for (const Storage& how : {Storage{}, Storage{{2, 2, 3}, 0}, Storage{{2, 5, 4}, 6}}) {
    round_trip<std::int8_t>(dir / "t.h5", how);
    round_trip<std::uint8_t>(dir / "t.h5", how);
    round_trip<std::int16_t>(dir / "t.h5", how);
    round_trip<std::uint16_t>(dir / "t.h5", how);
    round_trip<std::int32_t>(dir / "t.h5", how);
    round_trip<std::uint32_t>(dir / "t.h5", how);
    round_trip<std::int64_t>(dir / "t.h5", how);
    round_trip<std::uint64_t>(dir / "t.h5", how);
    round_trip<float>(dir / "t.h5", how);
    round_trip<double>(dir / "t.h5", how);
  }
}

TEST_CASE("hdf5: datasets in groups, strings, attributes, single values, nothing at all") {
  const Scratch dir{Communicator()};
  const std::vector<std::string> names{"Omega_m", "", "n_s", "\xcf\x83_8"};
  const float three = 3;
  {
    Hdf5Writer w(dir / "a.h5");
    w.write_strings("namePar", names);
    w.write_all<float>("deep/er/x", std::vector<long>{1}, std::span(&three, 1));
    w.write_all<float>("scalar", std::vector<long>{}, std::span(&three, 1));
    w.write_all<float>("none", std::vector<long>{0, 4}, std::span<const float>());
    w.attribute("/", "seed", std::int64_t{-5});
    w.attribute("/", "cell", 0.1);
    w.attribute("deep/er/x", "unit", std::string("Mpc/h"));
    w.attribute("deep", "empty", std::string());
    w.attribute("/", "box", std::vector<double>{1.5, 2.5, 3.5});
    w.close();
  }
  const Hdf5Reader r(dir / "a.h5");
  CHECK(r.datasets() == std::vector<std::string>{"deep/er/x", "namePar", "none", "scalar"});
  CHECK(r.has("none"));
  CHECK_FALSE(r.has("deep"));
  CHECK(r.read_strings("namePar") == names);
  CHECK(r.read<float>("scalar") == std::vector<float>{3});
  CHECK(r.read<float>("none").empty());
  CHECK(r.attributes() == std::map<std::string, Value>{{"seed", std::int64_t{-5}}, {"cell", 0.1}});
  CHECK(r.attributes("deep/er/x") == std::map<std::string, Value>{{"unit", std::string("Mpc/h")}});
  CHECK(r.attributes("deep") == std::map<std::string, Value>{{"empty", std::string()}});
  CHECK(r.attribute_values("/", "box") == std::vector<double>{1.5, 2.5, 3.5});
  CHECK_THROWS_WITH_AS(r.attribute_values("/", "bx"), doctest::Contains("attribute 'bx'"), io_error);
}

TEST_CASE("hdf5: slabs written piece by piece give the file written at once") {
  const Scratch dir{Communicator()};
  const std::vector<long> shape{7, 3, 2};
  std::vector<std::int32_t> v(42);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int>(i * i);
  for (const Storage& how : {Storage{}, Storage{{3, 2, 2}, 4}}) {
    Hdf5Writer w(dir / "s.h5");
    w.create<std::int32_t>("x", shape, how);
    for (long lo : {4L, 0L, 2L}) { // 4..7, 0..2, 2..4
      const long hi = lo == 4 ? 7 : lo + 2;
      w.write<std::int32_t>("x", Box<3>{{{lo, 0, 0}}, {{hi, 3, 2}}},
                            std::span<const std::int32_t>(v).subspan(std::size_t(lo * 6), std::size_t((hi - lo) * 6)));
    }
    w.close();
    CHECK(Hdf5Reader(dir / "s.h5").read<std::int32_t>("x") == v);
  }
}

TEST_CASE("hdf5: 17x9x11 in chunks of 4x4x4 with deflate, slabs of ranks, some of them empty") {
  const Extents<3> e{{17, 9, 11}};
  const auto check = [&](const Communicator& c, const Index<3>& grid, int empty) {
    const Scratch dir(c);
    if (c.rank() == 0) {
      std::vector<float> v(static_cast<std::size_t>(product(e)));
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
      Hdf5Writer w(dir / "x.h5");
      w.write_all<float>("x", std::vector<long>{17, 9, 11}, v, {{4, 4, 4}, 5});
      w.close();
    }
    c.barrier();
    const Box<3> mine = block(e, grid, c.rank());
    std::vector<float> v(static_cast<std::size_t>(mine.volume()));
    Hdf5Reader(dir / "x.h5").read<float>("x", mine, v);
    std::size_t at = 0, wrong = 0;
    for_each_index(mine,
                   [&](const Index<3>& i) { wrong += v[at++] != static_cast<float>((i[0] * 9 + i[1]) * 11 + i[2]); });
    CHECK(wrong == 0);
    CHECK(c.all_reduce(mine.volume()) == product(e));
    CHECK(c.all_reduce(mine.empty() ? 1 : 0) == empty);
  };
  on_ranks({4}, [&](const Communicator& c) { check(c, {{2, 2, 1}}, 0); });
  on_ranks({3}, [&](const Communicator& c) { check(c, {{3, 1, 1}}, 0); });
  on_ranks({20}, [&](const Communicator& c) { check(c, {{20, 1, 1}}, 3); });
}

TEST_CASE("hdf5: many thread-ranks read and write at the same time") {
  on_ranks({8}, [](const Communicator& c) {
    const Scratch dir(c);
    for (int round = 0; round < 10; ++round) {
      const std::string mine = dir / text("r", c.rank(), ".h5"), next = dir / text("r", (c.rank() + 1) % 8, ".h5");
      write_volume<float>(mine, c.rank() + round, {{1, 4, 4, 4}}, Stored::channel_last, {{2, 2, 2, 1}, 3});
      c.barrier();
      CHECK(Hdf5Reader(next).read<float>("full")[0] == static_cast<float>(voxel((c.rank() + 1) % 8 + round, {})));
      CHECK_THROWS_AS(Hdf5Reader(mine + "x"), io_error);
      c.barrier();
    }
  });
}

TEST_CASE("hdf5: errors name file, dataset, cause and remedy") {
  const Scratch dir{Communicator()};
  const std::string file = dir / "v.h5";
  write_volume<std::int16_t>(file, 1, {{1, 8, 8, 8}}, Stored::channel_last, {{4, 4, 4, 1}, 4});
  std::vector<float> v(8);
  const auto throws = [](auto&& f, std::initializer_list<std::string> parts) {
    try {
      f();
      FAIL_CHECK("nothing was thrown");
    } catch (const io_error& e) {
      for (const auto& p : parts)
        CHECK_MESSAGE(std::string(e.what()).find(p) != std::string::npos, e.what(), " lacks ", p);
    }
  };
  throws([&] { Hdf5Reader(dir / "absent.h5"); }, {dir / "absent.h5", "No such file", "check the path"});
  throws([&] { Hdf5Reader r(dir.path()); }, {dir.path(), "directory"});
  std::ofstream(dir / "text.h5") << "no HDF5 at all";
  throws([&] { Hdf5Reader(dir / "text.h5"); }, {dir / "text.h5", "not an HDF5 file", "14 bytes"});
  std::ofstream(dir / "empty.h5").flush();
  throws([&] { Hdf5Reader(dir / "empty.h5"); }, {"not an HDF5 file", "0 bytes"});
  throws([&] { Hdf5Reader(file).read<float>("fall"); }, {file, "'fall'", "no such dataset", "'full', 'unitPar'"});
  throws([&] { Hdf5Reader(file).read_strings("full"); }, {file, "'full'", "strings"});
  throws([&] { Hdf5Writer w(dir / "no/such/folder.h5"); }, {"no/such/folder.h5", "cannot create", "folder exists"});
  CHECK_THROWS_AS(Hdf5Reader(file).read<float>("full", Box<4>{{{7, 0, 0, 0}}, {{9, 2, 2, 1}}}, v), usage_error);
  CHECK_THROWS_AS(Hdf5Reader(file).read<float>("full", Box<3>{{{0, 0, 0}}, {{2, 2, 2}}}, v), usage_error);
  CHECK_THROWS_AS(Hdf5Reader(file).read<float>("full", Box<4>{{{0, 0, 0, 0}}, {{2, 2, 1, 1}}}, v), usage_error);

  const auto size = std::filesystem::file_size(file);
  SUBCASE("cut off") {
    for (const auto cut : {size - 1, size / 2, size / 4}) {
      std::filesystem::resize_file(file, cut);
      throws([&] { Hdf5Reader{file}; }, {file, "truncated", "copy it again"});
    }
  }
  SUBCASE("compressed data overwritten") {
    write_volume<std::int16_t>(file, 1, {{1, 32, 32, 32}}, Stored::channel_last, {{32, 32, 32, 1}, 4});
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) / 2)); // in the middle of the one chunk
    f << std::string(100, '\x55');
    f.close();
    throws([&] { Hdf5Reader(file).read<float>("full"); }, {file, "'full'", "inflate", "damaged"});
  }
}

TEST_CASE("hdf5: a full disk shows as an error, in write or in close, and does no harm to other files") {
  const Scratch dir{Communicator()};
  std::vector<float> v(1000);
  for (const long limit : {100L, 3000L, 20000L}) {
    int failed = 0;
    {
      const FullDisk full(static_cast<rlim_t>(limit));
      try {
        Hdf5Writer w(dir / "full.h5");
        for (int k = 0; k < 20; ++k) w.write_all<float>(text("d", k), std::vector<long>{1000}, v, {{100}, 1 + k % 9});
        for (int k = 0; k < 20; ++k) w.write_all<float>(text("e", k), std::vector<long>{1000}, v);
        w.close();
      } catch (const io_error& e) {
        ++failed;
        const std::string told = e.what();
        CHECK(told.find("full.h5") != told.npos);
        CHECK(told.find("cannot write: File too large; free some space") != told.npos);
      }
    }
    CHECK(failed == 1);
    write_volume<float>(dir / "after.h5", 3, {{1, 2, 2, 2}}, Stored::channel_last);
    CHECK(Hdf5Reader(dir / "after.h5").read<float>("full").size() == 8);
  }
  SUBCASE("only close() notices") { // compressed chunks stay in memory until then
    Hdf5Writer w(dir / "late.h5");
    w.write_all<float>("x", std::vector<long>{1000}, v, {{1000}, 1});
    const FullDisk full(512);
    CHECK_THROWS_WITH_AS(w.close(), doctest::Contains("late.h5"), io_error);
  }
}
