// NIfTI-1: files made byte by byte here, read by every grid, written and read again; what a reader must refuse; real
// volumes where their packages are installed.
#include "io/files.hpp"
#include "support/sweep.hpp"

#include <bit>
#include <cstdlib>
#include <tessera/io/nifti.hpp>
#include <tessera/tensor/gather.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::io;
using namespace tessera::test;

namespace {

/// A NIfTI-1 file in bytes. Offsets are those of the published header.
struct Made {
  std::endian order = std::endian::little;
  std::vector<unsigned char> bytes = std::vector<unsigned char>(352);

  template <class T> Made& put(std::size_t at, T v) {
    unsigned char raw[sizeof v];
    std::memcpy(raw, &v, sizeof v);
    if (order != std::endian::native) std::reverse(raw, raw + sizeof v);
    if (bytes.size() < at + sizeof v) bytes.resize(at + sizeof v);
    std::copy_n(raw, sizeof v, bytes.begin() + long(at));
    return *this;
  }
  template <class T> Made& append(T v) { return put(bytes.size(), v); }
  Made& dims(std::initializer_list<int> d) {
    std::size_t at = 40;
    for (const int v : d) put(at, std::int16_t(v)), at += 2;
    return *this;
  }
  Made& type(int code, int bits) { return put(70, std::int16_t(code)).put(72, std::int16_t(bits)); }
  Made& scaled(float slope, float intercept) { return put(112, slope).put(116, intercept); }
  Made& pixdim(std::initializer_list<float> d) {
    std::size_t at = 76;
    for (const float v : d) put(at, v), at += 4;
    return *this;
  }
  Made& sform(std::initializer_list<float> rows) {
    put(254, std::int16_t(1));
    std::size_t at = 280;
    for (const float v : rows) put(at, v), at += 4;
    return *this;
  }
  Made& qform(std::initializer_list<float> quaternion_and_offset) {
    put(252, std::int16_t(1));
    std::size_t at = 256;
    for (const float v : quaternion_and_offset) put(at, v), at += 4;
    return *this;
  }
  void save(const std::string& path) const {
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), long(bytes.size()));
  }
};

Made start(std::endian order = std::endian::little) {
  Made m;
  m.order = order;
  m.put(0, std::int32_t(348)).put(108, 352.F).pixdim({1, 1, 1, 1});
  for (std::size_t i = 0; i < 3; ++i) m.bytes[344 + i] = static_cast<unsigned char>("n+1"[i]);
  return m;
}

/// 2x3x4 voxels (x,y,z), int16, slope 2, intercept -1024; the value stored at (x,y,z) is 600 + x + 10 y + 100 z.
Made case_23() {
  Made m = start();
  m.dims({3, 2, 3, 4}).type(4, 16).scaled(2, -1024).sform({-1, 0, 0, 10, 0, 1, 0, 20, 0, 0, 2, 30});
  for (int z = 0; z < 4; ++z)
    for (int y = 0; y < 3; ++y)
      for (int x = 0; x < 2; ++x) m.append(std::int16_t(600 + x + 10 * y + 100 * z));
  return m;
}

void on_root(const Communicator& comm, const std::function<void()>& f) {
  if (comm.rank() == 0) f();
  comm.barrier();
}
void gzip(const std::string& path) { REQUIRE(std::system(("gzip -kf '" + path + "'").c_str()) == 0); }

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

constexpr Layout over_ndhw = place(n, d, h, w);
constexpr Layout layouts[] = {over_ndhw, place(w, h, d, rep), place(rep, n, d, d)};

} // namespace

TEST_CASE("nifti: slope, intercept and affine, the same on every grid, plain and compressed") {
  on_ranks([](const Communicator& comm) {
    const Scratch folder(comm);
    on_root(comm, [&] { case_23().save(folder / "a.nii"), gzip(folder / "a.nii"); });
    for (const std::string& path : {folder / "a.nii", folder / "a.nii.gz"})
      for (const auto& sizes : factorisations(comm.size(), 4))
        for (const Layout& layout : layouts) {
          const AnyGrid grid(comm, sizes);
          NiftiReader file(comm, path);
          const NiftiHeader& header = file.header();
          CHECK(header.extents(Axes::as_stored) == Extents<4>{{1, 4, 3, 2}});
          CHECK(header.affine(Axes::as_stored).at({{3, 2, 1}}) == std::array<double, 3>{9, 22, 36});
          CHECK(header.affine().at({{3, 2, 0}}) == std::array<double, 3>{9, 22, 36}); // x runs right now
          CHECK(header.compressed() == path.ends_with(".gz"));

          const Map<5> map(layout, grid.shape(), {{1, 1, 4, 3, 2}});
          Tensor<float, 5> stored(grid, map), turned(grid, map);
          file.read(stored, {.axes = Axes::as_stored});
          const auto v = gather(stored);
          CHECK(v[0] == 176); // 600 * 2 - 1024
          for (int k = 0; k < 24; ++k)
            CHECK(v[std::size_t(k)] == float((600 + k % 2 + 10 * (k / 2 % 3) + 100 * (k / 6)) * 2 - 1024));
          // A plain file: each rank its own bytes. A compressed one: rank 0 reads all, once.
          const long mine = stored.box().volume() * 2;
          CHECK(file.bytes_read() == std::uint64_t(!header.compressed() ? mine : comm.rank() == 0 ? 48 : 0));
          if (!header.compressed()) CHECK(file.bytes_sent() == 0);
          file.read(turned);
          const auto t = gather(turned);
          for (std::size_t k = 0; k < 24; ++k) CHECK(t[k] == v[k ^ 1u]);
        }
  });
}

TEST_CASE("nifti: saving keeps affine, slope and intercept, and turns back") {
  on_ranks([](const Communicator& comm) {
    const Scratch folder(comm);
    on_root(comm, [&] { case_23().save(folder / "a.nii"); });
    const NiftiHeader header = NiftiReader(comm, folder / "a.nii").header();
    for (const auto& sizes : factorisations(comm.size(), 4))
      for (const Layout& layout : layouts)
        for (const Axes axes : {Axes::canonical, Axes::as_stored}) {
          const AnyGrid grid(comm, sizes);
          Tensor<float, 5> x(grid, Map<5>(layout, grid.shape(), {{1, 1, 4, 3, 2}}));
          NiftiReader(comm, folder / "a.nii").read(x, {.axes = axes});
          write_nifti(folder / "b.nii", x, header, 0, axes);
          write_nifti(folder / "c.nii.gz", x, header, 0, axes);
          // The same bytes: header, voxels, order.
          if (comm.rank() == 0) CHECK(bytes_of(folder / "b.nii") == bytes_of(folder / "a.nii"));
          Tensor<float, 5> again(grid, x.map());
          NiftiReader packed(comm, folder / "c.nii.gz");
          packed.read(again, {.axes = axes});
          CHECK(packed.header().compressed());
          CHECK(gather(again) == gather(x));
        }
  });
}

TEST_CASE("nifti: every element type, either byte order, 4D, slopes that mean 1") {
  struct Type {
    int code, bits;
    ElementType type;
  };
  const Type types[] = {{2, 8, ElementType::u8},     {4, 16, ElementType::i16},   {8, 32, ElementType::i32},
                        {16, 32, ElementType::f32},  {64, 64, ElementType::f64},  {256, 8, ElementType::i8},
                        {512, 16, ElementType::u16}, {768, 32, ElementType::u32}, {1024, 64, ElementType::i64},
                        {1280, 64, ElementType::u64}};
  on_ranks({1, 3}, [&](const Communicator& comm) {
    const Scratch folder(comm);
    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    for (const std::endian order : {std::endian::little, std::endian::big})
      for (const float slope :
           {0.F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1.F})
        for (const Type& t : types) {
          on_root(comm, [&] {
            Made m = start(order);
            m.dims({4, 2, 3, 4, 2}).type(t.code, t.bits).scaled(slope, slope == 1 ? 0.F : 7.F).pixdim({1, 3, 2, 5});
            for (int k = 0; k < 48; ++k)
              with_type(t.type, [&]<class S>(S) { m.append(static_cast<S>(k + (sizeof(S) > 1 ? 1000 : 3))); });
            m.save(folder / "a.nii"), gzip(folder / "a.nii");
          });
          for (const std::string& path : {folder / "a.nii", folder / "a.nii.gz"}) {
            NiftiReader file(comm, path);
            CHECK(file.header().type() == t.type);
            CHECK(file.header().swapped() == (order != std::endian::native));
            CHECK(file.header().affine().voxel() == std::array<double, 3>{5, 2, 3}); // no form: the spacings
            Tensor<std::int32_t, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 2, 4, 3, 2}}));
            file.read(x);
            const auto v = gather(x);
            for (int k = 0; k < 48; ++k) CHECK(v[std::size_t(k)] == k + (t.bits > 8 ? 1000 : 3));
          }
        }
  });
}

TEST_CASE("nifti: all 48 ways to lay axes, by sform and by qform; parts, padding, channels; and back") {
  on_ranks({1, 2, 4}, [](const Communicator& comm) {
    const Scratch folder(comm);
    const AnyGrid grid(comm, {1, comm.size() == 4 ? 2 : 1, 1, comm.size() > 1 ? 2 : 1});
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const long size[3] = {3, 4, 5}; // of the volume along right, front, top
    for (const auto& o : orders)
      for (int flips = 0; flips < 8; ++flips) {
        // Stored axis k runs along space axis o[k], backwards if bit k is set. The value is the place: r + 10 f + 100
        // t.
        Affine a;
        long e[3];
        for (int k = 0; k < 3; ++k) {
          e[k] = size[o[k]];
          for (int r = 0; r < 3; ++r) a.m[r][k] = 0;
          const bool back = flips >> k & 1;
          a.m[o[k]][k] = back ? -1 : 1, a.m[o[k]][3] = back ? double(e[k] - 1) : 0;
        }
        const auto fill_in = [&](Made& m) {
          m.dims({3, int(e[0]), int(e[1]), int(e[2])}).type(2, 8);
          for (long z = 0; z < e[2]; ++z)
            for (long y = 0; y < e[1]; ++y)
              for (long x = 0; x < e[0]; ++x) {
                const auto p = a(double(x), double(y), double(z));
                m.append(std::uint8_t(p[0] + 5 * p[1] + 25 * p[2]));
              }
        };
        // As NiftiHeader::make writes it, both forms; then with one of them only.
        NiftiHeader header = NiftiHeader::make({{1, e[2], e[1], e[0]}}, a, ElementType::u8);
        CHECK(header.raw().qform_code == 1);
        for (const bool q : {false, true}) {
          on_root(comm, [&] {
            Made m = start();
            fill_in(m);
            if (q) {
              const nifti_1_header& q1 = header.raw();
              m.pixdim({q1.pixdim[0], 1, 1, 1})
                  .qform({q1.quatern_b, q1.quatern_c, q1.quatern_d, q1.qoffset_x, q1.qoffset_y, q1.qoffset_z});
            } else
              m.sform({float(a.m[0][0]), float(a.m[0][1]), float(a.m[0][2]), float(a.m[0][3]), float(a.m[1][0]),
                       float(a.m[1][1]), float(a.m[1][2]), float(a.m[1][3]), float(a.m[2][0]), float(a.m[2][1]),
                       float(a.m[2][2]), float(a.m[2][3])});
            m.save(folder / "a.nii"), gzip(folder / "a.nii");
          });
          for (const std::string& path : {folder / "a.nii", folder / "a.nii.gz"}) {
            NiftiReader file(comm, path);
            CHECK(file.header().extents() == Extents<4>{{1, 5, 4, 3}});
            for (int r = 0; r < 3; ++r)
              for (int k = 0; k < 4; ++k) {
                CHECK(std::abs(file.header().affine(Axes::as_stored).m[r][k] - a.m[r][k]) < 1e-6);
                CHECK(std::abs(file.header().affine().m[r][k] - (r == k ? 1 : 0)) < 1e-6);
              }
            Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 5, 4, 3}}));
            file.read(x);
            const auto v = gather(x);
            for (int k = 0; k < 60; ++k) CHECK(v[std::size_t(k)] == float(k % 3 + 5 * (k / 3 % 4) + 25 * (k / 12)));
            // A part that begins before the volume and ends inside it, in the second channel of the second sample.
            Tensor<float, 5> part(grid, Map<5>(over_ndhw, grid.shape(), {{2, 3, 6, 3, 4}}));
            fill(part, [](const Index<5>&) { return -7; });
            file.read(part, {.origin = Index<3>{{-2, 1, -1}}, .outside = 200, .sample = 1, .channel = 1});
            const auto p = gather(part);
            std::size_t k = 0;
            for_each_index(whole(part.extents()), [&](const Index<5>& i) {
              const long t = i[2] - 2, f = i[3] + 1, r = i[4] - 1;
              const bool in = t >= 0 && t < 5 && f < 4 && r >= 0 && r < 3;
              CHECK(p[k++] == (i[0] != 1 || i[1] != 1 ? -7.F : in ? float(r + 5 * f + 25 * t) : 200.F));
            });
            if (file.header().compressed()) continue;
            write_nifti(folder / "b.nii", x, file.header());
            if (comm.rank() == 0) CHECK(bytes_of(folder / "b.nii") == bytes_of(folder / "a.nii"));
            // Its header says where it lies; written and read again it is the same.
            const NiftiHeader cropped = file.header().cropped({{-2, 1, -1}}, {{6, 3, 4}});
            const auto corner = cropped.affine().at({{0, 0, 0}}), want = file.header().affine().at({{-2, 1, -1}});
            for (std::size_t r = 0; r < 3; ++r) CHECK(std::abs(corner[r] - want[r]) < 1e-6);
            Tensor<float, 5> one(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 6, 3, 4}})), again(grid, one.map());
            file.read(one, {.origin = Index<3>{{-2, 1, -1}}, .outside = 200});
            write_nifti(folder / "c.nii.gz", one, cropped);
            NiftiReader(comm, folder / "c.nii.gz").read(again);
            CHECK(gather(again) == gather(one));
          }
        }
      }
  });
}

TEST_CASE("nifti: volumes of several slabs, rotated affines, samples and replicas on writing") {
  on_ranks({1, 2, 4, 6}, [](const Communicator& comm) {
    const Scratch folder(comm);
    // 300x400x40 floats: 17 planes to a slab.
    const AnyGrid grid(comm, {1, comm.size() == 6 ? 3 : 1, comm.size() > 1 ? 2 : 1, comm.size() == 4 ? 2 : 1});
    Affine a{{{0.48, -0.1, 0.02, -60}, {0.09, 0.49, -0.05, 12.5}, {0, 0.06, 0.7, 7}}};
    const auto value = [](const Index<5>& i) { return float(i[1] + 2 * i[2] + 3 * i[3] + 5 * i[4] + 1000 * i[0]); };
    for (const Layout& layout : {over_ndhw, place(n, rep, h, w)}) {
      Tensor<float, 5> x(grid, Map<5>(layout, grid.shape(), {{2, 2, 40, 300, 100}})), again(grid, x.map());
      fill(x, value);
      const NiftiHeader header = NiftiHeader::make({{2, 40, 300, 100}}, a, ElementType::f32);
      for (const std::string& path : {folder / "a.nii", folder / "a.nii.gz"}) {
        write_nifti(path, x, header, 1);
        NiftiReader file(comm, path);
        for (int r = 0; r < 3; ++r)
          for (int k = 0; k < 4; ++k) CHECK(file.header().affine().m[r][k] == double(float(a.m[r][k])));
        fill(again, [](const Index<5>&) { return 0; });
        file.read(again, {.sample = 1});
        bool same = true;
        const auto v = again.view();
        for_each_index(whole(v.extents), [&](const Index<5>& i) {
          const Index<5> global = i + again.box().lo;
          same = same && v[i] == (global[0] == 1 ? value(global) : 0);
        });
        CHECK(same);
      }
    }
  });
}

TEST_CASE("nifti: what cannot be read is refused, on every rank alike") {
  on_ranks({1, 2, 3}, [](const Communicator& comm) {
    const Scratch folder(comm);
    const auto told = [&](const Made& m) {
      on_root(comm, [&] { m.save(folder / "bad.nii"); });
      const std::string s = all_throw<io_error>(comm, [&] { NiftiReader(comm, folder / "bad.nii"); });
      CHECK(s.find("bad.nii") != s.npos);
      return s;
    };
    const auto has = [](const std::string& s, const char* part) { return s.find(part) != s.npos; };
    Made two = case_23();
    CHECK(has(told(two.put(0, std::int32_t(540))), "NIfTI-2"));
    two = case_23(), two.order = std::endian::big;
    CHECK(has(told(two.put(0, std::int32_t(540))), "NIfTI-2"));
    CHECK(has(told(case_23().put(0, std::int32_t(12))), "no NIfTI file"));
    Made magic = case_23();
    magic.bytes[345] = 'i';
    CHECK(has(told(magic), "another file"));
    magic.bytes[344] = 0;
    CHECK(has(told(magic), "ANALYZE"));
    CHECK(has(told(case_23().dims({3, 2, 0, 4})), "dim 2"));
    CHECK(has(told(case_23().dims({3, 2, 3, -4})), "extent -4"));
    CHECK(has(told(case_23().dims({0})), "0 dims"));
    CHECK(has(told(case_23().type(128, 24)), "RGB24"));
    CHECK(has(told(case_23().scaled(2, std::numeric_limits<float>::infinity())), "intercept"));
    CHECK(has(told(case_23().sform({1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})), "plane"));
    Made ends = case_23();
    ends.bytes.resize(200);
    CHECK(has(told(ends), "ends within"));
    CHECK(has(all_throw<io_error>(comm, [&] { NiftiReader(comm, folder / "none.nii"); }), "none.nii"));

    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    Made truncated = case_23();
    truncated.bytes.resize(truncated.bytes.size() - 3);
    on_root(comm, [&] {
      truncated.save(folder / "short.nii"), gzip(folder / "short.nii");
      case_23().save(folder / "good.nii"), gzip(folder / "good.nii");
      auto cut = bytes_of(folder / "good.nii.gz");
      std::ofstream(folder / "cut.nii.gz", std::ios::binary).write(cut.data(), long(cut.size() - 20));
    });
    Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 4, 3, 2}}));
    for (const char* name : {"short.nii", "short.nii.gz", "cut.nii.gz"})
      CHECK(has(all_throw<io_error>(comm, [&] { NiftiReader(comm, folder / name).read(x); }), "ends before"));

    NiftiReader good(comm, folder / "good.nii");
    Tensor<std::uint8_t, 5> labels(grid, x.map());
    CHECK(has(all_throw<io_error>(comm, [&] { good.read(labels); }), "no uint8"));
    Tensor<float, 5> other(grid, Map<5>(over_ndhw, grid.shape(), {{1, 2, 4, 3, 2}})),
        larger(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 5, 3, 2}}));
    CHECK(has(all_throw<usage_error>(comm, [&] { good.read(other); }), "name the channel"));
    CHECK(has(all_throw<usage_error>(comm, [&] { good.read(larger); }), "origin"));
    CHECK(has(all_throw<usage_error>(comm, [&] { good.read(x, {.sample = 1}); }), "sample 1"));
    CHECK(has(all_throw<usage_error>(comm, [&] { write_nifti(folder / "x.png", x, good.header()); }), ".nii.gz"));
    CHECK(
        has(all_throw<usage_error>(comm, [&] { write_nifti(folder / "x.nii", larger, good.header()); }), "1x1x5x3x2"));
    CHECK(has(all_throw<io_error>(comm, [&] { write_nifti(folder / "none/x.nii", x, good.header()); }), "cannot open"));
    fill(x, [](const Index<5>&) { return 1e6; });
    CHECK(has(all_throw<io_error>(comm, [&] { write_nifti(folder / "x.nii", x, good.header()); }), "does not fit"));
    CHECK(!std::filesystem::exists(folder / "x.nii"));
    comm.barrier();
  });
}

TEST_CASE("nifti: a disk that fills up leaves no file") {
  on_ranks({1, 2}, [](const Communicator& comm) {
    const Scratch folder(comm);
    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 40, 50, 60}}));
    std::uint32_t state = 1;
    fill(x, [&](const Index<5>&) { return float(state = state * 1664525U + 1013904223U); }); // does not compress
    const NiftiHeader header = NiftiHeader::make({{1, 40, 50, 60}}, Affine{}, ElementType::f32);
    for (const std::string& path : {folder / "a.nii", folder / "a.nii.gz"}) {
      std::string said;
      {
        std::optional<FullDisk> full;
        if (comm.rank() == 0) full.emplace(100'000);
        comm.barrier();
        said = all_throw<io_error>(comm, [&] { write_nifti(path, x, header); });
        comm.barrier();
      }
      CHECK(said.find("cannot") != said.npos);
      CHECK(!std::filesystem::exists(path));
      CHECK(!std::filesystem::exists(path + ".incomplete"));
      comm.barrier();
    }
  });
}

TEST_CASE("nifti: real volumes") {
  const std::string atlases = "/usr/share/mricron/templates/",
                    heads = "/usr/share/doc/insighttoolkit5-examples/examples/Data/",
                    nibabel = "/usr/lib/python3/dist-packages/nibabel/tests/data/";
  const auto there = [](const std::string& path, const char* package) {
    if (std::filesystem::exists(path)) return true;
    MESSAGE("not installed, so not read: ", path, " (package ", package, ")");
    return false;
  };
  if (there(atlases + "aal.nii.gz", "mricron-data"))
    on_ranks({1, 2, 4}, [&](const Communicator& comm) {
      const AnyGrid grid(comm, {1, comm.size() > 2 ? 2 : 1, 1, comm.size() > 1 ? 2 : 1});
      NiftiReader file(comm, atlases + "aal.nii.gz");
      CHECK(file.header().extents() == Extents<4>{{1, 181, 217, 181}});
      CHECK(file.header().affine().at({{0, 0, 0}}) == std::array<double, 3>{-90, -125, -71});
      Tensor<std::uint8_t, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 181, 217, 181}}));
      file.read(x);
      std::int64_t counts[2] = {0, 0}; // of all labels, and of those above 116
      const auto v = x.view();
      for_each_index(whole(v.extents), [&](const Index<5>& i) { counts[0] += v[i] > 0, counts[1] += v[i] > 116; });
      comm.iall_reduce(std::span<std::int64_t>(counts)).wait();
      CHECK(std::abs(double(counts[0]) / (181. * 217 * 181) - 0.208) < 0.001);
      CHECK(counts[1] == 0);
      CHECK(file.bytes_read() == (comm.rank() == 0 ? 181u * 217 * 181 : 0u));
    });
  if (there(heads + "KmeansTest_T1UCharRaw.nii.gz", "insighttoolkit5-examples"))
    on_ranks({1, 2}, [&](const Communicator& comm) {
      const AnyGrid grid(comm, {1, comm.size(), 1, 1});
      NiftiReader file(comm, heads + "KmeansTest_T1UCharRaw.nii.gz"); // its fourth dim has extent 0
      CHECK(file.header().extents(Axes::as_stored) == Extents<4>{{1, 62, 128, 128}});
      const Orientation o = file.header().orientation(); // stored x runs left, y up, z forward
      CHECK(o == Orientation{{1, 0, 2}, {false, false, true}});
      CHECK(file.header().extents() == Extents<4>{{1, 128, 62, 128}});
      Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 1, 128, 62, 128}}));
      file.read(x);
    });
  if (there(nibabel + "example4d.nii.gz", "python3-nibabel"))
    on_ranks({1, 2}, [&](const Communicator& comm) {
      const AnyGrid grid(comm, {1, comm.size(), 1, 1});
      NiftiReader file(comm, nibabel + "example4d.nii.gz");
      CHECK(file.header().extents(Axes::as_stored) == Extents<4>{{2, 24, 96, 128}});
      Tensor<float, 5> x(grid, Map<5>(over_ndhw, grid.shape(), {{1, 2, 24, 96, 128}}));
      file.read(x, {.axes = Axes::as_stored});
      CHECK(all_throw<io_error>(comm, [&] { NiftiReader(comm, nibabel + "example_nifti2.nii.gz"); }).find("NIfTI-2") !=
            std::string::npos);
      NiftiReader big(comm, nibabel + "anatomical.nii");
      CHECK(big.header().type() == ElementType::i16);
      CHECK(big.header().swapped());
      CHECK(big.header().slope() == 1);
    });
}
