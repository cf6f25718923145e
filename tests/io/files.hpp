// files.hpp: what the tests of files share: a folder that vanishes, volumes with known values, a disk that fills up.
#pragma once

#include "support/ranks.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <tessera/base/view.hpp>
#include <tessera/io/hdf5.hpp>
#include <tessera/layout/partition.hpp>

namespace tessera::test {

/// A new folder that all ranks know; removed at the end. Collective, the destructor too.
class Scratch {
public:
  explicit Scratch(const Communicator& comm) : comm_(comm), path_(64, '\0') {
    if (comm.rank() == 0) {
      const std::string pattern = (std::filesystem::temp_directory_path() / "tessera-XXXXXX").string();
      TESSERA_REQUIRE(pattern.size() < path_.size(), "Scratch: the path of the temporary folder is too long");
      pattern.copy(path_.data(), pattern.size());
      if (!::mkdtemp(path_.data())) path_[0] = '\0';
    }
    comm.broadcast(std::span(path_.data(), path_.size()), 0);
    path_.resize(path_.find('\0'));
    TESSERA_REQUIRE(!path_.empty(), "Scratch: cannot make a temporary folder");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (std::uncaught_exceptions() == 0) comm_.barrier();
    std::error_code ignored;
    if (comm_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

private:
  Communicator comm_;
  std::string path_;
};

/// While it lives, no file of this process can grow beyond `bytes`: what a full disk does.
class FullDisk {
public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

private:
  void (*handler_)(int);
  rlimit before_{};
};

/// The value of voxel (c,d,h,w) of file `salt`: different for all voxels of a test, exact in int16 and float.
inline long voxel(long salt, const Index<4>& i) {
  return (salt * 5003 + ((i[0] * 29 + i[1]) * 31 + i[2]) * 23 + i[3]) % 32003;
}

enum class Stored { channel_first, channel_last };

/// Writes a volume (c, d,h,w) of voxel(salt, .) in the given order, with the extra dataset "unitPar" = salt, salt+1,
/// ...
template <class T>
void write_volume(const std::string& path, long salt, const Extents<4>& e, Stored order, const io::Storage& how = {}) {
  std::vector<T> v(static_cast<std::size_t>(product(e)));
  const Index<4> strides =
      order == Stored::channel_last ? dense_strides(e) : Index<4>{{e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}};
  const View<T, 4> view(v.data(), e, strides);
  for_each_index(whole(e), [&](const Index<4>& i) { view[i] = static_cast<T>(voxel(salt, i)); });
  const std::vector<long> shape =
      order == Stored::channel_last ? std::vector{e[1], e[2], e[3], e[0]} : std::vector{e[0], e[1], e[2], e[3]};
  io::Hdf5Writer file(path);
  file.write_all<T>("full", shape, v, how);
  const std::vector<float> labels{float(salt), float(salt + 1), float(salt + 2), float(salt + 3)};
  file.write_all<float>("unitPar", std::vector<long>{4}, labels);
  file.close();
}

/// The block of rank `rank` of a d x h x w grid (last dim fastest) over balanced partitions.
inline Box<3> block(const Extents<3>& extents, const Index<3>& grid, int rank) {
  Box<3> b;
  long rest = rank;
  for (int k = 2; k >= 0; --k) {
    const Interval i = Partition::balanced(extents[k], static_cast<int>(grid[k]))[static_cast<int>(rest % grid[k])];
    b.lo[k] = i.lo;
    b.hi[k] = i.hi;
    rest /= grid[k];
  }
  return b;
}
inline Box<4> block(long channels, const Extents<3>& extents, const Index<3>& grid, int rank) {
  const Box<3> b = block(extents, grid, rank);
  return {{{0, b.lo[0], b.lo[1], b.lo[2]}}, {{channels, b.hi[0], b.hi[1], b.hi[2]}}};
}

} // namespace tessera::test
