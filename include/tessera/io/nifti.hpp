// io/nifti.hpp: NIfTI-1 volumes as distributed tensors: each rank gets its own box, and no rank ever holds the whole.
//
// A plain file (.nii): every rank reads just the bytes of its box. A compressed one (.nii.gz) can only be read from the
// beginning: rank 0 inflates it slab by slab and sends each rank its part, so that it is read and inflated once; a slab
// is a few planes, 8 MiB at most unless one plane has more. Writing gathers in the same slabs on rank 0, which appends
// them to the file; the file appears under its name when it is complete.
//
// May know: base, comm, tensor, affine, nifti_file, atomic_file.
// Example: NiftiReader r(grid.world(), "ch2.nii.gz");  Tensor<float, 5> x(grid, ...);  r.read(x);
//          write_nifti("prediction.nii.gz", y, r.header().with_type(ElementType::u8));
#pragma once

#include <memory>
#include <optional>
#include <tessera/base/copy.hpp>
#include <tessera/comm/agree.hpp>
#include <tessera/io/atomic_file.hpp>
#include <tessera/io/nifti_file.hpp>
#include <tessera/tensor/tensor.hpp>

namespace tessera::io {

/// Which part of a volume is read, and how.
struct NiftiPart {
  Axes axes = Axes::canonical;
  /// The voxel (d,h,w) of the volume that is the tensor's first; may be negative. Empty: the tensor has the extents of
  /// the volume.
  std::optional<Index<3>> origin = {};
  double outside = 0; ///< the value of voxels beyond the volume
  long sample = 0;    ///< of the tensor, to fill
  /// The tensor's channel to fill with a volume of one channel. Empty: the volume has the tensor's channels.
  std::optional<long> channel = {};
};

namespace detail {

/// How many planes of one volume are sent at once.
inline long nifti_slab_planes(const Extents<4>& e, ElementType type) {
  const long plane = e[2] * e[3] * long(size_of(type));
  return std::clamp((8L << 20) / plane, 1L, e[1]);
}
/// Calls f(slab) for all slabs in the order of the file; a slab is a box (c,d,h,w as stored).
template <class F> void for_each_slab(const Extents<4>& e, ElementType type, const F& f) {
  const long planes = nifti_slab_planes(e, type);
  for (long t = 0; t < e[0]; ++t)
    for (long z = 0; z < e[1]; z += planes)
      f(Box<4>{{{t, z, 0, 0}}, {{t + 1, std::min(e[1], z + planes), e[2], e[3]}}});
}

/// Row-major strides, w fastest.
inline Index<4> row_major(const Extents<4>& e) { return {{e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}}; }

/// Copies the part of the row-major block `from_box` into the row-major block `to_box`; elements of `size` bytes.
inline void copy_part(const std::byte* from, const Box<4>& from_box, std::byte* to, const Box<4>& to_box,
                      const Box<4>& part, long size) {
  if (part.empty()) return;
  const Index<4> a = row_major(from_box.extents()), b = row_major(to_box.extents());
  Box<4> rows = part;
  rows.hi[3] = rows.lo[3] + 1;
  for_each_index(rows, [&](const Index<4>& i) {
    const Index<4> p = i - from_box.lo, q = i - to_box.lo;
    long x = 0, y = 0;
    for (int k = 0; k < 4; ++k) x += p[k] * a[k], y += q[k] * b[k];
    std::memcpy(to + y * size, from + x * size, std::size_t(part.extent(3) * size));
  });
}

/// The canonical block `canonical_box` of a volume, as a view of the row-major stored block `stored`.
template <class T> View<T, 4> turned(T* data, const Box<4>& stored, const Orientation& o) {
  const Extents<4> e = stored.extents();
  const Index<4> s = row_major(e);
  View<T, 4> v;
  v.data = data, v.extents[0] = e[0], v.strides[0] = s[0];
  for (int k = 0; k < 3; ++k) {
    const int f = o.from[k] + 1;
    v.extents[k + 1] = e[f];
    v.strides[k + 1] = o.flip[k] ? -s[f] : s[f];
    if (o.flip[k] && e[f] > 0) v.data += (e[f] - 1) * s[f];
  }
  return v;
}
inline Box<4> stored_box(const Box<4>& b, const Orientation& o, const Extents<3>& stored) {
  const Box<3> s = o.stored({{{b.lo[1], b.lo[2], b.lo[3]}}, {{b.hi[1], b.hi[2], b.hi[3]}}}, stored);
  return {{{b.lo[0], s.lo[0], s.lo[1], s.lo[2]}}, {{b.hi[0], s.hi[0], s.hi[1], s.hi[2]}}};
}

/// v as a T, or io_error: an integer type takes whole numbers in its range only.
template <class T> T nifti_value(const std::string& path, double v) {
  if constexpr (std::is_integral_v<T>)
    if (!(v >= double(std::numeric_limits<T>::min()) && v <= double(std::numeric_limits<T>::max())) ||
        v != std::floor(v))
      nifti_fail(path, text("value ", v, " is no ", name_of(element_type_of<T>()),
                            "; labels are whole numbers in range: read it into a tensor of another type"));
  return static_cast<T>(v);
}
/// The stored form of a value.
template <class S> S nifti_stored(const std::string& path, double v, double slope, double intercept) {
  double s = (v - intercept) / slope;
  if constexpr (std::is_integral_v<S>) {
    s = std::round(s);
    // The largest 8-byte integer is no double: its successor is.
    if (!(s >= double(std::numeric_limits<S>::min()) && s < double(std::numeric_limits<S>::max()) + 1))
      nifti_fail(path, text("value ", v, " does not fit into ", name_of(element_type_of<S>()), " with slope ", slope,
                            " and intercept ", intercept, "; write it as float32: header.with_type(ElementType::f32)"));
  }
  return static_cast<S>(s);
}

} // namespace detail

/// One file, read by the ranks of a communicator together.
class NiftiReader {
public:
  /// Rank 0 reads the header and tells the others. Collective; all ranks throw the same io_error.
  NiftiReader(Communicator comm, std::string path) : comm_(std::move(comm)), path_(std::move(path)) {
    static_assert(std::is_trivially_copyable_v<NiftiHeader>);
    std::optional<NiftiHeader> header;
    agree(comm_, [&] {
      if (comm_.rank() == 0) header = NiftiHeader::read(path_);
    });
    header_ = header.value_or(NiftiHeader{});
    comm_.broadcast(std::span(&header_, 1), 0);
  }

  const std::string& path() const { return path_; }
  const NiftiHeader& header() const { return header_; }

  /// Fills this rank's box of x (n,c,d,h,w), whose grid is on this reader's ranks. Collective.
  template <class T> void read(Tensor<T, 5, host>& x, const NiftiPart& part = {}) {
    TESSERA_REQUIRE(x.grid().world() == comm_, "NiftiReader: the tensor is on other ranks than the reader; make it "
                                               "with grid.world()");
    TESSERA_REQUIRE(!x.layout().mask(Placement::Kind::sum), "NiftiReader: a tensor of ", x.layout().str(),
                    " holds addends; read into one whose axes split or copy");
    const Extents<4> e = header_.extents(part.axes);
    const Extents<5> n = x.extents();
    TESSERA_REQUIRE(part.sample >= 0 && part.sample < n[0], "NiftiReader: sample ", part.sample, " of a tensor of ", n);
    const bool one = part.channel.has_value();
    TESSERA_REQUIRE(one ? e[0] == 1 && *part.channel >= 0 && *part.channel < n[1] : e[0] == n[1], "NiftiReader: '",
                    path_, "' has ", e[0], e[0] == 1 ? " volume" : " volumes", ", the tensor ", n[1],
                    " channels; name the channel to fill, or make the tensor with as many");
    const Index<3> origin = part.origin.value_or(Index<3>{});
    for (int k = 0; k < 3; ++k)
      TESSERA_REQUIRE(part.origin || e[k + 1] == n[k + 2], "NiftiReader: '", path_, "' has ", header_.spatial(),
                      " voxels (d,h,w as stored), ", header_.extents(part.axes), " (c,d,h,w) as asked for, the tensor ",
                      n, "; give NiftiPart an origin to cut or pad, or make the tensor as large");
    const Box<5> held = x.box();
    Box<5> mine = held;
    mine.lo[0] = std::max(held.lo[0], part.sample), mine.hi[0] = std::min(held.hi[0], part.sample + 1);
    if (one) mine.lo[1] = std::max(held.lo[1], *part.channel), mine.hi[1] = std::min(held.hi[1], *part.channel + 1);
    Box<4> box;
    for (int k = 0; k < 4; ++k) box.lo[k] = mine.lo[k + 1], box.hi[k] = mine.hi[k + 1];
    if (one) box.hi[0] = std::max(0L, box.hi[0] - box.lo[0]), box.lo[0] = 0;
    box = shifted(box, {{0, origin[0], origin[1], origin[2]}});
    if (mine.empty()) box = {};
    View<T, 4> to;
    if (!mine.empty()) {
      const View<T, 5> v = x.view(mine);
      to = View<T, 4>(v.data, box.extents(), {{v.strides[1], v.strides[2], v.strides[3], v.strides[4]}});
    }
    read(box, to, part.axes, part.outside);
  }

  /// Fills `to` with any box (c,d,h,w in `axes`) of the volume; each rank its own, which may be empty and may reach
  /// beyond the volume: there are `outside`. Collective.
  template <class T>
  void read(const Box<4>& box, const View<T, 4>& to, Axes axes = Axes::canonical, double outside = 0) {
    const Orientation o = header_.orientation(axes);
    const Box<4> inside = intersect(box, whole(header_.extents(axes)));
    const Box<4> stored = inside.empty() ? Box<4>{} : detail::stored_box(inside, o, header_.spatial());
    std::vector<std::byte> raw = fetch(stored);
    agree(comm_, [&] {
      if (inside != box) fill_block(to, detail::nifti_value<T>(path_, outside));
      if (inside.empty()) return;
      with_type(header_.type(), [&]<class S>(S) {
        const S* elements = reinterpret_cast<const S*>(raw.data());
        const double slope = header_.slope(), intercept = header_.intercept();
        for_each_run(detail::turned(elements, stored, o), to.box(shifted(inside, Index<4>{} - box.lo)),
                     [&](const S* a, long sa, T* b, long sb, long count) {
                       for (long i = 0; i < count; ++i)
                         b[i * sb] = detail::nifti_value<T>(path_, double(a[i * sa]) * slope + intercept);
                     });
      });
    });
  }

  /// Bytes of elements that this rank has read from the file so far, or inflated.
  std::uint64_t bytes_read() const { return bytes_read_; }
  /// Bytes of elements that this rank has sent to others so far.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

private:
  static constexpr int tag = 6710;

  /// The elements of this rank's box (as stored), row-major.
  std::vector<std::byte> fetch(const Box<4>& mine) {
    const long size = long(size_of(header_.type()));
    std::vector<std::byte> raw(std::size_t(mine.volume() * size));
    if (!header_.compressed()) {
      agree(comm_, [&] {
        if (mine.empty()) return;
        NiftiSource file(path_, header_);
        file.read(mine, raw);
        bytes_read_ += file.bytes_read();
      });
      return raw;
    }
    std::vector<Box<4>> boxes;
    for (const auto& theirs : comm_.all_gather(std::span<const Box<4>>(&mine, 1))) boxes.push_back(theirs[0]);
    const auto wanted = [&](const Box<4>& slab) {
      return std::ranges::any_of(boxes, [&](const Box<4>& b) { return !intersect(b, slab).empty(); });
    };
    const Extents<4> e = header_.extents(Axes::as_stored);
    Box<4> last{};
    detail::for_each_slab(e, header_.type(), [&](const Box<4>& slab) {
      if (wanted(slab)) last = slab;
    });
    std::unique_ptr<NiftiSource> file;
    const bool root = comm_.rank() == 0;
    agree(comm_, [&] {
      if (root) file = std::make_unique<NiftiSource>(path_, header_);
    });
    std::vector<std::byte> planes;
    bool more = !last.empty();
    detail::for_each_slab(e, header_.type(), [&](const Box<4>& slab) {
      if (!more) return;
      more = slab != last;
      agree(comm_, [&] {
        if (!root) return;
        planes.resize(std::size_t(slab.volume() * size));
        file->next(planes);
      });
      deal(slab, planes, boxes, mine, raw, size);
    });
    if (file) bytes_read_ += file->bytes_read();
    return raw;
  }
  /// Rank 0 gives every rank its part of a slab.
  void deal(const Box<4>& slab, const std::vector<std::byte>& planes, const std::vector<Box<4>>& boxes,
            const Box<4>& mine, std::vector<std::byte>& raw, long size) {
    const Box<4> own = intersect(mine, slab);
    if (comm_.rank() != 0) {
      if (own.empty()) return;
      std::vector<std::byte> got(std::size_t(own.volume() * size));
      comm_.irecv(0, tag, std::span(got)).wait();
      detail::copy_part(got.data(), own, raw.data(), mine, own, size);
      return;
    }
    detail::copy_part(planes.data(), slab, raw.data(), mine, own, size);
    std::vector<std::vector<std::byte>> parts(boxes.size());
    std::vector<Request> sent;
    for (std::size_t r = 1; r < boxes.size(); ++r) {
      const Box<4> part = intersect(boxes[r], slab);
      if (part.empty()) continue;
      parts[r].resize(std::size_t(part.volume() * size));
      detail::copy_part(planes.data(), slab, parts[r].data(), part, part, size);
      bytes_sent_ += parts[r].size();
      sent.push_back(comm_.isend(int(r), tag, std::span(parts[r])));
    }
    for (Request& s : sent) s.wait();
  }

  Communicator comm_;
  std::string path_;
  NiftiHeader header_;
  std::uint64_t bytes_read_ = 0, bytes_sent_ = 0;
};

/// Writes one sample of x (n,c,d,h,w, in `axes`) as the file `path` (.nii or .nii.gz), turned back to the axes of
/// `header`, with its place in space, element type, slope and intercept. Collective; a failure is the same io_error on
/// every rank and leaves no file. Rank 0 holds one slab at a time.
template <class T>
void write_nifti(const std::string& path, const Tensor<T, 5, host>& x, const NiftiHeader& header, long sample = 0,
                 Axes axes = Axes::canonical) {
  constexpr int tag = 6711;
  TESSERA_REQUIRE(path.ends_with(".nii") || path.ends_with(".nii.gz"), "write_nifti: '", path,
                  "' ends neither with .nii nor with .nii.gz");
  const Extents<5> n = x.extents();
  TESSERA_REQUIRE(sample >= 0 && sample < n[0], "write_nifti: sample ", sample, " of a tensor of ", n);
  TESSERA_REQUIRE(header.extents(axes) == (Extents<4>{{n[1], n[2], n[3], n[4]}}), "write_nifti: the tensor is ", n,
                  ", the header says ", header.extents(axes),
                  " (c,d,h,w); make one that fits with cropped(), with_channels() or NiftiHeader::make()");
  TESSERA_REQUIRE(!x.layout().mask(Placement::Kind::sum), "write_nifti: a tensor of ", x.layout().str(),
                  " holds addends; assign it to one whose axes split or copy");
  const Communicator& comm = x.grid().world();
  const Orientation o = header.orientation(axes);
  const long size = long(size_of(header.type()));
  // What each rank gives: of replicas the first.
  const unsigned replicas = x.layout().mask(Placement::Kind::rep);
  std::vector<Box<4>> boxes;
  for (int r = 0; r < x.grid().ranks(); ++r) {
    const auto coords = x.grid().shape().coords(r);
    const Box<5> b = x.map().box(r);
    bool gives = b.lo[0] <= sample && sample < b.hi[0] && !b.empty();
    for (int a = 0; a < x.layout().axes; ++a)
      if ((replicas >> a & 1u) && coords[std::size_t(a)] != 0) gives = false;
    const Box<4> whole_part{{{b.lo[1], b.lo[2], b.lo[3], b.lo[4]}}, {{b.hi[1], b.hi[2], b.hi[3], b.hi[4]}}};
    boxes.push_back(gives ? detail::stored_box(whole_part, o, header.spatial()) : Box<4>{});
  }
  const Box<4>& mine = boxes[std::size_t(comm.rank())];
  // This rank's part as it will be stored.
  std::vector<std::byte> raw(std::size_t(mine.volume() * size));
  agree(comm, [&] {
    if (mine.empty()) return;
    with_type(header.type(), [&]<class S>(S) {
      Box<5> b = x.box();
      b.lo[0] = sample, b.hi[0] = sample + 1;
      const View<const T, 5> v = x.view(b);
      const View<const T, 4> from(v.data, {{v.extents[1], v.extents[2], v.extents[3], v.extents[4]}},
                                  {{v.strides[1], v.strides[2], v.strides[3], v.strides[4]}});
      for_each_run(detail::turned(reinterpret_cast<S*>(raw.data()), mine, o), from,
                   [&](S* to, long st, const T* at, long sa, long count) {
                     for (long i = 0; i < count; ++i)
                       to[i * st] =
                           detail::nifti_stored<S>(path, double(at[i * sa]), header.slope(), header.intercept());
                   });
    });
  });
  const bool root = comm.rank() == 0;
  std::unique_ptr<AtomicFile> atomic;
  std::unique_ptr<NiftiSink> file;
  agree(comm, [&] {
    if (!root) return;
    atomic = std::make_unique<AtomicFile>(path);
    file = std::make_unique<NiftiSink>(atomic->temporary(), path, header);
  });
  std::vector<std::byte> planes;
  detail::for_each_slab(header.extents(Axes::as_stored), header.type(), [&](const Box<4>& slab) {
    const Box<4> own = intersect(mine, slab);
    std::vector<std::byte> part(root ? 0 : std::size_t(own.volume() * size));
    if (!root) {
      detail::copy_part(raw.data(), mine, part.data(), own, own, size);
      if (!own.empty()) comm.isend(0, tag, std::span(part)).wait();
    } else {
      planes.resize(std::size_t(slab.volume() * size));
      detail::copy_part(raw.data(), mine, planes.data(), slab, own, size);
      for (std::size_t r = 1; r < boxes.size(); ++r) {
        const Box<4> theirs = intersect(boxes[r], slab);
        if (theirs.empty()) continue;
        part.resize(std::size_t(theirs.volume() * size));
        comm.irecv(int(r), tag, std::span(part)).wait();
        detail::copy_part(part.data(), theirs, planes.data(), slab, theirs, size);
      }
    }
    agree(comm, [&] {
      if (root) file->put(planes);
    });
  });
  agree(comm, [&] {
    if (!root) return;
    file->close();
    atomic->commit();
  });
}

} // namespace tessera::io
