// The heads of the segmentation example: what is loaded does not depend on the grid; pictures.
#if __has_include(<nifti1_io.h>)
#include "unet3d/volumes.hpp"
#include "io/files.hpp"
#include "support/sweep.hpp"
#include "unet3d/slices.hpp"

#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::io;
using namespace tessera::test;

namespace {

constexpr Layout over_ndhw = place(n, d, h, w);

struct Loaded {
  std::vector<float> image;
  std::vector<std::uint8_t> labels;
};
Loaded load(const AnyGrid& grid, const Subject& subject, Target target, const VoxelGrid& voxels) {
  const Extents<3>& e = voxels.extents;
  Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, e[0], e[1], e[2]}}));
  Tensor<std::uint8_t, 5> t(grid, x.map());
  load_sample(subject, target, voxels, x, t, 0);
  return {gather(x), gather(t)};
}
double fraction(const std::vector<std::uint8_t>& labels, int of) {
  return double(std::ranges::count(labels, of)) / double(labels.size());
}
double dice(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b, int of) {
  double both = 0, sizes = 0;
  for (std::size_t i = 0; i < a.size(); ++i) both += a[i] == of && b[i] == of, sizes += (a[i] == of) + (b[i] == of);
  return 2 * both / sizes;
}
bool installed(const Subject& s) {
  if (std::filesystem::exists(s.image)) return true;
  MESSAGE("not installed, so not loaded: ", s.image);
  return false;
}

} // namespace

TEST_CASE("volumes: the box of the brain, intensities, labels; the same on every grid") {
  if (!installed(colin())) return;
  const AnyGrid alone(Communicator(), {1, 1, 1, 1});
  // The brain's box is 151 x 179 x 143 mm (d,h,w); with 8 mm around it and 4 mm voxels 43 x 50 x 41 of them.
  const VoxelGrid voxels = head_grid(alone.world(), colin(), {.resolution = 4});
  CHECK(voxels.extents == Extents<3>{{48, 56, 48}});
  CHECK(voxels.affine.voxel() == std::array<double, 3>{4, 4, 4});
  const Loaded brain = load(alone, colin(), Target::brain, voxels),
               regions = load(alone, colin(), Target::regions, voxels);
  // The brain is 24.4 % of 181 x 217 x 181 mm.
  CHECK(std::abs(fraction(brain.labels, 1) * double(product(voxels.extents)) * 64 / (0.244 * 181 * 217 * 181) - 1) <
        0.01);
  CHECK(brain.image == regions.image);
  // No brain at the border: the margin is there.
  const View<const std::uint8_t, 3> v(brain.labels.data(), voxels.extents);
  for_each_index(whole(voxels.extents), [&](const Index<3>& i) {
    bool border = false;
    for (int k = 0; k < 3; ++k) border = border || i[k] == 0 || i[k] == voxels.extents[k] - 1;
    if (border) CHECK(v[i] == 0);
  });
  for (int k = 1; k < 10; ++k) CHECK(fraction(regions.labels, k) > 0.0005);
  CHECK(fraction(regions.labels, 1) > fraction(regions.labels, 2)); // the frontal lobe is larger than the insula
  double brightest = 0;
  for (const float f : brain.image) brightest = std::max(brightest, std::abs(double(f)));
  CHECK(brightest < 10);
  on_ranks({2, 3, 4}, [&](const Communicator& comm) {
    for (const auto& sizes : {std::vector<int>{1, comm.size(), 1, 1},
                              {comm.size() % 2 ? 1 : 2, 1, 1, comm.size() % 2 ? comm.size() : comm.size() / 2}}) {
      const AnyGrid grid(comm, sizes);
      CHECK(head_grid(comm, colin(), {.resolution = 4}) == voxels);
      const Loaded got = load(grid, colin(), Target::regions, voxels);
      CHECK(got.labels == regions.labels);
      double off = 0; // sums are added in another order
      for (std::size_t i = 0; i < got.image.size(); ++i)
        off = std::max(off, std::abs(double(got.image[i]) - double(regions.image[i])));
      CHECK(off < 1e-5);
    }
  });
}

TEST_CASE("volumes: the right half in a mirror looks like the left one") {
  if (!installed(colin())) return;
  const AnyGrid alone(Communicator(), {1, 1, 1, 1});
  const VoxelGrid left = head_grid(alone.world(), colin(), {.resolution = 3, .half = Half::left}),
                  right = head_grid(alone.world(), colin(), {.resolution = 3, .half = Half::right_mirrored});
  CHECK(left.extents == right.extents);
  for (const Index<3>& i : {Index<3>{{0, 0, 0}}, left.extents}) {
    const auto a = left.affine.at(i), b = right.affine.at(i);
    CHECK(std::abs(a[0] + b[0]) < 1e-9);
    CHECK(std::abs(a[1] - b[1]) < 1e-9);
    CHECK(std::abs(a[2] - b[2]) < 1e-9);
  }
  CHECK(left.affine.at({{0, 0, left.extents[2] - 1}})[0] < 0);
  const Loaded a = load(alone, colin(), Target::regions, left), b = load(alone, colin(), Target::regions, right);
  // What copying the mirrored labels scores: the number that a network has to beat.
  for (int k = 1; k < 10; ++k) {
    CHECK(dice(a.labels, b.labels, k) > 0.7);
    CHECK(dice(a.labels, b.labels, k) < 0.97);
  }
}

TEST_CASE("volumes: another human, and what is refused") {
  const AnyGrid alone(Communicator(), {1, 1, 1, 1});
  if (installed(itk_head())) {
    const VoxelGrid voxels = head_grid(alone.world(), itk_head(), {.resolution = 4});
    for (int k = 0; k < 3; ++k) CHECK(voxels.extents[k] % 8 == 0);
    const Loaded brain = load(alone, itk_head(), Target::brain, voxels);
    const double litres = fraction(brain.labels, 1) * double(product(voxels.extents)) * 64e-6;
    CHECK(litres > 0.9);
    CHECK(litres < 2.2);
    CHECK_THROWS_AS(load(alone, itk_head(), Target::regions, voxels), usage_error);
  }
  on_ranks({1, 2}, [](const Communicator& comm) {
    Subject none = colin();
    none.image = "/none/ch2.nii.gz";
    CHECK(all_throw<io_error>(comm, [&] { require_files(comm, none); }).find("mricron-data") != std::string::npos);
    CHECK_THROWS_AS(head_grid(comm, colin(), {.resolution = 0}), usage_error);
  });
}

TEST_CASE("slices: a picture by hand, and as a PNG") {
  on_ranks({1, 2, 4, 8}, [](const Communicator& comm) {
    const Scratch folder(comm);
    for (const auto& sizes : factorisations(comm.size(), 4)) {
      const AnyGrid grid(comm, sizes);
      for (const Layout& layout : {over_ndhw, place(n, rep, h, w)}) {
        Tensor<float, 5> x(grid, Map<5>(layout, grid.shape(), {{2, 1, 2, 3, 4}}));
        Tensor<std::uint8_t, 5> t(grid, x.map());
        fill(x, [](const Index<5>& i) { return i[4] + 10 * i[3] + 100 * i[2] + 1000 * i[0]; });
        fill(t, [](const Index<5>& i) { return i[0] == 1 && i[2] == 1 && i[3] == 2 && i[4] == 3 ? 1 : 0; });
        CHECK(plane_of(x, 1, 0, 1) ==
              std::vector<float>{1100, 1101, 1102, 1103, 1110, 1111, 1112, 1113, 1120, 1121, 1122, 1123});
        CHECK(plane_of(x, 0, 1, 2) == std::vector<float>{20, 21, 22, 23, 120, 121, 122, 123});
        CHECK(plane_of(x, 0, 2, 3) == std::vector<float>{3, 13, 23, 103, 113, 123});
        CHECK(middle_of(t, 1) == Index<3>{{1, 2, 3}});
        CHECK(middle_of(t, 0) == Index<3>{{1, 1, 2}});
        const Picture p = overlay(x, {&t, &t}, 1, {{1, 2, 3}});
        CHECK(p.width == 11);
        CHECK(p.height == 6);
        CHECK(p.rgb[0] == 221);                // from above: front left, 20 of 23
        CHECK(p.rgb[3 * 3] == 243);            // front right, labelled: 0.55 * 255 + 0.45 * 230
        CHECK(p.rgb[3 * 3 + 1] == 167);        //                       0.55 * 255 + 0.45 * 60
        CHECK(p.rgb[3 * (2 * 11)] == 0);       // back left
        CHECK(p.rgb[3 * (3 * 11 + 3)] == 243); // the second row of pictures
        CHECK(p.rgb[3 * 10] == 243);           // from the side: top front
        if (comm.rank() == 0 && sizes[0] == comm.size() && std::system("gnuplot -V > /dev/null 2>&1") == 0) {
          CHECK(write_png(folder / "a.png", p));
          std::ifstream in(folder / "a.png", std::ios::binary);
          char head[24] = {};
          in.read(head, 24);
          CHECK(std::string(head + 1, 3) == "PNG");
          CHECK(head[19] == 33); // 11 voxels of 3 pixels
        }
        comm.barrier();
      }
    }
    CHECK(!write_png(folder / "none.png", Picture{}));
  });
}
#endif
