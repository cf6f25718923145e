// io/hdf5_base.hpp: what reading and writing HDF5 share: the mutex, handles, types, errors. The only file that includes
// hdf5.h.
//
// HDF5 is not thread-safe as distributions build it: one process-wide mutex guards every call.
//
// May know: base, element_type.
// Example: Hdf5Session session;  Handle d(H5Dopen2(file, "full", H5P_DEFAULT), H5Dclose);
#pragma once

#include <algorithm>
#include <hdf5.h>
#if __has_include(<H5FDdevelop.h>) // HDF5 1.14 declares file drivers apart
#include <H5FDdevelop.h>
#endif
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <tessera/io/element_type.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::io {

/// A scalar attribute.
using Value = std::variant<std::int64_t, double, std::string>;

/// What a dataset is. `type` is the memory type that holds its elements without loss (a half becomes float32).
struct DatasetInfo {
  std::vector<long> extents = {};
  ElementType type = ElementType::other;
  std::size_t file_bytes = 0;   ///< of one element in the file
  std::vector<long> chunk = {}; ///< empty: stored in one piece

  int rank() const { return static_cast<int>(extents.size()); }
  long size() const { return std::accumulate(extents.begin(), extents.end(), 1L, std::multiplies<>()); }
  /// "4x17x16x16"
  std::string shape() const {
    std::string s;
    for (long e : extents) {
      if (!s.empty()) s += 'x';
      s += std::to_string(e);
    }
    if (s.empty()) s = "a single value";
    return s;
  }
};

namespace detail {

inline std::recursive_mutex hdf5_mutex;

/// Holds the mutex and keeps HDF5 from printing its error stack, for as long as it lives.
class Hdf5Session {
public:
  Hdf5Session() {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Session() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

private:
  std::lock_guard<std::recursive_mutex> lock_{hdf5_mutex};
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

/// An HDF5 identifier and the call that closes it.
class Handle {
public:
  Handle() = default;
  Handle(hid_t id, herr_t (*closing)(hid_t)) : id_(id), close_(closing) {}
  Handle(Handle&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  Handle& operator=(Handle&& o) noexcept {
    std::swap(id_, o.id_);
    std::swap(close_, o.close_);
    return *this;
  }
  ~Handle() { close(); }
  operator hid_t() const { return id_; }
  bool valid() const { return id_ >= 0; }
  herr_t close() {
    const hid_t id = std::exchange(id_, -1);
    if (id < 0) return 0;
    Hdf5Session session;
    return close_(id);
  }

private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

inline std::string at(const std::string& path, const std::string& dataset) {
  return text("file '", path, "'", dataset.empty() ? "" : text(", dataset '", dataset, "'"), ": ");
}

/// Throws io_error with the innermost message of HDF5's error stack as the cause.
[[noreturn]] inline void hdf5_fail(const std::string& path, const std::string& dataset, std::string_view doing,
                                   std::string_view remedy) {
  std::string cause;
  const auto first = [](unsigned n, const H5E_error2_t* e, void* out) -> herr_t {
    if (n == 0 && e->desc) *static_cast<std::string*>(out) = e->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &cause);
  throw io_error(
      text(at(path, dataset), "cannot ", doing, ": ", cause.empty() ? "HDF5 gives no cause" : cause, "; ", remedy));
}

inline hid_t native_type(ElementType t) {
  switch (t) {
  case ElementType::i8: return H5T_NATIVE_INT8;
  case ElementType::u8: return H5T_NATIVE_UINT8;
  case ElementType::i16: return H5T_NATIVE_INT16;
  case ElementType::u16: return H5T_NATIVE_UINT16;
  case ElementType::i32: return H5T_NATIVE_INT32;
  case ElementType::u32: return H5T_NATIVE_UINT32;
  case ElementType::i64: return H5T_NATIVE_INT64;
  case ElementType::u64: return H5T_NATIVE_UINT64;
  case ElementType::f32: return H5T_NATIVE_FLOAT;
  case ElementType::f64: return H5T_NATIVE_DOUBLE;
  case ElementType::other: break;
  }
  return -1;
}

inline ElementType memory_type(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  if (H5Tget_class(type) == H5T_FLOAT)
    return bytes <= 4 ? ElementType::f32 : bytes == 8 ? ElementType::f64 : ElementType::other;
  if (H5Tget_class(type) != H5T_INTEGER) return ElementType::other;
  const bool sign = H5Tget_sign(type) == H5T_SGN_2;
  switch (bytes) {
  case 1: return sign ? ElementType::i8 : ElementType::u8;
  case 2: return sign ? ElementType::i16 : ElementType::u16;
  case 4: return sign ? ElementType::i32 : ElementType::u32;
  case 8: return sign ? ElementType::i64 : ElementType::u64;
  default: return ElementType::other;
  }
}

inline std::vector<hsize_t> sizes(std::span<const long> v) { return {v.begin(), v.end()}; }

inline std::vector<long> extents_of(hid_t space) {
  std::vector<hsize_t> e(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  if (!e.empty()) H5Sget_simple_extent_dims(space, e.data(), nullptr);
  return {e.begin(), e.end()};
}

/// Selects lo <= i < hi of `space`; returns the dataspace of the dense block in memory. The box is not empty.
inline Handle select_box(hid_t space, std::span<const long> lo, std::span<const long> hi) {
  std::vector<hsize_t> start = sizes(lo), count = sizes(hi);
  if (start.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
  for (std::size_t i = 0; i < start.size(); ++i) count[i] -= start[i];
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0) return {};
  return {H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose};
}

/// The elements of the box; throws usage_error if it does not fit the dataset or the memory.
inline std::size_t checked_volume(const std::string& where, const std::vector<long>& extents, std::span<const long> lo,
                                  std::span<const long> hi, std::size_t room) {
  TESSERA_REQUIRE(lo.size() == extents.size() && hi.size() == extents.size(), where, "a box of ", lo.size(),
                  " dims for a dataset of ", extents.size());
  long n = 1;
  for (std::size_t i = 0; i < lo.size(); ++i) {
    TESSERA_REQUIRE(lo[i] >= 0 && hi[i] <= extents[i], where, "dim ", i, ": [", lo[i], ",", hi[i],
                    ") lies outside the dataset's extent ", extents[i]);
    n *= std::max(0L, hi[i] - lo[i]);
  }
  TESSERA_REQUIRE(static_cast<std::size_t>(n) == room, where, "the box has ", n, " elements, the memory ", room);
  return room;
}

} // namespace detail

} // namespace tessera::io
