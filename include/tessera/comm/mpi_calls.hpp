// comm/mpi_calls.hpp: what the MPI transport is made of: checked calls, types, messages of any size, pending
// operations.
//
// May know: base. The only file that includes mpi.h and Boost.MPI.
// Example: detail::MpiPending p(Kind::send, op, group);  check_mpi(MPI_Isend(..., p.add()), "MPI_Isend", op); p.wait();
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

} // namespace detail

} // namespace comm

} // namespace tessera
