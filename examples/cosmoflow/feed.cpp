#include "feed.hpp"
#include <cmath>
#include <tessera/tensor/dist_tensor.hpp>

using namespace tessera;

namespace {
using Net = CosmoFlowNet;

unsigned spatial_axes(const Net& net) { return ((1u << net.grid().axes()) - 1) & ~1u; }
Box<4> sample_box(const Map<5>& m, int rank) {
  const Box<5> b = m.box(rank);
  Box<4> s;
  for (int k = 0; k < 4; ++k) s.lo[k] = b.lo[k + 1], s.hi[k] = b.hi[k + 1];
  return s;
}
io::StoreRanks ranks(const Net& net) {
  return {net.grid().world(), net.grid().along(0), sample_box(net.plan().input(), net.grid().rank())};
}
} // namespace

Universes open_universes(const Communicator& world, const std::string& folder, long width, bool tiles,
                         std::uint64_t seed) {
  const io::VolumeReader reader({.dataset = "full",
                                 .channels = 4,
                                 .sample = {{width, width, width}},
                                 .transform = io::Transform::log1p,
                                 .cut = tiles ? io::Cut::tiles : io::Cut::whole,
                                 .labels = "unitPar",
                                 .label_count = 4});
  return {reader, io::VolumeSet::open(world, folder, reader, {.seed = seed})};
}

Feed::Feed(Net& net, const Universes& universes, std::uint64_t max_bytes, std::uint64_t seed)
    : net_(&net), set_(&universes.set), store_(ranks(net), universes.reader, universes.set.list, max_bytes) {
  const AnyGrid& grid = net.grid();
  augmentation_.space = grid.over(spatial_axes(net));
  augmentation_.seed = seed;
  const auto mine = grid.shape().coords(grid.rank());
  for (int r = 0; r < grid.ranks(); ++r)
    if (grid.shape().coords(r)[0] == mine[0]) augmentation_.boxes.push_back(sample_box(net.plan().input(), r));
}

Standard Feed::measure(std::span<const long> ids) {
  std::array<double, 8> sums{}; // of values and of squares
  long cells = 0;
  const long batch = net_->options().batch;
  for (std::size_t from = 0; from < ids.size(); from += std::size_t(batch)) {
    start(ids.subspan(from, std::min(std::size_t(batch), ids.size() - from)));
    const auto v = std::as_const(*finish(Augment::no, 0).x).view();
    for_each_index(whole(v.extents), [&](const Index<5>& i) {
      const double x = double(v[i]);
      sums[std::size_t(i[1])] += x;
      sums[std::size_t(4 + i[1])] += x * x;
    });
    cells += product(v.extents) / 4;
  }
  const Communicator& world = net_->grid().world();
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

void Feed::start(std::span<const long> ids) {
  next_.assign(ids.begin(), ids.end());
  if (next_.empty()) return;
  const Partition& n = map_for(long(next_.size())).partition(0);
  std::vector<long> first;
  for (int g = 0; g < n.parts(); ++g) first.push_back(n[g].lo);
  first.push_back(n.extent());
  store_.start(next_, first);
}

Feed::Batch Feed::finish(Augment augment, std::uint64_t epoch) {
  ids_ = next_;
  Slot& s = slot(long(ids_.size()));
  augmentation_.epoch = epoch;
  store_.finish(s.x.view(), augment == Augment::yes ? &augmentation_ : nullptr);
  apply_standard(s.x.view());
  fill(s.t, [&](const Index<5>& i) { return set_->labels_of(ids_[std::size_t(i[0])])[std::size_t(i[1])]; });
  return {&s.x, &s.t, ids_};
}

std::uint64_t Feed::bytes_read() const { return store_.bytes_read(); }
std::uint64_t Feed::bytes_held() const { return store_.bytes_held(); }

void Feed::apply_standard(const View<float, 5>& x) const {
  for (long c = 0; c < x.extents[1]; ++c) {
    const float mean = float(standard_.mean[std::size_t(c)]), factor = float(1 / standard_.deviation[std::size_t(c)]);
    Box<5> channel = whole(x.extents);
    channel.lo[1] = c, channel.hi[1] = c + 1;
    const View<float, 5> v = x.box(channel);
    for_each_run(v, v, [=](const float*, long, float* at, long step, long count) {
      for (long i = 0; i < count; ++i) at[i * step] = (at[i * step] - mean) * factor;
    });
  }
}

Feed::Slot& Feed::slot(long samples) {
  const auto at = slots_.find(samples);
  if (at != slots_.end()) return at->second;
  return slots_.emplace(samples, Slot{net_->make_input(samples), net_->make_target(samples)}).first->second;
}
