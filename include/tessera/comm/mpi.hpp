// comm/mpi.hpp: ranks as processes, over MPI. Boost.MPI sets up and owns the communicators, raw MPI moves the payload.
//
// Everything is non-blocking underneath: a wait is a loop of MPI_Test with sched_yield, so that the watchdog works and
// more ranks than cores run well. MPI moves data only inside its calls; progress() is one such call.
//
// May know: base. The only file that includes mpi.h and Boost.MPI. All calls come from the thread that initialised MPI.
// Example: comm::MpiSession session(argc, argv);  Communicator world(session.world());
#pragma once

#if !defined(OMPI_SKIP_MPICXX)
#define OMPI_SKIP_MPICXX 1 // Open MPI's C++ bindings are not used
#endif
#include <mpi.h>

#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <sched.h>
#include <tessera/comm/communicator.hpp>

namespace tessera {

namespace comm {

namespace detail {

/// One MPI call counts at most this many elements; larger payloads are cut. Below INT_MAX because counts are ints. A
/// variable, so that tests can cut small messages.
inline std::size_t mpi_max_count = std::size_t{1} << 30;

/// Throws backend_error that names the call unless `code` is MPI_SUCCESS. `about` is an Operation or a text.
template <class About> void check_mpi(int code, std::string_view call, const About& about) {
  if (code == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, message, &length);
  throw backend_error(text(call, " failed with code ", code, " (",
                           std::string_view(message, static_cast<std::size_t>(length)), "): ", about));
}

inline bool mpi_running() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

inline MPI_Datatype mpi_type(Element e) {
  switch (e) {
  case Element::f32: return MPI_FLOAT;
  case Element::f64: return MPI_DOUBLE;
  case Element::i32: return MPI_INT32_T;
  case Element::i64: return MPI_INT64_T;
  case Element::u8: return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}
/// Sums of bytes that wrap. MPI_SUM does not say what an overflow gives; Open MPI 4.1 saturates where it uses AVX.
inline void add_bytes(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const std::uint8_t*>(in);
  auto* b = static_cast<std::uint8_t*>(in_out);
  for (int i = 0; i < *count; ++i) b[i] = static_cast<std::uint8_t>(a[i] + b[i]);
}
inline MPI_Op mpi_op(Reduce r, Element e) {
  static const MPI_Op byte_sum = [] {
    MPI_Op op = MPI_OP_NULL;
    check_mpi(MPI_Op_create(add_bytes, /*commute=*/1, &op), "MPI_Op_create", "sums of bytes");
    return op;
  }();
  switch (r) {
  case Reduce::sum: return e == Element::u8 ? byte_sum : MPI_SUM;
  case Reduce::min: return MPI_MIN;
  case Reduce::max: return MPI_MAX;
  }
  return MPI_OP_NULL;
}

/// (count, type) of a message of any number of bytes. Up to mpi_max_count it is plain bytes; above, one element of a
/// type that is made of large pieces, so a message is one message whatever its size.
class MpiMessage {
public:
  explicit MpiMessage(std::size_t bytes) {
    const std::size_t piece = mpi_max_count;
    if (bytes <= piece) {
      count_ = static_cast<int>(bytes);
      return;
    }
    const std::size_t pieces = bytes / piece, rest = bytes % piece;
    constexpr std::string_view about = "the type of a large message";
    MPI_Datatype one = MPI_DATATYPE_NULL, many = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(piece), MPI_BYTE, &one), "MPI_Type_contiguous", about);
    check_mpi(MPI_Type_contiguous(static_cast<int>(pieces), one, &many), "MPI_Type_contiguous", about);
    const int lengths[] = {1, static_cast<int>(rest)};
    const MPI_Aint offsets[] = {0, static_cast<MPI_Aint>(pieces * piece)};
    const MPI_Datatype types[] = {many, MPI_BYTE};
    check_mpi(MPI_Type_create_struct(2, lengths, offsets, types, &type_), "MPI_Type_create_struct", about);
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit", about);
    MPI_Type_free(&one);
    MPI_Type_free(&many);
    count_ = 1;
    owned_ = true;
  }
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;
  /// MPI keeps the type until the pending message is complete.
  ~MpiMessage() {
    if (owned_) MPI_Type_free(&type_);
  }
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
};

/// One or more MPI requests that together are one operation. An all-reduce that is given up after an error still owns
/// its buffer, so a program should end then, not go on with that memory.
class MpiPending final : public Pending {
public:
  enum class Kind { send, receive, collective };

  MpiPending(Kind kind, const Operation& op, boost::mpi::communicator group)
      : kind_(kind), op_(op), group_(std::move(group)) {}
  MpiPending(const MpiPending&) = delete;
  MpiPending& operator=(const MpiPending&) = delete;
  ~MpiPending() override { give_up(); }

  /// The operation works on this memory.
  void own(std::shared_ptr<void> memory) { memory_ = std::move(memory); }
  /// Where MPI puts the next request.
  MPI_Request* add() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  bool test() override {
    for (; next_ < requests_.size(); ++next_) {
      int complete = 0;
      MPI_Status status;
      const int code = MPI_Test(&requests_[next_], &complete, &status);
      if (code != MPI_SUCCESS) {
        requests_[next_++] = MPI_REQUEST_NULL; // MPI has released it
        fail(code);
      }
      if (!complete) return false;
      if (kind_ == Kind::receive) {
        MPI_Count got = 0;
        check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &got), "MPI_Get_elements_x", op_);
        if (static_cast<std::size_t>(got) != op_.bytes) ++next_;
        check_received(op_, static_cast<std::size_t>(got));
      }
    }
    return true;
  }
  void wait() override {
    if (unwinding_) return; // the destructor gives up
    const Watchdog watchdog;
    // Short waits are served fastest by asking again at once; later the core goes to whoever has work.
    for (int tries = 0; !test(); ++tries) {
      if (tries < 64) continue;
      sched_yield();
      if (tries % 64 == 0) watchdog.check(op_);
    }
  }

private:
  void fail(int code) const {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    // Open MPI 4.1 reports this only after it has written the whole message when a transport copies it in one piece.
    if (kind == MPI_ERR_TRUNCATE)
      throw comm_error(text(op_, ": the message that arrived is larger and may have overwritten what lies behind the "
                                 "buffer; both sides must agree on the size"));
    check_mpi(code, "MPI_Test", op_);
  }
  /// After an error: a receive is taken back; a send has a short time to leave. What stays is left to MPI. A collective
  /// can be neither taken back nor freed, so MPI goes on with it whenever it runs: its group and memory stay.
  void give_up() noexcept {
    if (next_ == requests_.size() || !mpi_running()) return;
    static std::vector<std::pair<boost::mpi::communicator, std::shared_ptr<void>>> unfinished;
    if (kind_ == Kind::collective) unfinished.emplace_back(group_, memory_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    for (; next_ < requests_.size(); ++next_) {
      MPI_Request& request = requests_[next_];
      int complete = request == MPI_REQUEST_NULL;
      if (!complete && kind_ == Kind::receive) MPI_Cancel(&request);
      while (!complete && std::chrono::steady_clock::now() < end) {
        if (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS) complete = 1;
        sched_yield();
      }
      if (!complete && kind_ != Kind::collective) MPI_Request_free(&request);
    }
  }

  Kind kind_;
  Operation op_;
  boost::mpi::communicator group_;
  std::shared_ptr<void> memory_;
  Unwinding unwinding_;
  std::vector<MPI_Request> requests_;
  std::size_t next_ = 0;
};

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
