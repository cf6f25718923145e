// comm/mpi_all_reduce.hpp: the all-reduce of large arrays as two rounds of messages: scatter and reduce, then gather.
//
// Rank r receives everybody's r-th part, reduces them in rank order, and sends the result to everybody: each byte moves
// twice, which is the least there is, every rank obtains bitwise the same, and the parts travel while kernels run.
// MPI's own non-blocking all-reduce is several times slower in implementations that follow a general schedule (Open
// MPI 4.1: 55 ms for 38 MB between two ranks, this: 10 ms), and is used for small arrays and many ranks, where latency
// counts.
//
// May know: base.
// Example: MpiAllReduce p(op, group, bytes, Element::f32, Reduce::sum, pool, tag);  p.wait();
#pragma once

#include <tessera/comm/combine.hpp>
#include <tessera/comm/mpi_calls.hpp>

namespace tessera::comm::detail {

/// Where the two rounds are taken: from this many bytes on, and up to this many ranks. A variable for tests.
struct DirectReduction {
  std::size_t bytes = std::size_t{64} << 10;
  int ranks = 64;
};
inline DirectReduction direct_reduction;

/// Scratch memory that operations borrow; it grows to what is under way at a time and stays.
class ScratchPool {
public:
  std::shared_ptr<std::vector<std::byte>> take(std::size_t bytes) {
    for (const auto& block : blocks_)
      if (block.use_count() == 1 && block->size() >= bytes) return block;
    for (auto& block : blocks_)
      if (block.use_count() == 1) return block = std::make_shared<std::vector<std::byte>>(bytes);
    return blocks_.emplace_back(std::make_shared<std::vector<std::byte>>(bytes));
  }

private:
  std::vector<std::shared_ptr<std::vector<std::byte>>> blocks_;
};

class MpiAllReduce final : public Pending {
public:
  static constexpr int tags = 2; ///< that one reduction needs, from `tag` on

  /// Starts the first round. `group` has at least two ranks.
  MpiAllReduce(const Operation& op, const boost::mpi::communicator& group, std::span<std::byte> data, Element element,
               Reduce how, const std::shared_ptr<ScratchPool>& pool, int tag)
      : op_(op), data_(data), element_(element), how_(how), tag_(tag), group_(group),
        scatter_(MpiPending::Kind::collective, op, group), gather_(MpiPending::Kind::collective, op, group) {
    const std::size_t part = part_of(op_.rank).size();
    scratch_ = pool->take(part * static_cast<std::size_t>(op_.size - 1));
    scatter_.own(scratch_);
    std::byte* to = scratch_->data();
    for_each_peer([&](int peer) {
      parts_.emplace_back(to, part);
      receive(scatter_, peer, {to, part}, tag_);
      to += part;
    });
    for_each_peer([&](int peer) { send(scatter_, peer, part_of(peer), tag_); });
  }

  bool test() override {
    if (!reduced_ && !scatter_.test()) return false;
    reduce();
    return gather_.test();
  }
  void wait() override {
    if (!reduced_) scatter_.wait();
    // While an exception unwinds, a wait gives up. Then nothing more may start: the array is about to go.
    if (!reduced_ && !scatter_.test()) return;
    reduce();
    gather_.wait();
  }

private:
  /// The part of the array that rank r reduces.
  std::span<std::byte> part_of(int r) const {
    const std::size_t width = size_of(element_), count = data_.size() / width;
    const auto begin = [&](int k) {
      return count * static_cast<std::size_t>(k) / static_cast<std::size_t>(op_.size) * width;
    };
    return data_.subspan(begin(r), begin(r + 1) - begin(r));
  }
  /// Every rank begins with the rank after it, so that they do not all crowd at one.
  template <class F> void for_each_peer(const F& f) const {
    for (int i = 1; i < op_.size; ++i) f((op_.rank + i) % op_.size);
  }
  void send(MpiPending& round, int peer, std::span<const std::byte> part, int tag) const {
    const MpiMessage m(part.size());
    check_mpi(MPI_Isend(part.data(), m.count(), m.type(), peer, tag, group_, round.add()), "MPI_Isend", op_);
  }
  void receive(MpiPending& round, int peer, std::span<std::byte> part, int tag) const {
    const MpiMessage m(part.size());
    check_mpi(MPI_Irecv(part.data(), m.count(), m.type(), peer, tag, group_, round.add()), "MPI_Irecv", op_);
  }
  /// Once all parts are here and all of ours have left: reduces, and starts the second round.
  void reduce() {
    if (reduced_) return;
    reduced_ = true;
    const std::span<std::byte> mine = part_of(op_.rank);
    std::vector<std::span<const std::byte>> in_order(static_cast<std::size_t>(op_.size));
    in_order[static_cast<std::size_t>(op_.rank)] = mine;
    std::size_t i = 0;
    for_each_peer([&](int peer) { in_order[static_cast<std::size_t>(peer)] = parts_[i++]; });
    reduce_in_order(in_order, mine, element_, how_);
    for_each_peer([&](int peer) { receive(gather_, peer, part_of(peer), tag_ + 1); });
    for_each_peer([&](int peer) { send(gather_, peer, mine, tag_ + 1); });
  }

  Operation op_;
  std::span<std::byte> data_;
  Element element_;
  Reduce how_;
  int tag_;
  boost::mpi::communicator group_;
  std::shared_ptr<std::vector<std::byte>> scratch_;
  std::vector<std::span<const std::byte>> parts_; // as they arrive, in the order of for_each_peer
  MpiPending scatter_, gather_;
  bool reduced_ = false;
};

} // namespace tessera::comm::detail
