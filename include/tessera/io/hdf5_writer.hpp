// io/hdf5_writer.hpp: writes datasets (whole or piece by piece), strings and attributes into a new HDF5 file.
//
// Writing goes through a small file driver of our own. HDF5 1.10 crashes when the disk is full while it closes a file,
// so that driver remembers the first failed write, lets HDF5 finish in peace, and close() then throws.
//
// May know: base, hdf5_base.
// Example: Hdf5Writer f("u.h5");  f.write_all<float>("v", extents, values, {.chunk = {8, 8, 8}, .deflate = 4});
//          f.close();
#pragma once

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <tessera/base/extents.hpp>
#include <tessera/io/hdf5_base.hpp>
#include <unistd.h>

namespace tessera::io {

/// How a new dataset is stored. Empty chunk: in one piece. `deflate` 1..9 compresses and needs a chunk.
struct Storage {
  std::vector<long> chunk = {};
  int deflate = 0;
};

namespace detail {

/// What the writing driver shares with its Hdf5Writer: the descriptor and the first error (an errno, 0: none).
struct WriteState {
  int fd = -1;
  int error = 0;
};

/// The writing driver: a POSIX file whose failures are remembered in WriteState and hidden from HDF5.
struct WriteDriver {
  H5FD_t base{}; // HDF5 knows a file by this first member
  WriteState* state = nullptr;
  haddr_t eoa = 0, eof = 0;

  static WriteDriver& of(H5FD_t* f) { return *reinterpret_cast<WriteDriver*>(f); }
  static const WriteDriver& of(const H5FD_t* f) { return *reinterpret_cast<const WriteDriver*>(f); }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const auto* info = static_cast<WriteState* const*>(H5Pget_driver_info(access));
    auto* f = new (std::nothrow) WriteDriver;
    if (f) f->state = *info;
    return reinterpret_cast<H5FD_t*>(f);
  }
  static herr_t close(H5FD_t* f) {
    delete &of(f);
    return 0;
  }
  static herr_t query(const H5FD_t*, unsigned long* flags) {
    if (flags)
      *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
               H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
  }
  static haddr_t get_eoa(const H5FD_t* f, H5FD_mem_t) { return of(f).eoa; }
  static herr_t set_eoa(H5FD_t* f, H5FD_mem_t, haddr_t a) {
    of(f).eoa = a;
    return 0;
  }
  static haddr_t get_eof(const H5FD_t* f, H5FD_mem_t) { return of(f).eof; }
  static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t n, void* to) {
    WriteDriver& f = of(file);
    auto* p = static_cast<char*>(to);
    while (n > 0) {
      const ssize_t got = ::pread(f.state->fd, p, n, static_cast<off_t>(address));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && f.state->error == 0) f.state->error = errno;
      if (got <= 0) break;
      p += got;
      n -= static_cast<std::size_t>(got);
      address += static_cast<haddr_t>(got);
    }
    std::memset(p, 0, n); // beyond the end, and after a failure
    return 0;
  }
  static herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t n, const void* from) {
    WriteDriver& f = of(file);
    const auto* p = static_cast<const char*>(from);
    f.eof = std::max(f.eof, address + n);
    while (n > 0 && f.state->error == 0) {
      const ssize_t put = ::pwrite(f.state->fd, p, n, static_cast<off_t>(address));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0)
        f.state->error = put < 0 ? errno : ENOSPC;
      else {
        p += put;
        n -= static_cast<std::size_t>(put);
        address += static_cast<haddr_t>(put);
      }
    }
    return 0;
  }
  static herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
    WriteDriver& f = of(file);
    if (f.eof != f.eoa) {
      if (f.state->error == 0 && ::ftruncate(f.state->fd, static_cast<off_t>(f.eoa)) != 0) f.state->error = errno;
      f.eof = f.eoa;
    }
    return 0;
  }

  static H5FD_class_t describe() {
    H5FD_class_t c{};
#ifdef H5FD_CLASS_VERSION // HDF5 1.14
    c.version = H5FD_CLASS_VERSION;
    c.value = 300;
#endif
    c.name = "tessera_write";
    c.maxaddr = static_cast<haddr_t>(1) << 62;
    c.fc_degree = H5F_CLOSE_STRONG;
    c.fapl_size = sizeof(WriteState*);
    c.open = open;
    c.close = close;
    c.query = query;
    c.get_eoa = get_eoa;
    c.set_eoa = set_eoa;
    c.get_eof = get_eof;
    c.read = read;
    c.write = write;
    c.truncate = truncate;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), c.fl_map);
    return c;
  }
};

} // namespace detail

/// A file being written. Nothing is certain before close() returns: it reports every failed write since the start.
/// A writer that is destroyed without close() leaves an incomplete file behind (see io/atomic_file.hpp).
class Hdf5Writer {
public:
  explicit Hdf5Writer(std::string path) : path_(std::move(path)), state_(std::make_unique<detail::WriteState>()) {
    detail::Hdf5Session session;
    state_->fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (state_->fd < 0)
      throw io_error(text(detail::at(path_, ""), "cannot create: ", std::strerror(errno),
                          "; check that the folder exists and may be written"));
    const H5FD_class_t driver = detail::WriteDriver::describe();
    driver_ = {H5FDregister(&driver), H5FDunregister};
    const detail::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    detail::WriteState* state = state_.get();
    if (!driver_.valid() || H5Pset_driver(access, driver_, &state) < 0)
      detail::hdf5_fail(path_, "", "set the file driver", "check the HDF5 library");
    file_ = {H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose};
    if (!file_.valid()) {
      ::close(state_->fd);
      detail::hdf5_fail(path_, "", "create", "check the HDF5 library");
    }
  }
  Hdf5Writer(Hdf5Writer&&) = default;
  ~Hdf5Writer() {
    if (state_) abandon();
  }

  const std::string& path() const { return path_; }

  /// Makes a dataset (and the groups in its path) to be filled by write().
  template <class T>
  void create(const std::string& dataset, std::span<const long> extents, const Storage& storage = {}) {
    detail::Hdf5Session session;
    make(dataset, detail::native_type(element_type_of<T>()), extents, storage);
  }
  /// Writes lo <= i < hi from `from`, dense, last dim fastest. Pieces that fill whole chunks are compressed only once.
  template <class T>
  void write(const std::string& dataset, std::span<const long> lo, std::span<const long> hi, std::span<const T> from) {
    detail::Hdf5Session session;
    const auto d = open_.find(dataset);
    TESSERA_REQUIRE(d != open_.end(), detail::at(path_, dataset), "write() before create()");
    const detail::Handle space(H5Dget_space(d->second), H5Sclose);
    if (detail::checked_volume(detail::at(path_, dataset), detail::extents_of(space), lo, hi, from.size()) == 0) return;
    const detail::Handle block = detail::select_box(space, lo, hi);
    const hid_t memory = detail::native_type(element_type_of<T>());
    if (!block.valid() || H5Dwrite(d->second, memory, block, space, H5P_DEFAULT, from.data()) < 0)
      detail::hdf5_fail(path_, dataset, "write", "check the disk");
    check(dataset);
  }
  template <class T, int N> void write(const std::string& dataset, const Box<N>& box, std::span<const T> from) {
    write<T>(dataset, std::span(box.lo.v), std::span(box.hi.v), from);
  }
  /// A whole dataset.
  template <class T>
  void write_all(const std::string& dataset, std::span<const long> extents, std::span<const T> from,
                 const Storage& storage = {}) {
    create<T>(dataset, extents, storage);
    write<T>(dataset, std::vector<long>(extents.size()), extents, from);
  }

  /// A list of strings (one dim).
  void write_strings(const std::string& dataset, std::span<const std::string> strings) {
    detail::Hdf5Session session;
    std::size_t width = 1;
    for (const auto& s : strings) width = std::max(width, s.size());
    std::string chars;
    for (const auto& s : strings) chars += s + std::string(width - s.size(), '\0');
    const detail::Handle type = string_type(width);
    const long n = static_cast<long>(strings.size());
    make(dataset, type, std::span(&n, 1), {});
    if (n > 0 && H5Dwrite(open_.at(dataset), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, chars.data()) < 0)
      detail::hdf5_fail(path_, dataset, "write", "check the disk");
    check(dataset);
  }

  /// A scalar attribute of a dataset or group ("/": the file itself).
  void attribute(const std::string& object, const std::string& name, const Value& value) {
    detail::Hdf5Session session;
    const detail::Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    if (const auto* i = std::get_if<std::int64_t>(&value))
      put_attribute(object, name, H5T_NATIVE_INT64, space, i);
    else if (const auto* d = std::get_if<double>(&value))
      put_attribute(object, name, H5T_NATIVE_DOUBLE, space, d);
    else {
      std::string s = std::get<std::string>(value);
      if (s.empty()) s.push_back('\0');
      put_attribute(object, name, string_type(s.size()), space, s.data());
    }
  }
  /// An attribute of several numbers.
  void attribute(const std::string& object, const std::string& name, std::span<const double> values) {
    detail::Hdf5Session session;
    const hsize_t n = values.size();
    const detail::Handle space(H5Screate_simple(1, &n, nullptr), H5Sclose);
    put_attribute(object, name, H5T_NATIVE_DOUBLE, space, values.data());
  }

  /// Writes what is buffered, syncs to the disk and closes. Throws io_error if any write since the start has failed.
  void close() {
    detail::Hdf5Session session;
    TESSERA_REQUIRE(state_, detail::at(path_, ""), "closed twice");
    const herr_t closed = close_hdf5();
    const int fd = std::exchange(state_->fd, -1);
    if (state_->error == 0 && ::fsync(fd) != 0) state_->error = errno;
    if (::close(fd) != 0 && state_->error == 0) state_->error = errno;
    const auto state = std::move(state_);
    if (state->error != 0) fail_write("", state->error);
    if (closed < 0) detail::hdf5_fail(path_, "", "close", "check the disk");
  }

private:
  void put_attribute(const std::string& object, const std::string& name, hid_t type, hid_t space, const void* from) {
    const detail::Handle a(
        H5Acreate_by_name(file_, object.c_str(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    if (!a.valid() || H5Awrite(a, type, from) < 0)
      detail::hdf5_fail(path_, object, text("write attribute '", name, "'"),
                        "its name must be new, the object must exist, a text may have 60000 bytes");
    check(object);
  }

  static detail::Handle string_type(std::size_t width) {
    detail::Handle t(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(t, width);
    H5Tset_strpad(t, H5T_STR_NULLPAD);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
  }

  void make(const std::string& dataset, hid_t type, std::span<const long> extents, const Storage& storage) {
    const std::string at = detail::at(path_, dataset);
    const auto size = detail::sizes(extents);
    const detail::Handle space(extents.empty() ? H5Screate(H5S_SCALAR)
                                               : H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr),
                               H5Sclose);
    const detail::Handle groups(H5Pcreate(H5P_LINK_CREATE), H5Pclose), how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(groups, 1);
    H5Pset_obj_track_times(how, false); // equal contents make equal files
    TESSERA_REQUIRE(storage.deflate == 0 || !storage.chunk.empty(), at, "deflate needs a chunk shape");
    if (!storage.chunk.empty()) {
      TESSERA_REQUIRE(storage.chunk.size() == extents.size(), at, "a chunk of ", storage.chunk.size(), " dims for ",
                      extents.size());
      std::vector<hsize_t> chunk = detail::sizes(storage.chunk);
      for (std::size_t i = 0; i < chunk.size(); ++i) // HDF5 wants no chunk above a fixed extent
        if (size[i] > 0) chunk[i] = std::min(chunk[i], size[i]);
      H5Pset_chunk(how, static_cast<int>(chunk.size()), chunk.data());
    }
    if (storage.deflate > 0 && H5Pset_deflate(how, static_cast<unsigned>(storage.deflate)) < 0)
      detail::hdf5_fail(path_, dataset, "set the compression", "levels are 1 to 9");
    detail::Handle d(H5Dcreate2(file_, dataset.c_str(), type, space, groups, how, H5P_DEFAULT), H5Dclose);
    if (!d.valid()) detail::hdf5_fail(path_, dataset, "create", "check its name and shape");
    open_.insert_or_assign(dataset, std::move(d));
  }

  [[noreturn]] void fail_write(const std::string& dataset, int error) const {
    throw io_error(text(detail::at(path_, dataset), "cannot write: ", std::strerror(error),
                        "; free some space or choose another folder"));
  }
  void check(const std::string& dataset) const {
    if (state_->error != 0) fail_write(dataset, state_->error);
  }
  herr_t close_hdf5() {
    open_.clear();
    const herr_t closed = file_.close();
    driver_.close();
    return closed;
  }
  void abandon() {
    if (state_->error == 0) state_->error = ECANCELED; // nothing more reaches the disk
    close_hdf5();
    ::close(state_->fd);
  }

  std::string path_;
  std::unique_ptr<detail::WriteState> state_;
  detail::Handle driver_, file_;
  std::map<std::string, detail::Handle> open_;
};

} // namespace tessera::io
