// cosmoflow/feed.hpp: Feed, which turns sample numbers into the network's input and target, each rank its own box.
//
// The next batch is read or sent while the current one is trained on.
#pragma once

#include <array>
#include <cmath>
#include <map>
#include <tessera/io/dataset.hpp>
#include <tessera/io/store.hpp>
#include <tessera/net/network.hpp>

/// What makes each input channel zero-mean and of unit variance. A network without biases is blind to small differences
/// on top of a large constant, and log(1 + counts) is just that.
struct Standard {
  std::array<double, 4> mean{}, deviation{1, 1, 1, 1};
};

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

  /// The channels' means and deviations over `ids`, at least one. Collective; the same on every rank.
  Standard measure(std::span<const long> ids) {
    std::array<double, 8> sums{}; // of values and of squares
    long cells = 0;
    const long batch = net_->options().batch;
    for (std::size_t from = 0; from < ids.size(); from += std::size_t(batch)) {
      start(ids.subspan(from, std::min(std::size_t(batch), ids.size() - from)));
      const auto v = std::as_const(*finish(Augment::no, 0).x).view();
      tessera::for_each_index(tessera::whole(v.extents), [&](const tessera::Index<5>& i) {
        const double x = double(v[i]);
        sums[std::size_t(i[1])] += x;
        sums[std::size_t(4 + i[1])] += x * x;
      });
      cells += tessera::product(v.extents) / 4;
    }
    const tessera::Communicator& world = net_->grid().world();
    world.iall_reduce(std::span<double>(sums)).wait();
    const double count = double(world.all_reduce(std::int64_t(cells)));
    Standard s;
    for (std::size_t c = 0; c < 4; ++c) {
      s.mean[c] = sums[c] / count;
      const double variance = sums[4 + c] / count - s.mean[c] * s.mean[c];
      s.deviation[c] = variance > 0 ? std::sqrt(variance) : 1;
    }
    return s;
  }
  /// From now on inputs are standardised.
  void standardise(const Standard& s) { standard_ = s; }

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
    apply_standard(s.x.view());
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
  void apply_standard(const tessera::View<float, 5>& x) const {
    for (long c = 0; c < x.extents[1]; ++c) {
      const float mean = float(standard_.mean[std::size_t(c)]), factor = float(1 / standard_.deviation[std::size_t(c)]);
      tessera::Box<5> channel = tessera::whole(x.extents);
      channel.lo[1] = c, channel.hi[1] = c + 1;
      const tessera::View<float, 5> v = x.box(channel);
      tessera::for_each_run(v, v, [=](const float*, long, float* at, long step, long count) {
        for (long i = 0; i < count; ++i) at[i * step] = (at[i * step] - mean) * factor;
      });
    }
  }
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
  Standard standard_;
  std::map<long, Slot> slots_; ///< by batch size: the full one, and the last of an epoch
  std::vector<long> ids_, next_;
};
