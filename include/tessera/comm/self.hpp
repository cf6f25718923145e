// comm/self.hpp: the group of one rank, with no transport: what a default-constructed Communicator is.
//
// Sends to rank 0 (itself) are matched with receives by tag, in order. A send is copied, so it is complete at once; if
// the receive is there first, the bytes go straight to it.
//
// May know: base.
// Example: Communicator alone;  auto r = alone.irecv(0, 1, in);  alone.isend(0, 1, out).wait();  r.wait();
#pragma once

#include <algorithm>
#include <compare>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <tessera/comm/communicator.hpp>
#include <tessera/comm/watchdog.hpp>

namespace tessera::comm {

namespace detail {

/// Where one awaited message goes. Whoever brings the message sets `done`.
struct Landing {
  std::span<std::byte> into;
  std::size_t got = 0;
  bool done = false;

  void receive(std::span<const std::byte> message) {
    got = message.size();
    if (got == into.size() && got) std::memcpy(into.data(), message.data(), got);
    done = true;
  }
};

/// Matches messages with receives. Has no lock of its own.
class Mailbox {
public:
  /// Messages of one key keep their order.
  struct Key {
    std::uint64_t group;
    int from, tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  void deliver(const Key& key, std::span<const std::byte> message) {
    Lane& lane = lanes_[key];
    if (lane.awaited.empty()) {
      lane.arrived.emplace_back(message.begin(), message.end());
      return;
    }
    lane.awaited.front()->receive(message);
    lane.awaited.pop_front();
    drop_if_empty(key);
  }
  /// `landing` stays where it is until it is done or cancelled.
  void expect(const Key& key, Landing& landing) {
    Lane& lane = lanes_[key];
    if (lane.arrived.empty()) {
      lane.awaited.push_back(&landing);
      return;
    }
    landing.receive(lane.arrived.front());
    lane.arrived.pop_front();
    drop_if_empty(key);
  }
  void cancel(const Key& key, Landing& landing) {
    if (landing.done) return;
    std::erase(lanes_[key].awaited, &landing);
    drop_if_empty(key);
  }

private:
  struct Lane {
    std::deque<std::vector<std::byte>> arrived;
    std::deque<Landing*> awaited;
  };
  void drop_if_empty(const Key& key) {
    const auto it = lanes_.find(key);
    if (it->second.arrived.empty() && it->second.awaited.empty()) lanes_.erase(it);
  }
  std::map<Key, Lane> lanes_;
};

/// Bytes of one element.
constexpr std::size_t size_of(Element e) {
  switch (e) {
  case Element::f32:
  case Element::i32: return 4;
  case Element::f64:
  case Element::i64: return 8;
  case Element::u8: return 1;
  }
  return 0;
}

/// An operation that was complete when it was started.
struct Complete final : Pending {
  bool test() override { return true; }
  void wait() override {}
};

/// Prints `why` and ends this process, with all ranks that are threads of it.
[[noreturn]] inline void abort_process(std::string_view why) {
  std::fprintf(stderr, "tessera: %.*s\n", static_cast<int>(why.size()), why.data());
  std::fflush(nullptr);
  std::_Exit(EXIT_FAILURE);
}

} // namespace detail

/// The endpoint of a single rank.
class SelfEndpoint final : public Endpoint {
public:
  explicit SelfEndpoint(std::shared_ptr<Counters> counters = std::make_shared<Counters>())
      : counters_(std::move(counters)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return "self"; }

  std::unique_ptr<Pending> isend(int to, int tag, std::span<const std::byte> data) override {
    check({.what = "isend", .transport = name(), .peer = to, .tag = tag, .bytes = data.size()});
    box_->deliver({0, 0, tag}, data);
    ++counters_->messages;
    counters_->bytes += data.size();
    return std::make_unique<detail::Complete>();
  }
  std::unique_ptr<Pending> irecv(int from, int tag, std::span<std::byte> data) override {
    const detail::Operation op{.what = "irecv", .transport = name(), .peer = from, .tag = tag, .bytes = data.size()};
    check(op);
    return std::make_unique<Receive>(box_, op, data);
  }
  std::unique_ptr<Pending> iall_reduce(void*, std::size_t count, Element element, Reduce) override {
    count_collective(count * detail::size_of(element));
    return std::make_unique<detail::Complete>();
  }
  void broadcast(std::span<std::byte> data, int root) override {
    detail::check_peer({.what = "broadcast", .transport = name(), .peer = root, .bytes = data.size()});
    count_collective(data.size());
  }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    count_collective(mine.size());
    return {{mine.begin(), mine.end()}};
  }
  void barrier() override { count_collective(0); }
  std::shared_ptr<Endpoint> split(int color) override {
    detail::check_color(color);
    count_collective(0);
    return std::make_shared<SelfEndpoint>(counters_);
  }
  void progress() override {}
  Counters& counters() override { return *counters_; }
  [[noreturn]] void abort(std::string_view why) override { detail::abort_process(why); }

private:
  class Receive final : public Pending {
  public:
    Receive(std::shared_ptr<detail::Mailbox> box, const detail::Operation& op, std::span<std::byte> data)
        : box_(std::move(box)), op_(op), landing_{.into = data} {
      box_->expect(key(), landing_);
    }
    Receive(const Receive&) = delete;
    Receive& operator=(const Receive&) = delete;
    ~Receive() override { box_->cancel(key(), landing_); }
    bool test() override {
      if (landing_.done) detail::check_received(op_, landing_.got);
      return landing_.done;
    }
    void wait() override {
      if (!test() && !unwinding_)
        throw comm_error(text(op_, ": this rank is alone and has not sent it; the wait would never end"));
    }

  private:
    detail::Mailbox::Key key() const { return {0, 0, op_.tag}; }
    std::shared_ptr<detail::Mailbox> box_;
    detail::Operation op_;
    detail::Landing landing_;
    detail::Unwinding unwinding_;
  };

  static void check(const detail::Operation& op) {
    detail::check_peer(op);
    detail::check_tag(op, std::numeric_limits<int>::max());
  }
  void count_collective(std::size_t bytes) {
    ++counters_->collectives;
    counters_->collective_bytes += bytes;
  }

  std::shared_ptr<Counters> counters_;
  std::shared_ptr<detail::Mailbox> box_ = std::make_shared<detail::Mailbox>();
};

} // namespace tessera::comm

inline tessera::Communicator::Communicator() : e_(std::make_shared<comm::SelfEndpoint>()) {}
