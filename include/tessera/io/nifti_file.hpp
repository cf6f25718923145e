// io/nifti_file.hpp: NiftiHeader, what a NIfTI-1 file says of its volume, and files of one rank: NiftiSource,
// NiftiSink. The only file that includes niftilib.
//
// One file (.nii), plain or compressed (.nii.gz), either byte order. The dims t,z,y,x of a file, x fastest, are c,d,h,w
// here. Values are stored * slope + intercept, where a slope of 0 or one that is no number means that values are as
// stored. NIfTI-2, ANALYZE, pairs of .hdr and .img, colours and complex numbers are refused.
//
// May know: base, affine, element_type.
// Example: const NiftiHeader h = NiftiHeader::read("ch2.nii.gz");  h.affine(Axes::canonical).voxel();
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <memory>
#include <nifti1_io.h>
#include <span>
#include <string>
#include <sys/stat.h>
#include <tessera/io/affine.hpp>
#include <tessera/io/element_type.hpp>
#include <unistd.h>
#include <vector>

namespace tessera::io {

namespace detail {

[[noreturn]] inline void nifti_fail(const std::string& path, std::string_view why) {
  throw io_error(text("file '", path, "': ", why));
}

struct NiftiClose {
  void operator()(znzFile f) const { Xznzclose(&f); }
};
using NiftiHandle = std::unique_ptr<znzptr, NiftiClose>;

inline NiftiHandle nifti_open(const std::string& path, const char* mode, bool compressed) {
  errno = 0;
  NiftiHandle f(znzopen(path.c_str(), mode, compressed));
  if (!f) nifti_fail(path, text("cannot open: ", std::strerror(errno), "; check the path and the permissions"));
  return f;
}

/// NIfTI's number of an element type, or 0.
constexpr short nifti_code(ElementType t) {
  switch (t) {
  case ElementType::u8: return DT_UINT8;
  case ElementType::i8: return DT_INT8;
  case ElementType::i16: return DT_INT16;
  case ElementType::u16: return DT_UINT16;
  case ElementType::i32: return DT_INT32;
  case ElementType::u32: return DT_UINT32;
  case ElementType::i64: return DT_INT64;
  case ElementType::u64: return DT_UINT64;
  case ElementType::f32: return DT_FLOAT32;
  case ElementType::f64: return DT_FLOAT64;
  case ElementType::other: break;
  }
  return 0;
}
constexpr ElementType nifti_element(short code) {
  for (int t = 0; t < int(ElementType::other); ++t)
    if (nifti_code(ElementType(t)) == code) return ElementType(t);
  return ElementType::other;
}

inline bool ends_with_gz(const std::string& path) { return path.ends_with(".gz"); }

} // namespace detail

/// Plain data, so that it can be sent.
class NiftiHeader {
public:
  /// Reads and checks the header. Throws io_error that names the file, what is wrong, and a remedy.
  static NiftiHeader read(const std::string& path) {
    NiftiHeader h;
    // zlib reads plain files too, so the name need not tell.
    const detail::NiftiHandle file = detail::nifti_open(path, "rb", true);
    unsigned char first[sizeof(nifti_1_header)] = {};
    const std::size_t got = znzread(first, 1, sizeof first, file.get());
    std::memcpy(&h.raw_, first, sizeof first);
    int size = 0;
    if (got >= sizeof size) std::memcpy(&size, first, sizeof size);
    h.swapped_ = size != 348 && size != 540;
    if (h.swapped_) nifti_swap_4bytes(1, &size);
    if (size == 540)
      detail::nifti_fail(path, "this is NIfTI-2, which is not read; convert it to NIfTI-1, for example with "
                               "`nifti_tool -convert2dtype` or nibabel's Nifti1Image.from_image");
    if (size != 348 || got < sizeof first)
      detail::nifti_fail(path, text("this is no NIfTI file: it ", got < sizeof first ? "ends within" : "lacks",
                                    " the header of 348 bytes; check that it was copied whole"));
    if (h.swapped_) swap_nifti_header(&h.raw_, 1);
    if (std::memcmp(h.raw_.magic, "n+1", 4) != 0)
      detail::nifti_fail(path, std::memcmp(h.raw_.magic, "ni1", 4) == 0
                                   ? "its voxels are in another file (.hdr and .img); join them into one .nii"
                                   : "this is ANALYZE or no image, which is not read; convert it to NIfTI-1 (.nii)");
    unsigned char plain[2] = {};
    const detail::NiftiHandle begin = detail::nifti_open(path, "rb", false);
    h.compressed_ = znzread(plain, 1, 2, begin.get()) == 2 && plain[0] == 0x1f && plain[1] == 0x8b;
    h.interpret(path);
    return h;
  }

  /// A header for a volume (c,d,h,w) whose voxels lie as `affine` says.
  static NiftiHeader make(const Extents<4>& extents, const Affine& affine, ElementType type) {
    NiftiHeader h;
    h.raw_.sizeof_hdr = sizeof h.raw_;
    h.raw_.regular = 'r';
    std::memcpy(h.raw_.magic, "n+1", 4);
    h.raw_.vox_offset = first_voxel;
    h.raw_.xyzt_units = NIFTI_UNITS_MM;
    h.place(extents, affine);
    return h.with_type(type);
  }
  /// The same place in space for elements of another type, stored as they are.
  NiftiHeader with_type(ElementType type) const {
    TESSERA_REQUIRE(detail::nifti_code(type) != 0, "NiftiHeader: elements that are not numbers");
    NiftiHeader h = *this;
    h.raw_.datatype = detail::nifti_code(type), h.raw_.bitpix = static_cast<short>(8 * size_of(type));
    h.raw_.scl_slope = 1, h.raw_.scl_inter = 0, h.raw_.cal_min = h.raw_.cal_max = 0;
    h.interpret("a new header");
    return h;
  }
  /// The same kind of file for another number of channels.
  NiftiHeader with_channels(long channels) const {
    NiftiHeader h = *this;
    const Extents<3> e = spatial();
    h.set_extents({{channels, e[0], e[1], e[2]}});
    h.interpret("a new header");
    return h;
  }
  /// Of the part of this volume that begins at voxel `origin` (d,h,w in `axes`; may be outside) and has these extents.
  NiftiHeader cropped(const Index<3>& origin, const Extents<3>& extents, Axes axes = Axes::canonical) const {
    Box<3> b{origin, origin + extents};
    if (axes == Axes::canonical) b = orientation().stored(b, spatial());
    const Extents<3> e = b.extents();
    NiftiHeader h = *this;
    h.set_extents({{channels(), e[0], e[1], e[2]}});
    const auto move = [&](const Affine& a, float* x, float* y, float* z) {
      const auto p = a.at(b.lo);
      *x = float(p[0]), *y = float(p[1]), *z = float(p[2]);
    };
    if (raw_.qform_code > 0) move(qform(), &h.raw_.qoffset_x, &h.raw_.qoffset_y, &h.raw_.qoffset_z);
    if (raw_.sform_code > 0) move(sform(), &h.raw_.srow_x[3], &h.raw_.srow_y[3], &h.raw_.srow_z[3]);
    if (raw_.qform_code <= 0 && raw_.sform_code <= 0) h.place({{channels(), e[0], e[1], e[2]}}, affine_.from(b.lo));
    h.interpret("a cropped header");
    return h;
  }

  /// All of t,u,v,w in the file: 1 for a single image.
  long channels() const { return extents_[0]; }
  /// c,d,h,w.
  Extents<4> extents(Axes axes = Axes::canonical) const {
    const Extents<3> e = axes == Axes::canonical ? orientation().extents(spatial()) : spatial();
    return {{extents_[0], e[0], e[1], e[2]}};
  }
  /// d,h,w as stored.
  Extents<3> spatial() const { return {{extents_[1], extents_[2], extents_[3]}}; }
  Affine affine(Axes axes = Axes::canonical) const {
    return axes == Axes::canonical ? canonical(affine_, orientation(), spatial()) : affine_;
  }
  Orientation orientation(Axes axes = Axes::canonical) const {
    return axes == Axes::canonical ? orientation_of(affine_) : Orientation{};
  }
  ElementType type() const { return type_; }
  double slope() const { return slope_; }
  double intercept() const { return intercept_; }
  /// True if the file's bytes are in the other order.
  bool swapped() const { return swapped_; }
  bool compressed() const { return compressed_; }
  /// Where the first voxel is in the (uncompressed) file.
  long offset() const { return offset_; }
  const nifti_1_header& raw() const { return raw_; }

  static constexpr long first_voxel = 352; ///< in files that are written

private:
  void interpret(const std::string& path) {
    const int dims = raw_.dim[0];
    if (dims < 1 || dims > 7) detail::nifti_fail(path, text("it has ", dims, " dims; 1 to 7 are possible"));
    long all[8] = {};
    for (int k = 1; k <= 7; ++k) {
      all[k] = k <= dims ? raw_.dim[k] : 1;
      // Programs leave the dims beyond the third at 0 where there is one image.
      if (k > 3 && all[k] == 0) all[k] = 1;
      if (all[k] < 1)
        detail::nifti_fail(path, text("dim ", k, " (of x,y,z,t,...) has extent ", all[k],
                                      ": there are no voxels; check the program that wrote it"));
    }
    extents_ = {{all[4] * all[5] * all[6] * all[7], all[3], all[2], all[1]}};
    type_ = detail::nifti_element(raw_.datatype);
    if (type_ == ElementType::other)
      detail::nifti_fail(path, text("elements of type ", raw_.datatype, " (", nifti_datatype_string(raw_.datatype),
                                    "); integers and real numbers are read"));
    const double slope = double(raw_.scl_slope), intercept = double(raw_.scl_inter);
    const bool scaled = std::isfinite(slope) && slope != 0;
    if (scaled && !std::isfinite(intercept))
      detail::nifti_fail(path, text("slope ", slope, " with an intercept that is no number; repair the header"));
    slope_ = scaled ? slope : 1, intercept_ = scaled ? intercept : 0;
    affine_ = raw_.sform_code > 0 ? sform() : raw_.qform_code > 0 ? qform() : spacing();
    const double det = affine_.determinant();
    if (!std::isfinite(det) || det == 0)
      detail::nifti_fail(path, text("its ", raw_.sform_code > 0 ? "sform" : "qform",
                                    " maps space to a plane; repair it, or set its code to 0"));
    // A sane offset that a float holds; some programs leave 0.
    offset_ = raw_.vox_offset >= float(first_voxel) && raw_.vox_offset < 1e9F ? long(raw_.vox_offset) : first_voxel;
  }
  Affine sform() const {
    Affine a;
    for (int c = 0; c < 4; ++c)
      a.m[0][c] = double(raw_.srow_x[c]), a.m[1][c] = double(raw_.srow_y[c]), a.m[2][c] = double(raw_.srow_z[c]);
    return a;
  }
  Affine qform() const {
    const float* p = raw_.pixdim;
    const mat44 q = nifti_quatern_to_mat44(raw_.quatern_b, raw_.quatern_c, raw_.quatern_d, raw_.qoffset_x,
                                           raw_.qoffset_y, raw_.qoffset_z, p[1], p[2], p[3], p[0] < 0 ? -1.F : 1.F);
    Affine a;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) a.m[r][c] = double(q.m[r][c]);
    return a;
  }
  Affine spacing() const {
    Affine a;
    for (int k = 0; k < 3; ++k) {
      const double s = std::abs(double(raw_.pixdim[k + 1]));
      a.m[k][k] = std::isfinite(s) && s > 0 ? s : 1;
    }
    return a;
  }
  void set_extents(const Extents<4>& e) {
    for (int k = 0; k < 4; ++k)
      TESSERA_REQUIRE(e[k] >= 1 && e[k] <= std::numeric_limits<short>::max(), "NiftiHeader: a volume of ", e,
                      "; NIfTI-1 holds 1 to 32767 voxels a side");
    const short dim[8] = {static_cast<short>(e[0] > 1 ? 4 : 3),
                          static_cast<short>(e[3]),
                          static_cast<short>(e[2]),
                          static_cast<short>(e[1]),
                          static_cast<short>(e[0]),
                          1,
                          1,
                          1};
    std::copy_n(dim, 8, raw_.dim);
  }
  /// Both forms say where the voxels lie; the qform only if it can (it has no shear).
  void place(const Extents<4>& e, const Affine& a) {
    set_extents(e);
    mat44 m{};
    m.m[3][3] = 1;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) m.m[r][c] = float(a.m[r][c]);
    for (int c = 0; c < 4; ++c) raw_.srow_x[c] = m.m[0][c], raw_.srow_y[c] = m.m[1][c], raw_.srow_z[c] = m.m[2][c];
    raw_.sform_code = NIFTI_XFORM_SCANNER_ANAT;
    nifti_mat44_to_quatern(m, &raw_.quatern_b, &raw_.quatern_c, &raw_.quatern_d, &raw_.qoffset_x, &raw_.qoffset_y,
                           &raw_.qoffset_z, &raw_.pixdim[1], &raw_.pixdim[2], &raw_.pixdim[3], &raw_.pixdim[0]);
    const Affine q = qform();
    double off = 0;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) off = std::max(off, std::abs(q.m[r][c] - a.m[r][c]));
    raw_.qform_code = off < 1e-4 ? NIFTI_XFORM_SCANNER_ANAT : NIFTI_XFORM_UNKNOWN;
  }

  nifti_1_header raw_{}; ///< in this machine's byte order
  Extents<4> extents_{};
  ElementType type_ = ElementType::other;
  double slope_ = 1, intercept_ = 0;
  Affine affine_;
  long offset_ = first_voxel;
  bool swapped_ = false, compressed_ = false;
};

/// The stored elements of a file, for one rank.
class NiftiSource {
public:
  NiftiSource(std::string path, const NiftiHeader& header) : path_(std::move(path)), header_(header) {
    if (header.compressed()) {
      stream_ = detail::nifti_open(path_, "rb", true);
      skip(header.offset());
    } else if ((fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) < 0)
      detail::nifti_fail(path_, text("cannot open: ", std::strerror(errno), "; check the path and the permissions"));
  }
  NiftiSource(const NiftiSource&) = delete;
  NiftiSource& operator=(const NiftiSource&) = delete;
  ~NiftiSource() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// Plain files only: the elements of a box (c,d,h,w as stored), w fastest, in this machine's byte order.
  void read(const Box<4>& box, std::span<std::byte> to) {
    const Extents<4> e = header_.extents(Axes::as_stored), n = box.extents();
    const long size = long(size_of(header_.type()));
    std::byte* at = to.data();
    // Rows, planes, volumes that lie together in the file become one request.
    int whole_from = 3;
    while (whole_from > 0 && n[whole_from] == e[whole_from]) --whole_from;
    long run = 1;
    for (int k = whole_from; k < 4; ++k) run *= n[k];
    Box<4> starts = box;
    for (int k = whole_from; k < 4; ++k) starts.hi[k] = starts.lo[k] + 1;
    for_each_index(starts, [&](const Index<4>& i) {
      const long first = ((i[0] * e[1] + i[1]) * e[2] + i[2]) * e[3] + i[3];
      fetch(header_.offset() + first * size, run * size, at);
      at += run * size;
    });
    to_native(to);
  }
  /// Compressed files only: the next elements of the stream.
  void next(std::span<std::byte> to) {
    inflate(to.data(), long(to.size()));
    to_native(to);
  }
  /// Bytes of elements that were read, out of the compressed stream where there is one.
  std::uint64_t bytes_read() const { return bytes_; }

private:
  [[noreturn]] void ended() const {
    const Extents<4> e = header_.extents(Axes::as_stored);
    detail::nifti_fail(path_, text("it ends before its ", e, " elements (t,z,y,x) of ", name_of(header_.type()),
                                   "; it was not written or copied whole"));
  }
  void fetch(long offset, long count, std::byte* to) {
    while (count > 0) {
      const ssize_t got = ::pread(fd_, to, std::size_t(count), offset);
      if (got == 0) ended();
      if (got < 0 && errno != EINTR) detail::nifti_fail(path_, text("cannot read: ", std::strerror(errno)));
      if (got > 0) to += got, offset += got, count -= got, bytes_ += std::uint64_t(got);
    }
  }
  void inflate(std::byte* to, long count) {
    if (znzread(to, 1, std::size_t(count), stream_.get()) != std::size_t(count)) ended();
    bytes_ += std::uint64_t(count);
  }
  void skip(long count) {
    std::vector<std::byte> unused(std::size_t(std::min(count, 1L << 16)));
    for (; count > 0; count -= long(unused.size())) {
      unused.resize(std::size_t(std::min(count, long(unused.size()))));
      if (znzread(unused.data(), 1, unused.size(), stream_.get()) != unused.size()) ended();
    }
  }
  void to_native(std::span<std::byte> data) const {
    const std::size_t size = size_of(header_.type());
    if (header_.swapped() && size > 1) nifti_swap_Nbytes(data.size() / size, int(size), data.data());
  }

  std::string path_;
  NiftiHeader header_;
  detail::NiftiHandle stream_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
};

/// A file that is written from its first element to its last, in this machine's byte order.
class NiftiSink {
public:
  /// `file` is what is written; compressed if the name it will have, `path`, ends with .gz.
  NiftiSink(const std::string& file, const std::string& path, const NiftiHeader& header)
      : path_(path), file_(detail::nifti_open(file, "wb", detail::ends_with_gz(path))) {
    nifti_1_header raw = header.raw();
    raw.vox_offset = float(NiftiHeader::first_voxel);
    put(std::as_bytes(std::span(&raw, 1)));
    const std::byte no_extension[NiftiHeader::first_voxel - long(sizeof raw)] = {};
    put(no_extension);
  }
  void put(std::span<const std::byte> data) {
    if (znzwrite(data.data(), 1, data.size(), file_.get()) != data.size())
      detail::nifti_fail(path_, text("cannot write: ", std::strerror(errno), "; free some space"));
  }
  void close() {
    znzFile f = file_.release();
    if (Xznzclose(&f) != 0)
      detail::nifti_fail(path_, text("cannot finish: ", std::strerror(errno), "; free some space"));
  }

private:
  std::string path_;
  detail::NiftiHandle file_;
};

} // namespace tessera::io
