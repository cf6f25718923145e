// comm/host_staged.hpp: HostStaged<Space>, a DeviceLink through pinned host memory, over any group of ranks.
//
// What leaves is copied to pinned memory in the calling thread's stream, sent from there once the copy is done, and
// what arrives is copied into place. Works between any two devices, also between ranks that share one, on any
// transport. Reductions have a group of their own, so they cannot be mistaken for others that the program makes
// meanwhile.
//
// Copies finish at other times on other ranks, messages must not: operations are handed to the transport in the order
// in which they were started, each no earlier than its copy is done and no later than somebody waits for it.
//
// May know: base, space, comm/communicator.hpp.
// Example: endpoint.device_link = std::make_shared<HostStaged<cuda_device>>(endpoint);
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <tessera/comm/communicator.hpp>
#include <tessera/space/memory.hpp>

namespace tessera::comm {

template <class Space> class HostStaged final : public DeviceLink {
  using Pinned = typename Space::pinned;
  using Block = Buffer<std::byte, Pinned>;
  using Pendings = std::vector<std::unique_ptr<Pending>>;

public:
  /// Collective over the group. `group` owns this object or outlives it.
  explicit HostStaged(Endpoint& group) : line_(std::make_shared<Line>(group, group.split(0))) {}
  std::string_view name() const override { return "host-staged"; }

  std::unique_ptr<Pending> exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                                    int tag) override {
    auto o = std::make_shared<Operation>();
    for (const DeviceMessage& m : sends) o->take_out(m.data, m.bytes, *line_);
    o->out_count = o->blocks.size();
    for (const DeviceMessage& m : receives) o->blocks.push_back(line_->block(m.bytes));
    o->arrivals.assign(receives.begin(), receives.end());
    o->copied.record(Space::stream());
    std::vector<DeviceMessage> peers(sends.begin(), sends.end());
    o->hand_over = [peers = std::move(peers), tag](Operation& op, Line& line) {
      for (std::size_t i = 0; i < op.arrivals.size(); ++i)
        op.pending.push_back(
            line.group.irecv(op.arrivals[i].peer, tag, {op.blocks[op.out_count + i].data(), op.arrivals[i].bytes}));
      for (std::size_t i = 0; i < peers.size(); ++i)
        op.pending.push_back(
            line.group.isend(peers[i].peer, tag, std::span<const std::byte>(op.blocks[i].data(), peers[i].bytes)));
    };
    return enqueue(std::move(o));
  }
  std::unique_ptr<Pending> all_reduce(void* data, std::size_t count, Element element, Reduce how) override {
    auto o = std::make_shared<Operation>();
    const std::size_t bytes = count * detail::size_of(element);
    o->take_out(data, bytes, *line_);
    o->arrivals.push_back({0, data, bytes});
    o->copied.record(Space::stream());
    o->hand_over = [count, element, how](Operation& op, Line& line) {
      op.pending.push_back(line.reductions->iall_reduce(op.blocks[0].data(), count, element, how));
    };
    return enqueue(std::move(o));
  }
  std::shared_ptr<DeviceLink> over(Endpoint& part) override { return std::make_shared<HostStaged>(part); }

private:
  struct Line;
  /// One exchange or reduction on its way: copied out, handed over, arrived, copied in.
  struct Operation {
    typename Space::Event copied; ///< out, and later in
    std::vector<Block> blocks;    ///< what leaves, then what arrives (a reduction: one block for both)
    std::size_t out_count = 0;
    std::vector<DeviceMessage> arrivals;
    std::function<void(Operation&, Line&)> hand_over;
    Pendings pending;
    enum class State { copying_out, moving, copying_in, done } state = State::copying_out;

    void take_out(const void* from, std::size_t bytes, Line& line) {
      blocks.push_back(line.block(bytes));
      Space::copy_to_host(blocks.back().data(), from, bytes, Space::stream());
    }
    void take_in(const typename Space::Stream& stream) {
      for (std::size_t i = 0; i < arrivals.size(); ++i)
        Space::copy_from_host(arrivals[i].data, blocks[out_count + i].data(), arrivals[i].bytes, stream);
      copied.record(stream);
      state = State::copying_in;
    }
  };

  /// The operations of a group in order, and pinned memory for them, used again and again.
  struct Line {
    Line(Endpoint& g, std::shared_ptr<Endpoint> r) : group(g), reductions(std::move(r)) {}
    Endpoint& group;
    std::shared_ptr<Endpoint> reductions;
    std::deque<std::shared_ptr<Operation>> waiting; ///< not handed over yet
    std::vector<Block> free;

    Block block(std::size_t bytes) {
      const auto fits = [bytes](const Block& b) { return b.size() >= bytes && b.size() <= 2 * bytes; };
      const auto at = std::find_if(free.begin(), free.end(), fits);
      if (at == free.end()) return Block(bytes);
      Block b = std::move(*at);
      free.erase(at);
      return b;
    }
    void begin_first() {
      const std::shared_ptr<Operation> first = waiting.front();
      waiting.pop_front();
      first->state = Operation::State::moving;
      first->hand_over(*first, *this);
    }
    /// Hands over what is copied, in order.
    void advance() {
      while (!waiting.empty() && waiting.front()->copied.ready()) begin_first();
    }
    /// Hands over everything up to `o`, waiting for the copies.
    void advance_to(const Operation& o) {
      while (o.state == Operation::State::copying_out) {
        waiting.front()->copied.synchronize();
        begin_first();
      }
    }
  };

  class Handle final : public Pending {
  public:
    Handle(std::shared_ptr<Operation> o, std::shared_ptr<Line> line, typename Space::Stream stream)
        : o_(std::move(o)), line_(std::move(line)), stream_(std::move(stream)) {}
    Handle(const Handle&) = delete;
    bool test() override {
      using State = typename Operation::State;
      line_->advance();
      if (o_->state == State::moving) {
        for (auto& p : o_->pending)
          if (!p->test()) return false;
        o_->take_in(stream_);
      }
      if (o_->state == State::copying_in && o_->copied.ready()) end();
      return o_->state == State::done;
    }
    void wait() override {
      using State = typename Operation::State;
      line_->advance_to(*o_);
      if (o_->state == State::moving) {
        for (auto& p : o_->pending)
          if (!p->test()) p->wait();
        o_->take_in(stream_);
      }
      if (o_->state == State::copying_in) {
        o_->copied.synchronize();
        end();
      }
    }

  private:
    void end() {
      o_->state = Operation::State::done;
      o_->pending.clear();
      for (Block& b : o_->blocks) line_->free.push_back(std::move(b));
    }
    std::shared_ptr<Operation> o_;
    std::shared_ptr<Line> line_;
    typename Space::Stream stream_; ///< where the operation was started, and what arrives is copied in
  };

  std::unique_ptr<Pending> enqueue(std::shared_ptr<Operation> o) {
    line_->waiting.push_back(o);
    line_->advance();
    return std::make_unique<Handle>(std::move(o), line_, Space::stream());
  }

  std::shared_ptr<Line> line_;
};

} // namespace tessera::comm
