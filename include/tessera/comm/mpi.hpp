// comm/mpi.hpp: ranks as processes, over MPI. Boost.MPI sets up and owns the communicators, raw MPI moves the payload.
//
// Everything is non-blocking underneath: a wait is a loop of MPI_Test with sched_yield, so that the watchdog works and
// more ranks than cores run well. MPI moves data only inside its calls; progress() is one such call.
//
// May know: base. All calls come from the thread that initialised MPI.
// Example: comm::MpiSession session(argc, argv);  Communicator world(session.world());
#pragma once

#include <tessera/comm/mpi_all_reduce.hpp>

namespace tessera {

namespace comm {

namespace detail {

/// Calls `call()`, which is one of Boost.MPI, and turns its exception into ours.
template <class Call> auto boost_call(std::string_view about, Call call) {
  try {
    return call();
  } catch (const boost::mpi::exception& e) { throw backend_error(text(e.what(), ": ", about)); }
}

} // namespace detail

/// One rank's end of a group of MPI processes.
class MpiEndpoint final : public Endpoint {
public:
  /// Takes the group over. Its errors become return codes.
  MpiEndpoint(boost::mpi::communicator group, std::shared_ptr<Counters> counters)
      : group_(std::move(group)), counters_(std::move(counters)), rank_(group_.rank()), size_(group_.size()) {
    detail::check_mpi(MPI_Comm_set_errhandler(handle(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "a new group");
    int* largest = nullptr;
    int known = 0;
    detail::check_mpi(MPI_Comm_get_attr(handle(), MPI_TAG_UB, static_cast<void*>(&largest), &known),
                      "MPI_Comm_get_attr", "MPI_TAG_UB");
    if (known) largest_tag_ = *largest;
    largest_tag_ -= reduction_slots * detail::MpiAllReduce::tags; // those above are the reductions'
  }

  MPI_Comm handle() const { return group_; }
  int largest_tag() const { return largest_tag_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "mpi"; }

  std::unique_ptr<Pending> isend(int to, int tag, std::span<const std::byte> data) override {
    const detail::Operation op = describe("isend", data.size(), to, tag);
    check(op);
    const detail::MpiMessage message(data.size());
    auto pending = std::make_unique<detail::MpiPending>(Kind::send, op, group_);
    detail::check_mpi(MPI_Isend(data.data(), message.count(), message.type(), to, tag, handle(), pending->add()),
                      "MPI_Isend", op);
    ++counters_->messages;
    counters_->bytes += data.size();
    return pending;
  }
  std::unique_ptr<Pending> irecv(int from, int tag, std::span<std::byte> data) override {
    const detail::Operation op = describe("irecv", data.size(), from, tag);
    check(op);
    const detail::MpiMessage message(data.size());
    auto pending = std::make_unique<detail::MpiPending>(Kind::receive, op, group_);
    detail::check_mpi(MPI_Irecv(data.data(), message.count(), message.type(), from, tag, handle(), pending->add()),
                      "MPI_Irecv", op);
    return pending;
  }
  std::unique_ptr<Pending> iall_reduce(void* data, std::size_t count, Element element, Reduce how) override {
    const std::size_t width = detail::size_of(element);
    const detail::Operation op = begin("all_reduce", count * width);
    const std::size_t bytes = count * width;
    if (size_ > 1 && size_ <= detail::direct_reduction.ranks && bytes >= detail::direct_reduction.bytes)
      return std::make_unique<detail::MpiAllReduce>(
          op, group_, std::span(static_cast<std::byte*>(data), bytes), element, how, scratch_,
          largest_tag_ + 1 + static_cast<int>(reductions_++ % reduction_slots) * detail::MpiAllReduce::tags);
    auto pending = std::make_unique<detail::MpiPending>(Kind::collective, op, group_);
    for_each_piece(count, [&](std::size_t first, int n) {
      detail::check_mpi(MPI_Iallreduce(MPI_IN_PLACE, static_cast<std::byte*>(data) + first * width, n,
                                       detail::mpi_type(element), detail::mpi_op(how, element), handle(),
                                       pending->add()),
                        "MPI_Iallreduce", op);
    });
    return pending;
  }
  void broadcast(std::span<std::byte> data, int root) override {
    detail::check_peer(describe("broadcast", data.size(), root));
    const detail::Operation op = begin("broadcast", rank_ == root ? data.size() : 0, root);
    detail::MpiPending pending(Kind::collective, op, group_);
    for_each_piece(data.size(), [&](std::size_t first, int n) {
      detail::check_mpi(MPI_Ibcast(data.data() + first, n, MPI_BYTE, root, handle(), pending.add()), "MPI_Ibcast", op);
    });
    pending.wait();
  }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    const detail::Operation op = begin("all_gather", mine.size());
    const auto ranks = static_cast<std::size_t>(size_);
    struct Memory {
      std::vector<std::byte> mine, all;
      std::int64_t my_size;
      std::vector<std::int64_t> sizes;
      std::vector<int> counts, offsets;
    };
    const auto m = std::make_shared<Memory>();
    m->mine.assign(mine.begin(), mine.end());
    m->my_size = static_cast<std::int64_t>(mine.size());
    m->sizes.resize(ranks);
    run(op, "MPI_Iallgather", m, [&](MPI_Request* r) {
      return MPI_Iallgather(&m->my_size, 1, MPI_INT64_T, m->sizes.data(), 1, MPI_INT64_T, handle(), r);
    });

    std::size_t total = 0;
    for (const std::int64_t size : m->sizes) {
      const auto bytes = static_cast<std::size_t>(size);
      TESSERA_REQUIRE(bytes <= detail::mpi_max_count && total + bytes <= detail::mpi_max_count,
                      "all_gather: the ranks give more than ", detail::mpi_max_count,
                      " bytes in total; it is meant for small control data, send large data with isend and irecv");
      m->counts.push_back(static_cast<int>(bytes));
      m->offsets.push_back(static_cast<int>(total));
      total += bytes;
    }
    m->all.resize(total);
    run(op, "MPI_Iallgatherv", m, [&](MPI_Request* r) {
      return MPI_Iallgatherv(m->mine.data(), static_cast<int>(mine.size()), MPI_BYTE, m->all.data(), m->counts.data(),
                             m->offsets.data(), MPI_BYTE, handle(), r);
    });
    std::vector<std::vector<std::byte>> result;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto first = m->all.begin() + m->offsets[r];
      result.emplace_back(first, first + m->counts[r]);
    }
    return result;
  }
  void barrier() override { synchronise(begin("barrier", 0)); }
  std::shared_ptr<Endpoint> split(int color) override {
    detail::check_color(color);
    // MPI_Comm_split blocks without a watchdog, so first make sure that everyone is here.
    synchronise(begin("split", 0));
    auto part = detail::boost_call("split", [&] { return group_.split(color, rank_); });
    return std::make_shared<MpiEndpoint>(std::move(part), counters_);
  }
  void progress() override {
    int found = 0;
    detail::check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle(), &found, MPI_STATUS_IGNORE), "MPI_Iprobe",
                      "progress");
  }
  Counters& counters() override { return *counters_; }
  [[noreturn]] void abort(std::string_view why) override {
    std::fprintf(stderr, "tessera: %.*s\n", static_cast<int>(why.size()), why.data());
    std::fflush(nullptr);
    if (detail::mpi_running()) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    std::_Exit(EXIT_FAILURE);
  }

private:
  using Kind = detail::MpiPending::Kind;

  detail::Operation describe(std::string_view what, std::size_t bytes, int peer = detail::no_peer,
                             int tag = detail::no_tag) const {
    return {what, name(), rank_, size_, peer, tag, bytes};
  }
  void check(const detail::Operation& op) const {
    detail::check_peer(op);
    detail::check_tag(op, largest_tag_);
  }
  /// Counts a collective.
  detail::Operation begin(std::string_view what, std::size_t payload, int peer = detail::no_peer) {
    ++counters_->collectives;
    counters_->collective_bytes += payload;
    return describe(what, payload, peer);
  }
  template <class Start>
  void run(const detail::Operation& op, std::string_view call, std::shared_ptr<void> memory, Start start) {
    detail::MpiPending pending(Kind::collective, op, group_);
    pending.own(std::move(memory));
    detail::check_mpi(start(pending.add()), call, op);
    pending.wait();
  }
  void synchronise(const detail::Operation& op) {
    run(op, "MPI_Ibarrier", nullptr, [&](MPI_Request* r) { return MPI_Ibarrier(handle(), r); });
  }
  template <class F> static void for_each_piece(std::size_t count, F f) {
    for (std::size_t first = 0; first < count; first += detail::mpi_max_count)
      f(first, static_cast<int>(std::min(detail::mpi_max_count, count - first)));
  }

  boost::mpi::communicator group_; // the last copy frees it, unless MPI is finalised by then
  std::shared_ptr<Counters> counters_;
  int rank_, size_;
  int largest_tag_ = 32767; // what the MPI standard promises
  /// Reductions that may be under way at a time, each with tags of its own.
  static constexpr int reduction_slots = 2048;
  unsigned reductions_ = 0;
  std::shared_ptr<detail::ScratchPool> scratch_ = std::make_shared<detail::ScratchPool>();
};

/// A group of this library over a duplicate of `group`, so its messages cannot mix with the caller's. Collective.
inline std::shared_ptr<Endpoint> mpi_endpoint(MPI_Comm group) {
  return detail::boost_call("duplicate", [&] {
    return std::make_shared<MpiEndpoint>(boost::mpi::communicator(group, boost::mpi::comm_duplicate),
                                         std::make_shared<Counters>());
  });
}

/// The MPI communicator behind `c`, for libraries that want one, such as HDF5. Throws usage_error if there is none.
inline MPI_Comm mpi_handle(const Communicator& c) {
  const auto* end = dynamic_cast<const MpiEndpoint*>(&c.endpoint());
  TESSERA_REQUIRE(end, "mpi_handle: this group's transport is '", c.transport(), "', not mpi");
  return end->handle();
}

/// Initialises MPI, unless the program has done so, and finalises what it has initialised.
class MpiSession {
public:
  MpiSession(int& argc, char**& argv)
      : environment_(argc, argv, boost::mpi::threading::funneled, /*abort_on_exception=*/false) {
    TESSERA_REQUIRE(detail::mpi_running(), "MPI was finalised already; a program has one Environment, in main");
    world_ = mpi_endpoint(MPI_COMM_WORLD);
  }
  std::shared_ptr<Endpoint> world() const { return world_; }

private:
  boost::mpi::environment environment_;
  std::shared_ptr<Endpoint> world_; // goes first
};

} // namespace comm

} // namespace tessera
