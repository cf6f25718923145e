// io/volume_reader.hpp: VolumeReader, which reads boxes of volumes with channels (dims c,d,h,w) from HDF5 files.
//
// A volume is stored channel-first (c,d,h,w) or channel-last (d,h,w,c); in memory it is channels-last like every
// tensor. A file may be larger than a sample and is then cut into tiles, each a sample of its own. In memory 1- and
// 2-byte integers stay as they are (held_type), everything else becomes float; the transform is part of the way to
// float.
//
// May know: base, comm, hdf5.
// Example: VolumeReader r({.channels = 4, .sample = {{64, 64, 64}}, .transform = Transform::log1p});
//          r.read("u.h5", Box<4>{{{0, 0, 0, 0}}, {{4, 32, 64, 64}}}, view);
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <tessera/base/copy.hpp>
#include <tessera/base/view.hpp>
#include <tessera/comm/agree.hpp>
#include <tessera/io/hdf5.hpp>

namespace tessera::io {

enum class ChannelOrder : unsigned char { automatic, first, last };
enum class Transform : unsigned char { none, log1p }; ///< log1p: log(1 + x)
/// `whole`: a file is one sample. `tiles`: a file is cut into as many samples as its extents hold.
enum class Cut : unsigned char { whole, tiles };

/// What the caller expects of the files.
struct VolumeFormat {
  std::string dataset = "full";
  long channels = 1;
  Extents<3> sample{}; ///< d,h,w of one sample
  ChannelOrder order = ChannelOrder::automatic;
  Transform transform = Transform::none;
  Cut cut = Cut::whole;
  std::string labels = {}; ///< a dataset of `label_count` numbers; empty: none
  long label_count = 0;
};

/// What a file has. Plain data, so that it can be sent.
struct Volume {
  Extents<3> extents{};                         ///< d,h,w of the whole file
  ElementType type = ElementType::other;        ///< of the file
  ChannelOrder order = ChannelOrder::automatic; ///< first or last
};

/// One sample: a file and the place of its first voxel (d,h,w) in it.
struct Sample {
  long file = 0;
  Index<3> origin{};
  friend bool operator==(const Sample&, const Sample&) = default;
};

/// The element type that is kept in memory for one of a file.
constexpr ElementType held_type(ElementType file) {
  switch (file) {
  case ElementType::i8:
  case ElementType::u8:
  case ElementType::i16:
  case ElementType::u16: return file;
  default: return ElementType::f32;
  }
}

/// Calls f(T{}) with the C++ type of a held element type: five of them, where files know ten.
template <class F> void with_held_type(ElementType t, const F& f) {
  switch (t) {
  case ElementType::i8: return f(std::int8_t{});
  case ElementType::u8: return f(std::uint8_t{});
  case ElementType::i16: return f(std::int16_t{});
  case ElementType::u16: return f(std::uint16_t{});
  default: return f(float{});
  }
}

/// All samples of the files, file by file, tiles in the order of their d,h,w.
inline std::vector<Sample> samples_of(const std::vector<Volume>& files, const Extents<3>& sample) {
  std::vector<Sample> all;
  for (std::size_t f = 0; f < files.size(); ++f) {
    Extents<3> tiles;
    for (int k = 0; k < 3; ++k) tiles[k] = files[f].extents[k] / sample[k];
    for_each_index(whole(tiles), [&](const Index<3>& t) {
      all.push_back({static_cast<long>(f), {{t[0] * sample[0], t[1] * sample[1], t[2] * sample[2]}}});
    });
  }
  return all;
}

class VolumeReader {
public:
  explicit VolumeReader(VolumeFormat format) : format_(std::move(format)) {
    TESSERA_REQUIRE(format_.channels >= 1 && product(format_.sample) >= 1, "VolumeReader: samples of ",
                    format_.channels, " channels x ", format_.sample, "; give at least one of each");
  }

  const VolumeFormat& format() const { return format_; }

  /// Opens the file and checks that it is as expected. Throws io_error that names file, dataset, what was found, what
  /// was expected and a remedy. Reads no voxel.
  Volume inspect(const std::string& path) const { return inspect(Hdf5Reader(path)); }

  /// inspect() of every file, the files divided among the ranks. Collective; if one file is bad all ranks throw the
  /// same.
  std::vector<Volume> check_all(const Communicator& comm, const std::vector<std::string>& files) const {
    std::vector<Volume> mine;
    const auto ranks = static_cast<std::size_t>(comm.size());
    agree(comm, [&] {
      for (auto f = static_cast<std::size_t>(comm.rank()); f < files.size(); f += ranks)
        mine.push_back(inspect(files[f]));
    });
    const auto parts = comm.all_gather<Volume>(mine);
    std::vector<Volume> all(files.size());
    for (std::size_t f = 0; f < files.size(); ++f) all[f] = parts[f % ranks][f / ranks];
    return all;
  }

  /// The numbers of the labels dataset.
  std::vector<float> labels(const std::string& path) const { return Hdf5Reader(path).read<float>(format_.labels); }

  /// labels() of every file, one after the other. Collective, as check_all().
  std::vector<float> all_labels(const Communicator& comm, const std::vector<std::string>& files) const {
    std::vector<float> mine;
    const auto ranks = static_cast<std::size_t>(comm.size()), n = static_cast<std::size_t>(format_.label_count);
    agree(comm, [&] {
      for (auto f = static_cast<std::size_t>(comm.rank()); f < files.size(); f += ranks) {
        const auto v = labels(files[f]);
        mine.insert(mine.end(), v.begin(), v.end());
      }
    });
    const auto parts = comm.all_gather<float>(mine);
    std::vector<float> all;
    for (std::size_t f = 0; f < files.size(); ++f) {
      const auto at = parts[f % ranks].begin() + static_cast<std::ptrdiff_t>(f / ranks * n);
      all.insert(all.end(), at, at + static_cast<std::ptrdiff_t>(n));
    }
    return all;
  }

  /// Reads the box (c,d,h,w, in the file's own indices) into `to`, which has the box's extents and any strides.
  /// `to` receives the transformed values. An empty box opens no file.
  void read(const std::string& path, const Box<4>& box, const View<float, 4>& to) {
    std::vector<std::byte> held;
    const ElementType type = read_held(path, box, held);
    TESSERA_REQUIRE(to.extents == box.extents(), "VolumeReader: the box is ", box.extents(), ", the view ", to.extents);
    if (!held.empty()) deliver(type, held, to);
  }

  /// Reads the box as dense channels-last elements of the returned held type. `to` is resized.
  ElementType read_held(const std::string& path, const Box<4>& box, std::vector<std::byte>& to) {
    to.clear();
    if (box.empty()) return ElementType::f32;
    const Hdf5Reader file(path);
    const Volume volume = inspect(file);
    const ElementType type = held_type(volume.type);
    to.resize(static_cast<std::size_t>(box.volume()) * size_of(type));
    const bool ranked = file.info(format_.dataset).rank() == 4; // else d,h,w without a dim for its one channel
    const int first = volume.order == ChannelOrder::first ? 0 : 3;
    std::vector<long> lo, hi;
    const auto push = [&](int k) {
      lo.push_back(box.lo[k]);
      hi.push_back(box.hi[k]);
    };
    if (ranked && first == 0) push(0);
    for (int k = 1; k < 4; ++k) push(k);
    if (ranked && first == 3) push(0);
    with_held_type(type, [&]<class T>(T) {
      const std::span<T> out(reinterpret_cast<T*>(to.data()), static_cast<std::size_t>(box.volume()));
      if (first == 3 || box.extent(0) == 1)
        file.read<T>(format_.dataset, lo, hi, out);
      else {
        std::vector<T> planes(out.size());
        file.read<T>(format_.dataset, lo, hi, planes);
        const Extents<4> e = box.extents();
        copy_block(View<const T, 4>(planes.data(), e, {{e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}}),
                   View<T, 4>(out.data(), e));
      }
      if (format_.transform == Transform::log1p) prepare_log(path, out);
    });
    bytes_read_ += static_cast<std::uint64_t>(box.volume()) * file.info(format_.dataset).file_bytes;
    return type;
  }

  /// Converts what read_held() gave (dense channels-last, of the extents of `to`) to the final floats.
  void deliver(ElementType type, std::span<const std::byte> held, const View<float, 4>& to) const {
    with_held_type(type, [&]<class T>(T) {
      const View<const T, 4> from(reinterpret_cast<const T*>(held.data()), to.extents);
      if constexpr (std::is_same_v<T, float>)
        copy_block(from, to); // already transformed
      else {
        if (format_.transform == Transform::none)
          convert(from, to, [](T v) { return static_cast<float>(v); });
        else {
          const float* table = log_table<T>().data() - std::numeric_limits<T>::min();
          convert(from, to, [table](T v) { return table[v]; });
        }
      }
    });
  }

  /// Payload bytes read from files so far by this reader: elements of the boxes times their size in the file.
  std::uint64_t bytes_read() const { return bytes_read_; }

private:
  Volume inspect(const Hdf5Reader& file) const {
    const DatasetInfo info = file.info(format_.dataset);
    const auto fail = [&](std::string_view why, std::string_view remedy) {
      throw io_error(text(detail::at(file.path(), format_.dataset), "found ", info.shape(), " of ", name_of(info.type),
                          ", expected ", format_.channels, " channels of ", format_.sample, ": ", why, "; ", remedy));
    };
    if (info.type == ElementType::other) fail("its elements are not numbers", "name a dataset of numbers");
    const bool bare = info.rank() == 3 && format_.channels == 1;
    if (info.rank() != 4 && !bare) fail(text("it has ", info.rank(), " dims"), "a volume has 4: c,d,h,w or d,h,w,c");

    const auto spatial = [&](std::size_t at) {
      return Extents<3>{{info.extents[at], info.extents[at + 1], info.extents[at + 2]}};
    };
    const auto fits = [&](const Extents<3>& e) {
      for (int k = 0; k < 3; ++k) {
        const long s = format_.sample[k];
        if (format_.cut == Cut::whole ? e[k] != s : e[k] < s || e[k] % s != 0) return false;
      }
      return true;
    };
    const bool first = !bare && format_.order != ChannelOrder::last && info.extents[0] == format_.channels,
               last = !bare && format_.order != ChannelOrder::first && info.extents[3] == format_.channels;
    const bool fits_first = bare ? fits(spatial(0)) : first && fits(spatial(1)), fits_last = last && fits(spatial(0));
    if (fits_first && fits_last)
      fail("it may be channel-first or channel-last", "say which with the option for the channel order");
    if (!fits_first && !fits_last) {
      if (!bare && !first && !last)
        fail(text("no ",
                  format_.order == ChannelOrder::first  ? "first"
                  : format_.order == ChannelOrder::last ? "last"
                                                        : "first or last",
                  " dim of ", format_.channels, " channels"),
             "check the number of channels and the channel order");
      const Extents<3> e = spatial(first ? 1 : 0);
      fail(text("the file has ", e, ", ", format_.sample, format_.cut == Cut::whole ? " was" : " or a multiple was",
                " asked for"),
           format_.cut == Cut::whole ? "ask for the width of the files, or cut larger files into tiles"
                                     : "ask for a width that divides that of the files");
    }
    if (!format_.labels.empty()) {
      const DatasetInfo l = file.info(format_.labels);
      if (l.type == ElementType::other || l.size() != format_.label_count)
        throw io_error(text(detail::at(file.path(), format_.labels), "found ", l.shape(), " of ", name_of(l.type),
                            ", expected ", format_.label_count, " numbers; name the dataset of the labels"));
    }
    return {spatial(fits_first && !bare ? 1 : 0), info.type, fits_first ? ChannelOrder::first : ChannelOrder::last};
  }

  /// Refuses values that have no logarithm, and transforms floats at once: integers wait for the table in deliver().
  template <class T> void prepare_log(const std::string& path, std::span<T> values) const {
    for (T& v : values) {
      if (!(v > T(-1)) && !std::is_unsigned_v<T>)
        throw io_error(
            text(detail::at(path, format_.dataset), "value ", v,
                 " has no log(1 + x); counts may have overflowed their type, or the transform does not fit"));
      if constexpr (std::is_same_v<T, float>) v = std::log1p(v);
    }
  }

  /// log(1 + v) for every v of T, smallest first. A function and not a lambda: compilers try to evaluate a lambda that
  /// initialises a constant, 65536 logarithms in each program that includes this.
  template <class T> static std::vector<float> logs_of() {
    std::vector<float> t;
    for (long v = std::numeric_limits<T>::min(); v <= std::numeric_limits<T>::max(); ++v)
      t.push_back(static_cast<float>(std::log1p(static_cast<double>(v))));
    return t;
  }
  template <class T> static const std::vector<float>& log_table() {
    static const std::vector<float> table = logs_of<T>();
    return table;
  }

  template <class T, class F> static void convert(const View<const T, 4>& from, const View<float, 4>& to, const F& f) {
    for_each_run(from, to, [&f](const T* a, long sa, float* b, long sb, long count) {
      if (sa == 1 && sb == 1)
        for (long i = 0; i < count; ++i) b[i] = f(a[i]);
      else
        for (long i = 0; i < count; ++i) b[i * sb] = f(a[i * sa]);
    });
  }

  VolumeFormat format_;
  std::uint64_t bytes_read_ = 0;
};

} // namespace tessera::io
