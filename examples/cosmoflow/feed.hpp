// cosmoflow/feed.hpp: Feed, which turns sample numbers into the network's input and target, each rank its own box.
//
// The next batch is read or sent while the current one is trained on.
#pragma once

#include <tessera/io/dataset.hpp>
#include <tessera/io/store.hpp>
#include <tessera/net/network.hpp>

template <class Net> class Feed {
public:
  using Field = typename Net::Field;

  /// The set's samples for `net`; `max_bytes` bounds what a rank keeps. Collective.
  Feed(Net& net, const tessera::io::VolumeSet& set, const tessera::io::VolumeReader& reader, std::uint64_t max_bytes,
       std::uint64_t seed)
      : net_(&net), set_(&set), store_(ranks(net), reader, set.list, max_bytes) {
    using namespace tessera;
    const AnyGrid& grid = net.grid();
    augmentation_.space = grid.over(spatial_axes(net));
    augmentation_.seed = seed;
    const auto mine = grid.shape().coords(grid.rank());
    for (int r = 0; r < grid.ranks(); ++r)
      if (grid.shape().coords(r)[0] == mine[0]) augmentation_.boxes.push_back(sample_box(net.plan().input(), r));
  }

  /// Begins to fetch the samples of the next batch.
  void start(std::span<const long> ids) {
    next_.assign(ids.begin(), ids.end());
    if (next_.empty()) return;
    const tessera::Partition& n = map_for(long(next_.size())).partition(0);
    std::vector<long> first;
    for (int g = 0; g < n.parts(); ++g) first.push_back(n[g].lo);
    first.push_back(n.extent());
    store_.start(next_, first);
  }

  /// One batch: the input, the target, and the sample numbers.
  struct Batch {
    Field* x;
    Field* t;
    std::span<const long> ids;
  };
  enum class Augment { yes, no };

  /// The batch that start() began. Valid until the next call.
  Batch finish(Augment augment, std::uint64_t epoch) {
    ids_ = next_;
    Slot& s = slot(long(ids_.size()));
    augmentation_.epoch = epoch;
    store_.finish(s.x.view(), augment == Augment::yes ? &augmentation_ : nullptr);
    tessera::fill(
        s.t, [&](const tessera::Index<5>& i) { return set_->labels_of(ids_[std::size_t(i[0])])[std::size_t(i[1])]; });
    return {&s.x, &s.t, ids_};
  }

  std::uint64_t bytes_read() const { return store_.bytes_read(); }
  std::uint64_t bytes_held() const { return store_.bytes_held(); }

private:
  struct Slot {
    Field x, t;
  };
  static unsigned spatial_axes(const Net& net) { return ((1u << net.grid().axes()) - 1) & ~1u; }
  static tessera::Box<4> sample_box(const tessera::Map<5>& m, int rank) {
    const tessera::Box<5> b = m.box(rank);
    tessera::Box<4> s;
    for (int k = 0; k < 4; ++k) s.lo[k] = b.lo[k + 1], s.hi[k] = b.hi[k + 1];
    return s;
  }
  static tessera::io::StoreRanks ranks(const Net& net) {
    return {net.grid().world(), net.grid().along(0), sample_box(net.plan().input(), net.grid().rank())};
  }
  Slot& slot(long samples) {
    const auto at = slots_.find(samples);
    if (at != slots_.end()) return at->second;
    return slots_.emplace(samples, Slot{net_->make_input(samples), net_->make_target(samples)}).first->second;
  }
  const tessera::Map<5>& map_for(long samples) { return slot(samples).x.map(); }

  Net* net_;
  const tessera::io::VolumeSet* set_;
  tessera::io::SampleStore store_;
  tessera::io::Augmentation augmentation_;
  std::map<long, Slot> slots_; ///< by batch size: the full one, and the last of an epoch
  std::vector<long> ids_, next_;
};
