// comm/threads.hpp: ranks as threads of one process, for tests, debuggers and race detectors.
//
// A send copies its message into the mailbox of the receiver, or straight to its place if the receive is there first,
// so a send is complete at once. Collectives are worked out by the last rank to arrive, always in rank order, so every
// rank obtains bitwise the same value, whatever the timing.
//
// A rank that ends with an exception releases all others: what they wait for throws PeerLost, which names that rank.
// The same holds for a wait on a rank that has returned.
//
// May know: base.
// Example: run_threads(4, [](Communicator c) { auto n = c.all_reduce(1); /* n == 4 on each of the four ranks */ });
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <tessera/comm/combine.hpp>
#include <tessera/comm/communicator.hpp>
#include <thread>

namespace tessera {

namespace comm {

/// A wait cannot end because another rank has failed or returned.
struct PeerLost : comm_error {
  using comm_error::comm_error;
};

namespace detail {

/// What all thread-ranks of one run share.
class ThreadWorld {
public:
  /// What belongs to one rank. Other ranks deliver into the mailbox under the lock.
  struct Rank {
    std::mutex mutex;
    std::condition_variable arrived;
    Mailbox mailbox;
    Counters counters; // touched by its own thread alone
    std::atomic<bool> returned = false;
  };

  explicit ThreadWorld(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  Rank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::uint64_t new_group() { return groups_++; }

  /// The first failure is the one that is told.
  void fail(int rank, std::string why) {
    const std::scoped_lock lock(failure_mutex_);
    if (!failure_) failure_ = text("rank ", rank, " has failed: ", why);
    failed_ = true;
  }
  std::optional<std::string> failure() {
    if (!failed_) return {};
    const std::scoped_lock lock(failure_mutex_);
    return failure_;
  }

private:
  std::vector<Rank> ranks_;
  std::atomic<std::uint64_t> groups_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex failure_mutex_;
  std::optional<std::string> failure_;
};

/// Waits under `lock` until `done()`. `lost()` names a rank whose part can no longer come, if there is one.
template <class Done, class Lost>
void await(ThreadWorld& world, std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
           const Operation& op, Done done, Lost lost) {
  const Watchdog watchdog;
  for (;;) {
    // These two are asked before done(): a rank delivers first and fails or returns afterwards.
    const std::optional<std::string> failure = world.failure();
    const std::optional<int> gone = lost();
    if (done()) return;
    if (failure) throw PeerLost(text(op, ": ", *failure));
    if (gone) throw PeerLost(text(op, ": rank ", *gone, " of the group has returned and never took part"));
    watchdog.check(op);
    // Short slices, because failures and the watchdog are seen only when awake.
    changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(10));
  }
}

/// Thread-ranks that call collectives together.
struct ThreadGroup {
  enum class Kind { all_reduce, broadcast, all_gather, barrier, split };

  /// What one rank brings to a collective. All but the payload must be equal on all ranks.
  struct Part {
    Kind kind = Kind::barrier;
    std::size_t bytes = 0; // 0 where sizes may differ
    Element element = Element::u8;
    Reduce how = Reduce::sum;
    int root = 0;
    std::span<std::byte> buffer{};
    std::span<const std::byte> mine{};
    int color = 0;

    bool matches(const Part& o) const {
      return kind == o.kind && bytes == o.bytes && element == o.element && how == o.how && root == o.root;
    }
  };

  /// One collective call of the group.
  struct Round {
    std::vector<std::optional<Part>> parts;
    std::size_t arrived = 0;
    bool done = false;
    std::string fault; // every rank throws it
    std::vector<std::vector<std::byte>> gathered;
    std::map<int, std::shared_ptr<ThreadGroup>> groups;
  };

  ThreadGroup(std::uint64_t id_, std::vector<int> members_) : id(id_), members(std::move(members_)) {}

  const std::uint64_t id;
  const std::vector<int> members; // ranks of the world
  std::mutex mutex;
  std::condition_variable finished;
  std::map<std::uint64_t, std::shared_ptr<Round>> open; // by the number of the collective call

  std::size_t size() const { return members.size(); }

  /// Called under the lock. The last rank to arrive does the work for all.
  std::shared_ptr<Round> arrive(ThreadWorld& world, std::uint64_t number, int rank, const Part& part,
                                const Operation& op) {
    std::shared_ptr<Round>& slot = open[number];
    if (!slot) {
      slot = std::make_shared<Round>();
      slot->parts.resize(size());
    }
    const std::shared_ptr<Round> round = slot;
    for (std::size_t r = 0; r < size() && round->fault.empty(); ++r)
      if (round->parts[r] && !round->parts[r]->matches(part))
        round->fault =
            text(op, ": does not match the collective that rank ", r,
                 " called; all ranks of a group must call the same ones, with equal sizes, in the same order");
    round->parts[static_cast<std::size_t>(rank)] = part;
    if (++round->arrived == size()) {
      if (round->fault.empty()) finish(world, *round);
      round->done = true;
      open.erase(number);
      finished.notify_all();
    }
    return round;
  }

private:
  void finish(ThreadWorld& world, Round& round) const {
    const Part& first = *round.parts[0];
    switch (first.kind) {
    case Kind::all_reduce: {
      std::vector<std::span<const std::byte>> buffers;
      for (const auto& part : round.parts) buffers.emplace_back(part->buffer);
      reduce_in_order(buffers, first.buffer, first.element, first.how);
      for (const auto& part : std::span(round.parts).subspan(1))
        if (!first.buffer.empty()) std::memcpy(part->buffer.data(), first.buffer.data(), first.buffer.size());
      return;
    }
    case Kind::broadcast: {
      const std::span<std::byte> from = round.parts[static_cast<std::size_t>(first.root)]->buffer;
      for (const auto& part : round.parts)
        if (part->buffer.data() != from.data() && !from.empty())
          std::memcpy(part->buffer.data(), from.data(), from.size());
      return;
    }
    case Kind::all_gather:
      for (const auto& part : round.parts) round.gathered.emplace_back(part->mine.begin(), part->mine.end());
      return;
    case Kind::barrier: return;
    case Kind::split: {
      std::map<int, std::vector<int>> by_color;
      for (std::size_t r = 0; r < size(); ++r) by_color[round.parts[r]->color].push_back(members[r]);
      for (auto& [color, ranks] : by_color)
        round.groups[color] = std::make_shared<ThreadGroup>(world.new_group(), std::move(ranks));
      return;
    }
    }
  }
};

} // namespace detail

/// One rank's end of a group of thread-ranks.
class ThreadEndpoint final : public Endpoint {
public:
  /// `rank` counts within the group.
  ThreadEndpoint(std::shared_ptr<detail::ThreadWorld> world, std::shared_ptr<detail::ThreadGroup> group, int rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->size()); }
  std::string_view name() const override { return "threads"; }

  std::unique_ptr<Pending> isend(int to, int tag, std::span<const std::byte> data) override {
    const detail::Operation op = describe("isend", data.size(), to, tag);
    check(op);
    auto& peer = (*world_)[group_->members[static_cast<std::size_t>(to)]];
    {
      const std::scoped_lock lock(peer.mutex);
      peer.mailbox.deliver({group_->id, rank_, tag}, data);
    }
    peer.arrived.notify_all();
    ++counters().messages;
    counters().bytes += data.size();
    return std::make_unique<detail::Complete>();
  }
  std::unique_ptr<Pending> irecv(int from, int tag, std::span<std::byte> data) override {
    const detail::Operation op = describe("irecv", data.size(), from, tag);
    check(op);
    return std::make_unique<Receive>(*this, op, data);
  }
  std::unique_ptr<Pending> iall_reduce(void* data, std::size_t count, Element element, Reduce how) override {
    const std::size_t bytes = count * detail::size_of(element);
    return start("all_reduce", bytes,
                 {.kind = Kind::all_reduce,
                  .bytes = bytes,
                  .element = element,
                  .how = how,
                  .buffer = {static_cast<std::byte*>(data), bytes}});
  }
  void broadcast(std::span<std::byte> data, int root) override {
    const detail::Operation op = describe("broadcast", data.size(), root);
    detail::check_peer(op);
    start("broadcast", rank_ == root ? data.size() : 0,
          {.kind = Kind::broadcast, .bytes = data.size(), .root = root, .buffer = data})
        ->wait();
  }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    const auto collective = start("all_gather", mine.size(), {.kind = Kind::all_gather, .mine = mine});
    collective->wait();
    return collective->round().gathered;
  }
  void barrier() override { start("barrier", 0, {.kind = Kind::barrier})->wait(); }
  std::shared_ptr<Endpoint> split(int color) override {
    detail::check_color(color);
    const auto collective = start("split", 0, {.kind = Kind::split, .color = color});
    collective->wait();
    const auto group = collective->round().groups.at(color);
    const auto me = std::ranges::find(group->members, world_rank());
    return std::make_shared<ThreadEndpoint>(world_, group, static_cast<int>(me - group->members.begin()));
  }
  void progress() override {}
  Counters& counters() override { return me().counters; }
  [[noreturn]] void abort(std::string_view why) override { detail::abort_process(why); }

private:
  using Kind = detail::ThreadGroup::Kind;

  class Receive final : public Pending {
  public:
    Receive(ThreadEndpoint& end, const detail::Operation& op, std::span<std::byte> data)
        : world_(end.world_), me_(end.me()),
          sender_(world_rank_of(end, op.peer)), key_{end.group_->id, op.peer, op.tag}, op_(op), landing_{.into = data} {
      const std::scoped_lock lock(me_.mutex);
      me_.mailbox.expect(key_, landing_);
    }
    Receive(const Receive&) = delete;
    Receive& operator=(const Receive&) = delete;
    ~Receive() override {
      const std::scoped_lock lock(me_.mutex);
      me_.mailbox.cancel(key_, landing_);
    }
    bool test() override {
      const auto failure = world_->failure();
      const std::scoped_lock lock(me_.mutex);
      if (landing_.done)
        detail::check_received(op_, landing_.got);
      else if (failure)
        throw PeerLost(text(op_, ": ", *failure));
      return landing_.done;
    }
    void wait() override {
      if (unwinding_) return;
      std::unique_lock lock(me_.mutex);
      detail::await(
          *world_, lock, me_.arrived, op_, [&] { return landing_.done; },
          [&] { return (*world_)[sender_].returned ? std::optional(op_.peer) : std::nullopt; });
      detail::check_received(op_, landing_.got);
    }

  private:
    static int world_rank_of(const ThreadEndpoint& end, int rank) {
      return end.group_->members[static_cast<std::size_t>(rank)];
    }
    std::shared_ptr<detail::ThreadWorld> world_;
    detail::ThreadWorld::Rank& me_;
    int sender_;
    detail::Mailbox::Key key_;
    detail::Operation op_;
    detail::Landing landing_;
    detail::Unwinding unwinding_;
  };

  class Collective final : public Pending {
  public:
    Collective(ThreadEndpoint& end, const detail::Operation& op, const detail::ThreadGroup::Part& part)
        : world_(end.world_), group_(end.group_), op_(op) {
      const std::scoped_lock lock(group_->mutex);
      round_ = group_->arrive(*world_, end.collectives_++, op.rank, part, op);
    }
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;
    /// Takes its buffer back. The others can no longer finish; they learn it when this rank fails or returns.
    ~Collective() override {
      const std::scoped_lock lock(group_->mutex);
      if (round_->done) return;
      round_->parts[static_cast<std::size_t>(op_.rank)].reset();
      --round_->arrived;
    }
    bool test() override {
      const auto failure = world_->failure();
      const std::scoped_lock lock(group_->mutex);
      if (round_->done)
        check_fault();
      else if (failure)
        throw PeerLost(text(op_, ": ", *failure));
      return round_->done;
    }
    void wait() override {
      if (unwinding_) return;
      std::unique_lock lock(group_->mutex);
      detail::await(
          *world_, lock, group_->finished, op_, [&] { return round_->done; }, [&] { return missing(); });
      check_fault();
    }
    /// No rank changes a round that is done.
    const detail::ThreadGroup::Round& round() const { return *round_; }

  private:
    void check_fault() const {
      if (!round_->fault.empty()) throw comm_error(round_->fault);
    }
    std::optional<int> missing() const {
      for (std::size_t r = 0; r < group_->size(); ++r)
        if (!round_->parts[r] && (*world_)[group_->members[r]].returned) return static_cast<int>(r);
      return {};
    }
    std::shared_ptr<detail::ThreadWorld> world_;
    std::shared_ptr<detail::ThreadGroup> group_;
    std::shared_ptr<detail::ThreadGroup::Round> round_;
    detail::Operation op_;
    detail::Unwinding unwinding_;
  };

  int world_rank() const { return group_->members[static_cast<std::size_t>(rank_)]; }
  detail::ThreadWorld::Rank& me() { return (*world_)[world_rank()]; }
  detail::Operation describe(std::string_view what, std::size_t bytes, int peer = detail::no_peer,
                             int tag = detail::no_tag) const {
    return {what, name(), rank_, size(), peer, tag, bytes};
  }
  static void check(const detail::Operation& op) {
    detail::check_peer(op);
    detail::check_tag(op, std::numeric_limits<int>::max());
  }
  std::unique_ptr<Collective> start(std::string_view what, std::size_t payload, const detail::ThreadGroup::Part& part) {
    ++counters().collectives;
    counters().collective_bytes += payload;
    return std::make_unique<Collective>(
        *this, describe(what, payload, part.kind == Kind::broadcast ? part.root : detail::no_peer), part);
  }

  std::shared_ptr<detail::ThreadWorld> world_;
  std::shared_ptr<detail::ThreadGroup> group_;
  int rank_;
  std::uint64_t collectives_ = 0;
};

} // namespace comm

/// Calls `body(Communicator)` on `ranks` threads, each a rank, and waits for all. If ranks throw, the exception of the
/// lowest of them is thrown here; those that failed only because another rank was lost come last.
template <class F> void run_threads(int ranks, const F& body) {
  TESSERA_REQUIRE(ranks > 0, "run_threads(", ranks, "): give at least one rank");
  const auto world = std::make_shared<comm::detail::ThreadWorld>(ranks);
  std::vector<int> members(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) members[static_cast<std::size_t>(r)] = r;
  const auto group = std::make_shared<comm::detail::ThreadGroup>(world->new_group(), std::move(members));

  std::vector<std::exception_ptr> own(static_cast<std::size_t>(ranks)), secondary(own);
  const auto run_rank = [&](int r) {
    const auto index = static_cast<std::size_t>(r);
    try {
      body(Communicator(std::make_shared<comm::ThreadEndpoint>(world, group, r)));
      (*world)[r].returned = true;
    } catch (const comm::PeerLost& e) {
      secondary[index] = std::current_exception();
      world->fail(r, e.what());
    } catch (const std::exception& e) {
      own[index] = std::current_exception();
      world->fail(r, e.what());
    } catch (...) {
      own[index] = std::current_exception();
      world->fail(r, "an exception that is no std::exception");
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int r = 0; r < ranks; ++r) threads.emplace_back(run_rank, r);
    } catch (const std::exception& e) { // no thread left; release those that run before they are joined
      world->fail(static_cast<int>(threads.size()), e.what());
      throw;
    }
  }
  for (const auto* errors : {&own, &secondary})
    for (const auto& error : *errors)
      if (error) std::rethrow_exception(error);
}

} // namespace tessera
