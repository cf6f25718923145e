#include "volumes.hpp"
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tessera/layout/partition.hpp>

using namespace tessera;
using namespace tessera::io;

namespace {

/// The box (d,h,w) of a tensor's sample on this rank; empty if this rank holds no part of it.
template <class T> Box<3> box_of(const Tensor<T, 5>& x, long sample) {
  const Box<5> b = x.box();
  if (b.empty() || sample < b.lo[0] || sample >= b.hi[0]) return {};
  return {{{b.lo[2], b.lo[3], b.lo[4]}}, {{b.hi[2], b.hi[3], b.hi[4]}}};
}
/// What this rank holds of the sample's only channel.
template <class T> View<T, 3> view_of(Tensor<T, 5>& x, long sample) {
  const Box<3> b = box_of(x, sample);
  if (b.empty()) return {};
  Box<5> all = x.box();
  all.lo[0] = sample, all.hi[0] = sample + 1;
  const View<T, 5> v = x.view(all);
  return {v.data, b.extents(), {{v.strides[2], v.strides[3], v.strides[4]}}};
}

/// Reads the part of a file that the rank's box of `grid` is made of. Collective.
VolumePart read_part(const Communicator& comm, const std::string& path, const VoxelGrid& grid, const Box<3>& box) {
  NiftiReader file(comm, path);
  const Extents<4> e = file.header().extents();
  TESSERA_REQUIRE(e[0] == 1, "'", path, "' has ", e[0], " volumes; one is expected");
  const Extents<3> whole_volume{{e[1], e[2], e[3]}};
  const Affine affine = file.header().affine();
  VolumePart part{whole_volume, needed_source(whole_volume, affine, grid, box), affine};
  const Box<3>& b = part.box;
  const View<float, 3> v = part.view();
  file.read(Box<4>{{{0, b.lo[0], b.lo[1], b.lo[2]}}, {{b.empty() ? 0 : 1, b.hi[0], b.hi[1], b.hi[2]}}},
            View<float, 4>(v.data, {{b.empty() ? 0 : 1, v.extents[0], v.extents[1], v.extents[2]}},
                           {{product(v.extents), v.strides[0], v.strides[1], v.strides[2]}}));
  return part;
}

/// The box of the voxels that are not 0, in canonical axes; every rank looks at some planes. Collective.
Box<3> box_of_brain(const Communicator& comm, NiftiReader& file) {
  const Extents<4> e = file.header().extents();
  Box<4> mine = whole(e);
  const Interval planes = Partition::balanced(e[1], comm.size())[comm.rank()];
  mine.lo[1] = planes.lo, mine.hi[1] = planes.hi;
  std::vector<float> values(std::size_t(mine.volume()));
  const View<float, 4> v(values.data(), mine.extents());
  file.read(mine, v);
  std::int64_t ends[6] = {e[1], e[2], e[3], 0, 0, 0}; // lowest, and highest negated
  for_each_index(whole(v.extents), [&](const Index<4>& i) {
    if (v[i] == 0) return;
    const Index<4> at = i + mine.lo;
    for (int k = 0; k < 3; ++k)
      ends[k] = std::min(ends[k], std::int64_t(at[k + 1])),
      ends[k + 3] = std::min(ends[k + 3], std::int64_t(-at[k + 1] - 1));
  });
  comm.iall_reduce(std::span<std::int64_t>(ends), comm::Reduce::min).wait();
  if (ends[3] == 0) throw io_error(text("file '", file.path(), "': all voxels are 0; it should mark the brain"));
  return {{{ends[0], ends[1], ends[2]}}, {{-ends[3], -ends[4], -ends[5]}}};
}

} // namespace

int class_count(Target target) { return target == Target::brain ? 2 : 10; }
std::vector<std::string> class_names(Target target) {
  if (target == Target::brain) return {"outside", "brain"};
  return {"outside",  "frontal", "insula",   "limbic",     "occipital",
          "parietal", "nuclei",  "temporal", "cerebellum", "vermis"};
}

Subject colin() {
  const std::string folder = "/usr/share/mricron/templates/";
  return {"colin", folder + "ch2.nii.gz", folder + "ch2bet.nii.gz", folder + "aal.nii.gz"};
}
Subject itk_head() {
  const std::string start = "/usr/share/doc/insighttoolkit5-examples/examples/Data/KmeansTest_";
  return {"itk", start + "T1UCharRaw.nii.gz", start + "T1RawSkullStrip.nii.gz", ""};
}
void require_files(const Communicator& comm, const Subject& subject) {
  agree(comm, [&] {
    for (const std::string& path : {subject.image, subject.brain, subject.regions})
      if (!path.empty() && !std::filesystem::exists(path))
        throw io_error(text("file '", path, "' is not there; install the package ",
                            subject.name == "itk" ? "insighttoolkit5-examples" : "mricron-data"));
  });
}

VoxelGrid head_grid(const Communicator& comm, const Subject& subject, const GridWish& wish) {
  TESSERA_REQUIRE(wish.resolution > 0 && wish.margin >= 0 && wish.multiple >= 1, "a grid of ", wish.resolution,
                  " mm, margin ", wish.margin, " mm, multiple ", wish.multiple, "; give positive numbers");
  NiftiReader file(comm, subject.brain);
  const Extents<4> e = file.header().extents();
  const VoxelGrid stored{{{e[1], e[2], e[3]}}, file.header().affine()};
  const VoxelGrid fine = stored.respaced({wish.resolution, wish.resolution, wish.resolution});
  const Box<3> brain = box_of_brain(comm, file);
  const Affine to_fine = fine.affine.inverse() * stored.affine;
  const auto low = to_fine.at(brain.lo), high = to_fine.at(brain.hi - Index<3>{{1, 1, 1}}); // x,y,z
  const auto up = [&](double voxels) {
    return std::max(1L, long(std::ceil(voxels / double(wish.multiple)))) * wish.multiple;
  };
  const double margin = wish.margin / wish.resolution;
  Index<3> first;
  Extents<3> extents;
  for (int k = 0; k < 3; ++k) {
    const double lo = low[std::size_t(2 - k)] - margin, hi = high[std::size_t(2 - k)] + margin;
    extents[k] = up(hi - lo + 1);
    first[k] = std::lround((lo + hi - double(extents[k] - 1)) / 2);
  }
  if (wish.half == Half::both) return fine.part(first, extents);
  // From the side to the plane x = 0, as many voxels on either side; no voxel's centre lies on it.
  const double middle = -fine.affine.m[0][3] / fine.affine.m[0][0];
  const double widest = std::max(middle - low[0], high[0] - middle) + margin;
  extents[2] = up(widest);
  const double half = double(extents[2]) - 0.5;
  const bool left = wish.half == Half::left;
  Affine turn; // of voxels
  turn.m[0][0] = left ? 1 : -1;
  turn.m[0][3] = left ? middle - half : middle + half;
  turn.m[1][3] = double(first[1]), turn.m[2][3] = double(first[0]);
  return {extents, fine.affine * turn};
}

std::vector<std::uint8_t> region_groups(const std::string& atlas) {
  const std::string path = atlas.substr(0, atlas.rfind(".gz")) + ".txt";
  std::ifstream in(path);
  std::vector<std::uint8_t> groups(256, 0);
  int read = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    int label = 0, code = 0;
    std::string name;
    if (!(words >> label >> name >> code)) continue;
    // The codes' thousands are the lobes; 9 is the cerebellum, of which 91 is the vermis.
    const int lobe = code / 1000;
    if (label < 1 || label > 255 || lobe < 2 || lobe > 9)
      throw io_error(text("file '", path, "': line '", line, "' is no region of the AAL atlas"));
    groups[std::size_t(label)] = std::uint8_t(lobe == 9 && code >= 9100 ? 9 : lobe - 1);
    ++read;
  }
  if (read == 0) throw io_error(text("file '", path, "': no regions in it; it belongs to the AAL atlas"));
  return groups;
}

void load_sample(const Subject& subject, Target target, const VoxelGrid& grid, Tensor<float, 5>& x,
                 Tensor<std::uint8_t, 5>& t, long sample) {
  const auto fits = [&](const Extents<5>& e) {
    return e[1] == 1 && sample >= 0 && sample < e[0] && grid.extents == Extents<3>{{e[2], e[3], e[4]}};
  };
  TESSERA_REQUIRE(fits(x.extents()) && fits(t.extents()), "a head of ", grid.extents, " as sample ", sample,
                  " of an input ", x.extents(), " and labels ", t.extents(),
                  "; make the network for one channel of these extents");
  const Communicator& comm = x.grid().world();
  require_files(comm, subject);
  const std::string& labels = target == Target::brain ? subject.brain : subject.regions;
  TESSERA_REQUIRE(!labels.empty(), "subject ", subject.name, " has no regions; use another subject or the brain mask");

  // The image.
  const Box<3> mine = box_of(x, sample);
  const View<float, 3> image = view_of(x, sample);
  resample(read_part(comm, subject.image, grid, mine), grid, mine, Interpolation::trilinear, 0.F, image);
  const Communicator& holders = x.grid().over(x.layout().mask(Placement::Kind::split)); // replicas count once
  const auto mean_above = [&](double least, double center, auto&& f) {
    double sums[2] = {0, 0};
    for_each_index(whole(image.extents), [&](const Index<3>& i) {
      const double v = double(image[i]);
      if (v > least) sums[0] += f(v - center), sums[1] += 1;
    });
    holders.iall_reduce(std::span<double>(sums)).wait();
    return sums[1] > 0 ? sums[0] / sums[1] : 0;
  };
  const auto same = [](double v) { return v; };
  const double all = mean_above(-1e300, 0, same), mean = mean_above(all, 0, same);
  const double variance = mean_above(all, mean, [](double v) { return v * v; });
  const double scale = variance > 0 ? 1 / std::sqrt(variance) : 1;
  for_each_index(whole(image.extents), [&](const Index<3>& i) { image[i] = float((double(image[i]) - mean) * scale); });

  // The labels.
  std::vector<std::uint8_t> groups;
  agree(comm, [&] {
    if (target == Target::regions) groups = region_groups(labels);
  });
  const Box<3> held = box_of(t, sample);
  std::vector<float> nearest(std::size_t(held.volume()));
  const View<float, 3> v(nearest.data(), held.extents());
  resample(read_part(comm, labels, grid, held), grid, held, Interpolation::nearest, 0.F, v);
  const View<std::uint8_t, 3> to = view_of(t, sample);
  for_each_index(whole(v.extents), [&](const Index<3>& i) {
    to[i] = target == Target::brain ? std::uint8_t(v[i] != 0) : groups[std::size_t(v[i])];
  });
}
