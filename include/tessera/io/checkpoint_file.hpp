// io/checkpoint_file.hpp: the file of a checkpoint: named arrays and named scalars in HDF5, saved complete or not at
// all.
//
// Knows nothing of networks: whoever saves gathers the arrays, whoever loads scatters them, so any grid can resume.
//
// May know: base, comm, hdf5, atomic_file.
// Example: Checkpoint c;  c.scalars["epoch"] = std::int64_t{3};  c.arrays["conv1/w"] = {{16, 4, 3, 3, 3}, weights};
//          save_checkpoint(comm, "model.h5", c);   const Checkpoint back = load_checkpoint(comm, "model.h5");
#pragma once

#include <tessera/comm/agree.hpp>
#include <tessera/io/atomic_file.hpp>
#include <tessera/io/hdf5.hpp>

namespace tessera::io {

struct CheckpointArray {
  std::vector<long> shape;
  std::variant<std::vector<float>, std::vector<double>> values; ///< dense, last dim fastest

  std::size_t size() const {
    return std::visit([](const auto& v) { return v.size(); }, values);
  }
  friend bool operator==(const CheckpointArray&, const CheckpointArray&) = default;
};

/// Names may contain '/'. The scalars "format" and "version" belong to the file itself.
struct Checkpoint {
  std::map<std::string, Value> scalars;
  std::map<std::string, CheckpointArray> arrays;
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;

  /// The scalar `name` of type T (std::int64_t, double, std::string). Throws io_error if it is missing or another type.
  template <class T> const T& scalar(const std::string& name) const {
    const auto at = scalars.find(name);
    if (at == scalars.end())
      throw io_error(text("checkpoint: there is no scalar '", name, "'; was it written by another version?"));
    if (const T* v = std::get_if<T>(&at->second)) return *v;
    throw io_error(text("checkpoint: the scalar '", name, "' has another type; was it written by another version?"));
  }

  /// Throws io_error that lists every missing, unexpected and differently shaped array. `expected`: name -> shape.
  void require(const std::map<std::string, std::vector<long>>& expected) const {
    const auto shape = [](const std::vector<long>& s) { return DatasetInfo{.extents = s}.shape(); };
    std::string wrong;
    for (const auto& [name, want] : expected) {
      const auto at = arrays.find(name);
      if (at == arrays.end())
        wrong += text("; missing '", name, "' (", shape(want), ")");
      else if (at->second.shape != want)
        wrong += text("; '", name, "' is ", shape(at->second.shape), ", expected ", shape(want));
    }
    for (const auto& [name, array] : arrays)
      if (!expected.contains(name)) wrong += text("; unexpected '", name, "' (", shape(array.shape), ")");
    if (!wrong.empty())
      throw io_error(
          text("checkpoint: it does not fit the network", wrong, "; load it into the network it was saved from"));
  }
};

namespace detail {
inline const std::string checkpoint_format = "tessera checkpoint";
constexpr std::int64_t checkpoint_version = 1;

inline void write_checkpoint(const std::string& path, const Checkpoint& c) {
  AtomicFile file(path);
  Hdf5Writer w(file.temporary());
  w.attribute("/", "format", checkpoint_format);
  w.attribute("/", "version", checkpoint_version);
  for (const auto& [name, value] : c.scalars) w.attribute("/", name, value);
  for (const auto& [name, array] : c.arrays)
    std::visit([&, &name = name, &array = array]<class T>(
                   const std::vector<T>& v) { w.write_all<T>("arrays/" + name, array.shape, std::span<const T>(v)); },
               array.values);
  w.close();
  file.commit();
}

inline Checkpoint read_checkpoint(const std::string& path) {
  const Hdf5Reader file(path);
  Checkpoint c;
  c.scalars = file.attributes("/");
  const auto format = c.scalars.extract("format"), version = c.scalars.extract("version");
  if (format.empty() || format.mapped() != Value(checkpoint_format))
    throw io_error(text(at(path, ""), "is an HDF5 file but not a checkpoint of this library; check the path"));
  if (version.empty() || version.mapped() != Value(checkpoint_version))
    throw io_error(text(at(path, ""), "a checkpoint of another version, this library reads version ",
                        checkpoint_version, "; use the library that wrote it"));
  const std::string prefix = "arrays/";
  for (const auto& name : file.datasets()) {
    if (!name.starts_with(prefix)) continue;
    const DatasetInfo info = file.info(name);
    CheckpointArray& a = c.arrays[name.substr(prefix.size())];
    a.shape = info.extents;
    if (info.type == ElementType::f64)
      a.values = file.read<double>(name);
    else if (info.type == ElementType::f32)
      a.values = file.read<float>(name);
    else
      throw io_error(
          text(at(path, name), "holds ", name_of(info.type), ", expected float32 or float64; the file is damaged"));
  }
  return c;
}

/// A checkpoint as bytes, for the broadcast: shapes and scalars first, the values of arrays apart.
class CheckpointHeader {
public:
  void put(std::int64_t v) { append(&v, sizeof v); }
  void put(const std::string& s) {
    put(static_cast<std::int64_t>(s.size()));
    append(s.data(), s.size());
  }
  void put(double v) { append(&v, sizeof v); }
  std::int64_t number() { return take<std::int64_t>(); }
  double real() { return take<double>(); }
  std::string string() {
    const auto n = static_cast<std::size_t>(number());
    at_ += n;
    return bytes.substr(at_ - n, n);
  }

  std::string bytes;

private:
  void append(const void* p, std::size_t n) { bytes.append(static_cast<const char*>(p), n); }
  template <class T> T take() {
    T v;
    std::memcpy(&v, bytes.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::size_t at_ = 0;
};

inline void broadcast_checkpoint(const Communicator& comm, Checkpoint& c) {
  CheckpointHeader h;
  if (comm.rank() == 0) {
    h.put(static_cast<std::int64_t>(c.scalars.size()));
    for (const auto& [name, value] : c.scalars) {
      h.put(name);
      h.put(static_cast<std::int64_t>(value.index()));
      std::visit([&](const auto& v) { h.put(v); }, value);
    }
    h.put(static_cast<std::int64_t>(c.arrays.size()));
    for (const auto& [name, array] : c.arrays) {
      h.put(name);
      h.put(static_cast<std::int64_t>(array.values.index()));
      h.put(static_cast<std::int64_t>(array.shape.size()));
      for (long e : array.shape) h.put(std::int64_t{e});
    }
  }
  std::uint64_t size = h.bytes.size();
  comm.broadcast(std::span(&size, 1), 0);
  h.bytes.resize(size);
  comm.broadcast(std::span(h.bytes.data(), h.bytes.size()), 0);
  if (comm.rank() != 0) {
    for (auto n = h.number(); n > 0; --n) {
      Value& v = c.scalars[h.string()];
      switch (h.number()) {
      case 0: v = h.number(); break;
      case 1: v = h.real(); break;
      default: v = h.string(); break;
      }
    }
    for (auto n = h.number(); n > 0; --n) {
      CheckpointArray& a = c.arrays[h.string()];
      const bool is_double = h.number() == 1;
      a.shape.resize(static_cast<std::size_t>(h.number()));
      long volume = 1;
      for (long& e : a.shape) volume *= e = h.number();
      if (is_double)
        a.values = std::vector<double>(static_cast<std::size_t>(volume));
      else
        a.values = std::vector<float>(static_cast<std::size_t>(volume));
    }
  }
  for (auto& [name, array] : c.arrays)
    std::visit([&](auto& v) { comm.broadcast(std::span(v.data(), v.size()), 0); }, array.values);
}
} // namespace detail

/// Rank 0 writes `c`; the other ranks' may be empty. Collective. If it fails, all ranks throw the same io_error and the
/// previous file is as it was.
inline void save_checkpoint(const Communicator& comm, const std::string& path, const Checkpoint& c) {
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    for (const auto& [name, array] : c.arrays)
      TESSERA_REQUIRE(static_cast<long>(array.size()) == DatasetInfo{.extents = array.shape}.size(),
                      "checkpoint: array '", name, "' has ", array.size(), " values for the shape ",
                      DatasetInfo{.extents = array.shape}.shape());
    for (const char* own : {"format", "version"})
      TESSERA_REQUIRE(!c.scalars.contains(own), "checkpoint: the scalar name '", own, "' belongs to the file itself");
    detail::write_checkpoint(path, c);
  });
}

/// Rank 0 reads, every rank gets everything. Collective. A file that is missing, truncated or something else is refused
/// with the same io_error on all ranks.
inline Checkpoint load_checkpoint(const Communicator& comm, const std::string& path) {
  Checkpoint c;
  agree(comm, [&] {
    if (comm.rank() == 0) c = detail::read_checkpoint(path);
  });
  detail::broadcast_checkpoint(comm, c);
  return c;
}

} // namespace tessera::io
