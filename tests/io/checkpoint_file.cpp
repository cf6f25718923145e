#include "files.hpp"

#include <cmath>
#include <limits>
#include <tessera/io/checkpoint_file.hpp>

using namespace tessera;
using namespace tessera::io;
using namespace tessera::test;

namespace {
Checkpoint sample(float first, long size = 1000) {
  Checkpoint c;
  c.scalars["step"] = std::int64_t{1} << 60;
  c.scalars["rate"] = 0.1;
  c.scalars["network"] = std::string("cosmoflow");
  c.scalars["note"] = std::string();
  std::vector<float> w(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = first + static_cast<float>(i);
  c.arrays["conv1/weight"] = {{size / 10, 10}, w};
  c.arrays["conv1/bias"] = {{3}, std::vector<float>{1e-45f, -0.0f, std::numeric_limits<float>::infinity()}};
  c.arrays["moments"] = {{2, 1, 1}, std::vector<double>{0.1, std::nextafter(1.0, 2.0)}};
  c.arrays["none"] = {{0, 5}, std::vector<float>{}};
  return c;
}
} // namespace

TEST_CASE("checkpoint: what is saved comes back bit by bit on every rank") {
  on_ranks([](const Communicator& c) {
    const Scratch dir(c);
    save_checkpoint(c, dir / "c.h5", c.rank() == 0 ? sample(1) : Checkpoint{});
    const Checkpoint back = load_checkpoint(c, dir / "c.h5");
    CHECK(back == sample(1));
    CHECK(std::signbit(std::get<0>(back.arrays.at("conv1/bias").values)[1]));
    CHECK(back.scalar<std::int64_t>("step") == std::int64_t{1} << 60);
    CHECK(back.scalar<double>("rate") == 0.1);
    CHECK_THROWS_WITH_AS(back.scalar<double>("step"), doctest::Contains("another type"), io_error);
    CHECK_THROWS_WITH_AS(back.scalar<double>("stop"), doctest::Contains("no scalar 'stop'"), io_error);
    save_checkpoint(c, dir / "c.h5", sample(2)); // over the old one
    CHECK(load_checkpoint(c, dir / "c.h5") == sample(2));
    if (c.rank() == 0) CHECK_FALSE(std::filesystem::exists(dir / "c.h5.incomplete"));
  });
}

TEST_CASE("checkpoint: a full disk is an io_error on every rank and the previous file survives") {
  on_ranks([](const Communicator& c) {
    const Scratch dir(c);
    const std::string path = dir / "c.h5";
    save_checkpoint(c, path, sample(1));
    for (const long limit :
         {0L, 1000L, 50000L, 399000L}) { // before, within the metadata, within the data, near the end
      const std::string told = all_throw<io_error>(c, [&] {
        std::optional<FullDisk> full;
        if (c.rank() == 0) full.emplace(static_cast<rlim_t>(limit));
        save_checkpoint(c, path, sample(2, 100000));
      });
      CHECK(told.find(path) != told.npos);
      CHECK(told.find("File too large; free some space") != told.npos);
      CHECK(load_checkpoint(c, path) == sample(1));
      c.barrier();
      if (c.rank() == 0) CHECK_FALSE(std::filesystem::exists(path + ".incomplete"));
    }
    const std::string told = all_throw<io_error>(c, [&] { save_checkpoint(c, dir / "no/folder/c.h5", sample(2)); });
    CHECK(told.find("no/folder/c.h5") != told.npos);
  });
}

TEST_CASE("checkpoint: files that are none are refused everywhere with a clear text") {
  on_ranks({1, 3}, [](const Communicator& c) {
    const Scratch dir(c);
    save_checkpoint(c, dir / "good.h5", sample(1));
    if (c.rank() == 0) {
      write_volume<float>(dir / "foreign.h5", 1, {{1, 2, 2, 2}}, Stored::channel_first);
      std::filesystem::copy_file(dir / "good.h5", dir / "cut.h5");
      std::filesystem::resize_file(dir / "cut.h5", std::filesystem::file_size(dir / "cut.h5") - 8);
      std::ofstream(dir / "text.h5") << "{}";
      Hdf5Writer w(dir / "later.h5");
      w.attribute("/", "format", std::string("tessera checkpoint"));
      w.attribute("/", "version", std::int64_t{99});
      w.close();
    }
    c.barrier();
    const auto told = [&](std::string_view name) {
      const std::string s = all_throw<io_error>(c, [&] { load_checkpoint(c, dir / name); });
      CHECK(s.find(dir / name) != s.npos);
      return s;
    };
    CHECK(told("foreign.h5").find("not a checkpoint of this library") != std::string::npos);
    CHECK(told("cut.h5").find("truncated") != std::string::npos);
    CHECK(told("text.h5").find("not an HDF5 file") != std::string::npos);
    CHECK(told("later.h5").find("another version") != std::string::npos);
    CHECK(told("absent.h5").find("No such file") != std::string::npos);
  });
}

TEST_CASE("checkpoint: entries that are missing, unexpected or of another shape are all named") {
  const Checkpoint c = sample(1);
  c.require({{"conv1/weight", {100, 10}}, {"conv1/bias", {3}}, {"moments", {2, 1, 1}}, {"none", {0, 5}}});
  try {
    c.require({{"conv1/weight", {10, 100}}, {"conv1/bias", {3}}, {"none", {0, 5}}, {"conv2/weight", {7}}});
    FAIL("nothing was thrown");
  } catch (const io_error& e) {
    const std::string told = e.what();
    CHECK(told.find("'conv1/weight' is 100x10, expected 10x100") != told.npos);
    CHECK(told.find("missing 'conv2/weight' (7)") != told.npos);
    CHECK(told.find("unexpected 'moments' (2x1x1)") != told.npos);
    CHECK(told.find("bias") == told.npos);
  }
}

TEST_CASE("checkpoint: wrong arguments are refused before anything is written") {
  const Communicator alone;
  const Scratch dir(alone);
  Checkpoint c;
  c.arrays["x"] = {{4}, std::vector<float>(3)};
  CHECK_THROWS_WITH_AS(save_checkpoint(alone, dir / "c.h5", c), doctest::Contains("'x' has 3 values for the shape 4"),
                       io_error);
  c.arrays.clear();
  c.scalars["version"] = std::int64_t{2};
  CHECK_THROWS_WITH_AS(save_checkpoint(alone, dir / "c.h5", c), doctest::Contains("'version'"), io_error);
  CHECK_FALSE(std::filesystem::exists(dir / "c.h5"));
}

TEST_CASE("atomic file: text appears complete or not at all") {
  const Scratch dir{Communicator()};
  const auto content = [&] {
    std::ifstream f(dir / "a.txt");
    return std::string(std::istreambuf_iterator<char>(f), {});
  };
  write_atomically(dir / "a.txt", "one");
  CHECK(content() == "one");
  const std::string large(100000, 'x');
  {
    const FullDisk full(5000);
    CHECK_THROWS_WITH_AS(write_atomically(dir / "a.txt", large), doctest::Contains("a.txt"), io_error);
  }
  CHECK(content() == "one");
  CHECK_FALSE(std::filesystem::exists(dir / "a.txt.incomplete"));
  write_atomically(dir / "a.txt", large);
  CHECK(content() == large);
  {
    const AtomicFile never_committed(dir / "a.txt");
    std::ofstream(never_committed.temporary()) << "two";
  }
  CHECK(content() == large);
  std::filesystem::create_directory(dir / "folder");
  CHECK_THROWS_WITH_AS(write_atomically(dir / "folder", "x"), doctest::Contains("rename"), io_error);
}
