// io/store.hpp: SampleStore, which reads every sample once and afterwards moves it between ranks in memory.
//
// The ranks form sample groups; each rank holds one box of every sample that its group owns. The group that needs a
// sample first reads and keeps it; later its ranks send it to the group that needs it, each its own box, along
// `samples`, the communicator of the ranks with the same box in all groups. Which group owns what follows from the
// calls alone, which are the same on all ranks, so nobody has to ask.
//
// May know: base, comm, volume_reader, augment.
// Example: store.start(ids, {0, 2, 4});  ...  store.finish(x);    // group 0 gets ids[0..1], group 1 ids[2..3]
#pragma once

#include <algorithm>
#include <limits>
#include <tessera/io/augment.hpp>
#include <tessera/io/volume_reader.hpp>

namespace tessera::io {

/// The samples that a store serves, by their number in `samples`.
struct SampleList {
  std::vector<std::string> files;
  std::vector<Volume> volumes; ///< of the files, from VolumeReader::check_all
  std::vector<Sample> samples;
};

/// The ranks that a store works with.
struct StoreRanks {
  Communicator all;     ///< everybody who calls the store
  Communicator samples; ///< the ranks with the same box in all sample groups; the rank in it is the group's number
  Box<4> box{};         ///< c,d,h,w of a sample that this rank holds
};

/// Draws one symmetry for each sample and epoch and applies it across the ranks that share a sample.
struct Augmentation {
  Communicator space;          ///< the ranks of one sample group
  std::vector<Box<4>> boxes{}; ///< the box of each of them
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
};

class SampleStore {
public:
  static constexpr std::uint64_t unbounded = std::numeric_limits<std::uint64_t>::max();

  /// `max_bytes`: what one rank may hold; samples beyond it are read again whenever they are needed. Collective.
  SampleStore(StoreRanks ranks, VolumeReader reader, SampleList list, std::uint64_t max_bytes = unbounded)
      : ranks_(std::move(ranks)), reader_(std::move(reader)), list_(std::move(list)), max_bytes_(max_bytes),
        owner_(list_.samples.size(), nobody), reserved_(static_cast<std::size_t>(ranks_.samples.size())),
        held_(list_.samples.size()) {
    const VolumeFormat& f = reader_.format();
    const Box<4> all = detail::with_channels(whole(f.sample), 0, f.channels);
    TESSERA_REQUIRE(all.contains(ranks_.box), "SampleStore: the box ", ranks_.box, " lies outside the sample ", all);
    TESSERA_REQUIRE(list_.volumes.size() == list_.files.size(), "SampleStore: ", list_.volumes.size(), " volumes for ",
                    list_.files.size(), " files");
    largest_box_ = ranks_.all.all_reduce(ranks_.box.volume(), comm::Reduce::max);
  }

  /// Begins to fetch a batch: position p gets sample ids[p] and belongs to group g if first[g] <= p < first[g+1].
  /// Positions beyond ids.size() stay empty, so a last batch may be short. Reads what nobody holds, posts the messages
  /// for the rest. The arguments are the same on all ranks. Collective; errors of files show in finish().
  void start(std::span<const long> ids, std::span<const long> first) {
    const auto groups = static_cast<std::size_t>(ranks_.samples.size());
    TESSERA_REQUIRE(!running_, "SampleStore: start() while a batch is under way; call finish() first");
    TESSERA_REQUIRE(first.size() == groups + 1, "SampleStore: ", first.size(), " boundaries for ", groups,
                    " sample groups; one more than groups is needed");
    TESSERA_REQUIRE(first.front() == 0 && std::is_sorted(first.begin(), first.end()) &&
                        static_cast<std::size_t>(first.back()) >= ids.size(),
                    "SampleStore: the boundaries must ascend from 0 to the batch size, which is at least ", ids.size());
    for (long id : ids)
      TESSERA_REQUIRE(id >= 0 && id < static_cast<long>(list_.samples.size()), "SampleStore: sample ", id, " of ",
                      list_.samples.size());
    const int me = ranks_.samples.rank();
    mine_.clear();
    incoming_.resize(
        static_cast<std::size_t>(first[static_cast<std::size_t>(me) + 1] - first[static_cast<std::size_t>(me)]));
    std::vector<std::pair<long, std::vector<std::byte>*>> reads;
    std::vector<std::pair<int, long>> sends;
    for (std::size_t p = 0; p < ids.size(); ++p) {
      const long id = ids[p];
      const int to =
          static_cast<int>(std::upper_bound(first.begin(), first.end(), static_cast<long>(p)) - first.begin()) - 1;
      int& owner = owner_[static_cast<std::size_t>(id)];
      std::vector<std::byte>& held = held_[static_cast<std::size_t>(id)];
      if (owner == nobody) {
        const std::uint64_t bytes = static_cast<std::uint64_t>(largest_box_) * size_of(type_of(id));
        std::uint64_t& reserved = reserved_[static_cast<std::size_t>(to)];
        const bool keep = bytes <= max_bytes_ - reserved;
        if (keep) {
          owner = to;
          reserved += bytes;
        }
        fresh_.push_back(id);
        if (to == me) {
          std::vector<std::byte>& target = keep ? held : incoming_[mine_.size()];
          reads.emplace_back(id, &target);
          mine_.emplace_back(id, &target);
        }
      } else if (owner == to) {
        if (to == me) mine_.emplace_back(id, &held);
      } else if (to == me) {
        std::vector<std::byte>& target = incoming_[mine_.size()];
        target.resize(bytes_of(id));
        if (!target.empty()) requests_.push_back(ranks_.samples.irecv(owner, tag, std::span(target)));
        mine_.emplace_back(id, &target);
      } else if (owner == me)
        sends.emplace_back(to, id);
    }
    for (const auto& [id, target] : reads) read(id, *target);
    for (const auto& [to, id] : sends)
      if (const auto& held = held_[static_cast<std::size_t>(id)]; !held.empty())
        requests_.push_back(ranks_.samples.isend(to, tag, std::span<const std::byte>(held)));
    running_ = true;
  }

  /// Waits for the batch and writes it, transformed to float, into `x` (n,c,d,h,w): n counts this group's positions,
  /// the rest is this rank's box. Empty positions become 0. Collective; throws the same io_error on all ranks if a read
  /// failed, after which the batch may be started again.
  void finish(const View<float, 5>& x, const Augmentation* augmentation = nullptr) {
    TESSERA_REQUIRE(running_, "SampleStore: finish() without start()");
    running_ = false;
    for (auto& r : requests_) r.wait();
    requests_.clear();
    const std::vector<long> fresh = std::exchange(fresh_, {});
    if (!fresh.empty()) try { // known to all ranks, so batches from memory need no agreement
        agree(ranks_.all, std::exchange(error_, {}));
      } catch (const io_error&) {
        for (long id : fresh) forget(id);
        throw;
      }
    const Extents<4> e = ranks_.box.extents();
    TESSERA_REQUIRE(x.extents == (Extents<5>{{static_cast<long>(incoming_.size()), e[0], e[1], e[2], e[3]}}),
                    "SampleStore: the batch has ", incoming_.size(), " x ", e, " here, the view ", x.extents);
    for (std::size_t s = 0; s < incoming_.size(); ++s) {
      const View<float, 4> to(x.data + static_cast<long>(s) * x.strides[0], e,
                              {{x.strides[1], x.strides[2], x.strides[3], x.strides[4]}});
      if (s >= mine_.size())
        fill_block(to, 0.0f);
      else
        deliver(mine_[s].first, *mine_[s].second, to, augmentation);
    }
  }

  /// Bytes of samples that this rank holds, without the buffers of a batch under way.
  std::uint64_t bytes_held() const {
    std::uint64_t n = 0;
    for (std::size_t id = 0; id < held_.size(); ++id)
      if (owner_[id] == ranks_.samples.rank()) n += held_[id].size();
    return n;
  }
  /// Bytes of voxels that this rank has read from files.
  std::uint64_t bytes_read() const { return reader_.bytes_read(); }
  const SampleList& list() const { return list_; }
  const VolumeReader& reader() const { return reader_; }

private:
  static constexpr int nobody = -1;
  static constexpr int tag = 7200;

  const Sample& sample(long id) const { return list_.samples[static_cast<std::size_t>(id)]; }
  ElementType type_of(long id) const {
    return held_type(list_.volumes[static_cast<std::size_t>(sample(id).file)].type);
  }
  std::size_t bytes_of(long id) const { return static_cast<std::size_t>(ranks_.box.volume()) * size_of(type_of(id)); }

  /// A failure is kept for finish(); the buffer has its size all the same, so that messages match.
  void read(long id, std::vector<std::byte>& to) {
    const Sample& s = sample(id);
    const std::string& file = list_.files[static_cast<std::size_t>(s.file)];
    try {
      const Index<4> by{{0, s.origin[0], s.origin[1], s.origin[2]}};
      const ElementType type = reader_.read_held(file, shifted(ranks_.box, by), to);
      if (!to.empty() && type != type_of(id))
        throw io_error(text("file '", file, "': its elements were ", name_of(type_of(id)),
                            " when it was checked and are now ", name_of(type), "; do not change files during a run"));
    } catch (const std::exception& e) {
      if (error_.empty()) error_ = *e.what() ? e.what() : "an exception without a text";
      to.assign(bytes_of(id), std::byte{});
    }
  }

  void forget(long id) {
    int& owner = owner_[static_cast<std::size_t>(id)];
    if (owner == nobody) return;
    reserved_[static_cast<std::size_t>(owner)] -= static_cast<std::uint64_t>(largest_box_) * size_of(type_of(id));
    owner = nobody;
    held_[static_cast<std::size_t>(id)] = {};
  }

  void deliver(long id, const std::vector<std::byte>& held, const View<float, 4>& to, const Augmentation* a) {
    const ElementType type = type_of(id);
    const std::vector<std::byte>* from = &held;
    if (a) {
      const Extents<3>& sample = reader_.format().sample;
      const Symmetry s = Symmetry::draw(a->seed, a->epoch, static_cast<std::uint64_t>(id), sample);
      if (s != Symmetry{}) {
        rotated_.resize(held.size());
        with_held_type(type, [&]<class T>(T) {
          augment<T>(a->space, a->boxes, s, sample,
                     View<const T, 4>(reinterpret_cast<const T*>(held.data()), to.extents),
                     View<T, 4>(reinterpret_cast<T*>(rotated_.data()), to.extents));
        });
        from = &rotated_;
      }
    }
    if (!to.empty()) reader_.deliver(type, *from, to);
  }

  StoreRanks ranks_;
  VolumeReader reader_;
  SampleList list_;
  std::uint64_t max_bytes_;
  long largest_box_ = 0;
  // The same on all ranks:
  std::vector<int> owner_;              // the group of each sample
  std::vector<long> fresh_;             // samples that this batch reads
  std::vector<std::uint64_t> reserved_; // bytes promised by each group, by the largest box
  // Of this rank:
  std::vector<std::vector<std::byte>> held_;                   // by sample
  std::vector<std::vector<std::byte>> incoming_;               // by position, for samples that are not held here
  std::vector<std::pair<long, std::vector<std::byte>*>> mine_; // sample and data of each position of this group
  std::vector<std::byte> rotated_;
  std::vector<Request> requests_;
  std::string error_;
  bool running_ = false;
};

} // namespace tessera::io
