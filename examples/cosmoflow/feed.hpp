// cosmoflow/feed.hpp: Feed, which turns sample numbers into the network's input and target, each rank its own box.
//
// The next batch is read or sent while the current one is trained on. Compiled once, in feed.cpp.
#pragma once

#include "network.hpp"
#include <array>
#include <map>
#include <tessera/io/dataset.hpp>
#include <tessera/io/store.hpp>

/// What makes each input channel zero-mean and of unit variance. A network without biases is blind to small differences
/// on top of a large constant, and log(1 + counts) is just that.
struct Standard {
  std::array<double, 4> mean{}, deviation{1, 1, 1, 1};
};

/// The files of a folder: how to read them, and which samples are for training, validation and test.
struct Universes {
  tessera::io::VolumeReader reader;
  tessera::io::VolumeSet set;
};
/// The universes in `folder` as samples of `width` cells a side; `tiles`: larger files are cut. Collective.
Universes open_universes(const tessera::Communicator& world, const std::string& folder, long width, bool tiles,
                         std::uint64_t seed);

class Feed {
public:
  using Field = CosmoFlowNet::Field;

  /// Samples of `universes`, which outlive this, for `net`; `max_bytes` bounds what a rank keeps. Collective.
  Feed(CosmoFlowNet& net, const Universes& universes, std::uint64_t max_bytes, std::uint64_t seed);

  /// The channels' means and deviations over `ids`, at least one. Collective; the same on every rank.
  Standard measure(std::span<const long> ids);
  /// From now on inputs are standardised.
  void standardise(const Standard& s) { standard_ = s; }

  /// Begins to fetch the samples of the next batch.
  void start(std::span<const long> ids);

  /// One batch: the input, the target, and the sample numbers.
  struct Batch {
    Field* x;
    Field* t;
    std::span<const long> ids;
  };
  enum class Augment { yes, no };

  /// The batch that start() began. Valid until the next call.
  Batch finish(Augment augment, std::uint64_t epoch);

  std::uint64_t bytes_read() const;
  std::uint64_t bytes_held() const;

private:
  struct Slot {
    Field x, t;
  };
  void apply_standard(const tessera::View<float, 5>& x) const;
  Slot& slot(long samples);
  const tessera::Map<5>& map_for(long samples) { return slot(samples).x.map(); }

  CosmoFlowNet* net_;
  const tessera::io::VolumeSet* set_;
  tessera::io::SampleStore store_;
  tessera::io::Augmentation augmentation_;
  Standard standard_;
  std::map<long, Slot> slots_; ///< by batch size: the full one, and the last of an epoch
  std::vector<long> ids_, next_;
};
