// io/hdf5_reader.hpp: reads boxes of datasets, strings and attributes of an HDF5 file.
//
// Uses the POSIX driver: each rank reads its own boxes by itself, so a failure on one rank never hangs another.
//
// May know: base, hdf5_base.
// Example: Hdf5Reader f("u.h5");  std::vector<float> v(64);  f.read<float>("full", Box<3>{{{0,0,0}},{{4,4,4}}}, v);
#pragma once

#include <cerrno>
#include <cstring>
#include <map>
#include <sys/stat.h>
#include <tessera/base/extents.hpp>
#include <tessera/io/hdf5_base.hpp>
#include <unistd.h>

namespace tessera::io {

namespace detail {

/// Reads `n` strings of fixed or variable length. `read(memory type, buffer)` is H5Dread or H5Aread.
template <class Read>
bool read_strings(hid_t type, hid_t space, std::size_t n, std::vector<std::string>& out, Read&& read) {
  if (H5Tis_variable_str(type) > 0) {
    const Handle memory(H5Tcopy(type), H5Tclose);
    std::vector<char*> p(n, nullptr);
    if (read(hid_t(memory), static_cast<void*>(p.data())) < 0) return false;
    for (const char* s : p) out.emplace_back(s ? s : "");
    H5Dvlen_reclaim(memory, space, H5P_DEFAULT, p.data());
    return true;
  }
  const std::size_t width = H5Tget_size(type);
  std::vector<char> chars(n * width);
  if (read(type, static_cast<void*>(chars.data())) < 0) return false;
  for (std::size_t i = 0; i < n; ++i) {
    std::string s(chars.data() + i * width, width);
    if (const auto zero = s.find('\0'); zero != s.npos) s.resize(zero);
    if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) s.erase(s.find_last_not_of(' ') + 1);
    out.push_back(std::move(s));
  }
  return true;
}

} // namespace detail

/// A file open for reading. Errors are io_error and name the file, the dataset, the cause and a remedy.
class Hdf5Reader {
public:
  explicit Hdf5Reader(std::string path) : path_(std::move(path)) {
    detail::Hdf5Session session;
    struct stat s {};
    const std::string at = detail::at(path_, "");
    if (::stat(path_.c_str(), &s) != 0)
      throw io_error(text(at, "cannot open: ", std::strerror(errno), "; check the path on every node"));
    if (S_ISDIR(s.st_mode)) throw io_error(text(at, "is a directory; name an HDF5 file"));
    if (::access(path_.c_str(), R_OK) != 0)
      throw io_error(text(at, "cannot open: ", std::strerror(errno), "; check its permissions"));
    const htri_t is_hdf5 = H5Fis_hdf5(path_.c_str());
    if (is_hdf5 == 0)
      throw io_error(text(at, "is not an HDF5 file (", s.st_size, " bytes, no HDF5 signature); check what wrote it"));
    const detail::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fapl_sec2(access);
#if H5_VERSION_GE(1, 10, 7) // parallel file systems often have no locks, and a reader needs none
    H5Pset_file_locking(access, false, true);
#endif
    file_ = {H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access), H5Fclose};
    if (!file_.valid()) detail::hdf5_fail(path_, "", "open", "the file may be truncated or damaged: copy it again");
  }

  const std::string& path() const { return path_; }

  /// The paths of all datasets, sorted.
  std::vector<std::string> datasets() const {
    detail::Hdf5Session session;
    std::vector<std::string> names;
    const auto visit = [](hid_t group, const char* name, const H5L_info_t*, void* out) -> herr_t {
      const detail::Handle object(H5Oopen(group, name, H5P_DEFAULT), H5Oclose);
      if (object.valid() && H5Iget_type(object) == H5I_DATASET) try {
          static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        } catch (...) { // no exception may pass through HDF5
          return -1;
        }
      return 0;
    };
    if (H5Lvisit(file_, H5_INDEX_NAME, H5_ITER_NATIVE, visit, &names) < 0)
      detail::hdf5_fail(path_, "", "list the datasets", "the file may be damaged: copy it again");
    std::sort(names.begin(), names.end());
    return names;
  }

  bool has(const std::string& dataset) const {
    const auto all = datasets();
    return std::find(all.begin(), all.end(), dataset) != all.end();
  }

  DatasetInfo info(const std::string& dataset) const {
    detail::Hdf5Session session;
    const detail::Handle d = open(dataset);
    const detail::Handle type(H5Dget_type(d), H5Tclose), space(H5Dget_space(d), H5Sclose),
        plist(H5Dget_create_plist(d), H5Pclose);
    DatasetInfo i;
    i.extents = detail::extents_of(space);
    i.type = detail::memory_type(type);
    i.file_bytes = H5Tget_size(type);
    if (H5Pget_layout(plist) == H5D_CHUNKED) {
      std::vector<hsize_t> chunk(i.extents.size());
      H5Pget_chunk(plist, static_cast<int>(chunk.size()), chunk.data());
      i.chunk.assign(chunk.begin(), chunk.end());
    }
    return i;
  }

  /// Reads lo <= i < hi into `to`, dense, last dim fastest, converted to T. An empty box reads nothing.
  template <class T>
  void read(const std::string& dataset, std::span<const long> lo, std::span<const long> hi, std::span<T> to) const {
    read(dataset, lo, hi, element_type_of<T>(), std::as_writable_bytes(to));
  }
  template <class T, int N> void read(const std::string& dataset, const Box<N>& box, std::span<T> to) const {
    read<T>(dataset, std::span(box.lo.v), std::span(box.hi.v), to);
  }
  /// The same for an element type known at run time.
  void read(const std::string& dataset, std::span<const long> lo, std::span<const long> hi, ElementType memory,
            std::span<std::byte> to) const {
    detail::Hdf5Session session;
    const detail::Handle d = open(dataset);
    const detail::Handle space(H5Dget_space(d), H5Sclose), type(H5Dget_type(d), H5Tclose);
    const std::string at = detail::at(path_, dataset);
    if (detail::memory_type(type) == ElementType::other)
      throw io_error(text(at, "its elements are not numbers; ", name_of(memory), " was asked for"));
    if (detail::checked_volume(at, detail::extents_of(space), lo, hi, to.size() / size_of(memory)) == 0) return;
    const detail::Handle block = detail::select_box(space, lo, hi);
    if (!block.valid() || H5Dread(d, detail::native_type(memory), block, space, H5P_DEFAULT, to.data()) < 0)
      detail::hdf5_fail(path_, dataset, "read", "the file may be truncated or damaged: copy it again");
  }
  /// The whole dataset.
  template <class T> std::vector<T> read(const std::string& dataset) const {
    const DatasetInfo i = info(dataset);
    std::vector<T> v(static_cast<std::size_t>(i.size()));
    read<T>(dataset, std::vector<long>(i.extents.size()), i.extents, v);
    return v;
  }

  std::vector<std::string> read_strings(const std::string& dataset) const {
    detail::Hdf5Session session;
    const detail::Handle d = open(dataset);
    const detail::Handle type(H5Dget_type(d), H5Tclose), space(H5Dget_space(d), H5Sclose);
    if (H5Tget_class(type) != H5T_STRING) throw io_error(text(detail::at(path_, dataset), "does not hold strings"));
    std::vector<std::string> out;
    const auto n = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space));
    if (!detail::read_strings(type, space, n, out, [&](hid_t memory, void* to) {
          return H5Dread(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to);
        }))
      detail::hdf5_fail(path_, dataset, "read", "the file may be truncated or damaged: copy it again");
    return out;
  }

  /// The scalar attributes of a dataset or group ("/": the file itself). Others (arrays, compounds) are left out.
  std::map<std::string, Value> attributes(const std::string& object = "/") const {
    detail::Hdf5Session session;
    std::map<std::string, Value> out;
    const detail::Handle o(H5Oopen(file_, object.c_str(), H5P_DEFAULT), H5Oclose);
    if (!o.valid()) detail::hdf5_fail(path_, object, "open", "check the name");
    const int count = std::max(0, H5Aget_num_attrs(o));
    for (int k = 0; k < count; ++k) {
      const detail::Handle a(
          H5Aopen_by_idx(o, ".", H5_INDEX_NAME, H5_ITER_INC, static_cast<hsize_t>(k), H5P_DEFAULT, H5P_DEFAULT),
          H5Aclose);
      const detail::Handle type(H5Aget_type(a), H5Tclose), space(H5Aget_space(a), H5Sclose);
      if (!a.valid() || H5Sget_simple_extent_npoints(space) != 1) continue;
      std::string name(static_cast<std::size_t>(std::max<ssize_t>(0, H5Aget_name(a, 0, nullptr))), '\0');
      H5Aget_name(a, name.size() + 1, name.data());
      bool good = true;
      if (H5Tget_class(type) == H5T_STRING) {
        std::vector<std::string> s;
        good = detail::read_strings(type, space, 1, s, [&](hid_t memory, void* to) { return H5Aread(a, memory, to); });
        if (good) out[name] = s[0];
      } else if (H5Tget_class(type) == H5T_INTEGER) {
        std::int64_t v = 0;
        good = H5Aread(a, H5T_NATIVE_INT64, &v) >= 0;
        out[name] = v;
      } else if (H5Tget_class(type) == H5T_FLOAT) {
        double v = 0;
        good = H5Aread(a, H5T_NATIVE_DOUBLE, &v) >= 0;
        out[name] = v;
      }
      if (!good) detail::hdf5_fail(path_, object, text("read attribute '", name, "'"), "the file may be damaged");
    }
    return out;
  }

  /// The numbers of one attribute.
  std::vector<double> attribute_values(const std::string& object, const std::string& name) const {
    detail::Hdf5Session session;
    const detail::Handle a(H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const std::string doing = text("read attribute '", name, "'");
    if (!a.valid()) detail::hdf5_fail(path_, object, doing, "check the names");
    const detail::Handle space(H5Aget_space(a), H5Sclose);
    std::vector<double> v(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    if (H5Aread(a, H5T_NATIVE_DOUBLE, v.data()) < 0) detail::hdf5_fail(path_, object, doing, "it must hold numbers");
    return v;
  }

private:
  detail::Handle open(const std::string& dataset) const {
    detail::Handle d(H5Dopen2(file_, dataset.c_str(), H5P_DEFAULT), H5Dclose);
    if (!d.valid()) {
      const auto all = datasets();
      if (std::find(all.begin(), all.end(), dataset) != all.end())
        detail::hdf5_fail(path_, dataset, "open", "the file may be damaged: copy it again");
      std::string list;
      for (const auto& n : all) list += text(list.empty() ? "'" : ", '", n, "'");
      throw io_error(text(detail::at(path_, dataset), "there is no such dataset; the file has ",
                          list.empty() ? "none" : list, "; name one of them"));
    }
    const detail::Handle plist(H5Dget_create_plist(d), H5Pclose);
    const int filters = H5Pget_nfilters(plist);
    for (int k = 0; k < filters; ++k) {
      char name[64] = {};
      unsigned flags = 0, settings = 0;
      std::size_t none = 0;
      const H5Z_filter_t id =
          H5Pget_filter2(plist, static_cast<unsigned>(k), &flags, &none, nullptr, sizeof name, name, &settings);
      if (H5Zfilter_avail(id) <= 0)
        throw io_error(text(detail::at(path_, dataset), "stored with filter '", name, "' (", id,
                            "), which this HDF5 library lacks; repack it: h5repack -f GZIP=4 old new"));
    }
    return d;
  }

  std::string path_;
  detail::Handle file_;
};

} // namespace tessera::io
