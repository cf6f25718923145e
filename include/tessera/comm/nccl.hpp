// comm/nccl.hpp: NcclLink, a DeviceLink through NCCL, for ranks that each have a GPU of their own.
//
// The one file that includes nccl.h. It is set up over an existing group, which carries the identities.
//
// Two NCCL communicators. Exchanges run in the caller's stream on the first, all sends and receives of one exchange in
// one group. All-reduces run on the second, in a stream of their own behind what the caller's stream holds, so that
// they hide behind the rest of a backward pass. NCCL wants all ranks to launch in one order, over both: every rank's
// one thread makes the same calls in the same order, and each call launches before it returns.
//
// Communicators are non-blocking: a call that NCCL has not finished, and a kernel that does not end, are polled for
// errors of NCCL, and for the time limit of comm/watchdog.hpp. Either ends in comm_error, after the communicator has
// been aborted so that nothing waits for it for ever.
//
// May know: base, space, comm/communicator.hpp, watchdog.hpp.
// Example: endpoint.device_link = std::make_shared<NcclLink>(endpoint, [] { return cuda_device::stream().handle(); });
#pragma once

#include <functional>
#include <nccl.h>
#include <sched.h>
#include <tessera/comm/communicator.hpp>
#include <tessera/comm/watchdog.hpp>
#include <tessera/space/cuda_calls.hpp>

namespace tessera::comm {

namespace detail {

inline ncclDataType_t nccl_type(Element e) {
  switch (e) {
  case Element::f32: return ncclFloat32;
  case Element::f64: return ncclFloat64;
  case Element::i32: return ncclInt32;
  case Element::i64: return ncclInt64;
  case Element::u8: return ncclUint8;
  }
  return ncclUint8;
}
inline ncclRedOp_t nccl_op(Reduce r) { return r == Reduce::sum ? ncclSum : r == Reduce::min ? ncclMin : ncclMax; }

/// A communicator of NCCL. Not thread safe.
class NcclCommunicator {
public:
  /// Collective over `group`, each of whose ranks has chosen its GPU.
  explicit NcclCommunicator(Endpoint& group) {
    ncclUniqueId id{};
    if (group.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    group.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0); // with a watchdog: all are here afterwards
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Operation op{.what = "set-up of NCCL", .transport = "nccl", .rank = group.rank(), .size = group.size()};
    settle(ncclCommInitRankConfig(&comm_, group.size(), id, group.rank(), &config), "ncclCommInitRankConfig", op);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() { abort(); } // not ncclCommDestroy, which waits for peers that may be gone
  ncclComm_t raw() const { return comm_; }

  /// Waits until NCCL has taken the call in. Throws comm_error if it, or an earlier one, failed.
  void settle(ncclResult_t result, const char* call, const Operation& op) {
    const Watchdog watchdog;
    while (result == ncclInProgress) {
      ::sched_yield();
      poll(op, &result);
      limit(watchdog, op);
    }
    if (result != ncclSuccess) fail(result, call, op);
  }
  /// Throws comm_error if something failed since the last time.
  void poll(const Operation& op, ncclResult_t* state = nullptr) {
    if (!comm_) throw comm_error(text(op, ": the communicator of NCCL was aborted after an earlier error"));
    ncclResult_t asynchronous = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &asynchronous) != ncclSuccess) asynchronous = ncclSystemError;
    if (asynchronous != ncclSuccess && asynchronous != ncclInProgress) fail(asynchronous, "ncclCommGetAsyncError", op);
    if (state) *state = asynchronous;
  }
  /// Throws comm_error, with the communicator aborted, once the watchdog has run out.
  void limit(const Watchdog& watchdog, const Operation& op) {
    try {
      watchdog.check(op);
    } catch (const comm_error&) {
      abort();
      throw;
    }
  }

private:
  static void check(ncclResult_t r, const char* call) {
    if (r != ncclSuccess) fail_backend(call, ncclGetErrorString(r), r, "");
  }
  [[noreturn]] void fail(ncclResult_t r, const char* call, const Operation& op) {
    const std::string told = comm_ ? ncclGetLastError(comm_) : "";
    abort();
    throw comm_error(
        text(op, ": ", call, ": ", ncclGetErrorString(r), " (code ", int(r), ")", told.empty() ? "" : ": ", told));
  }
  void abort() noexcept {
    if (comm_) ncclCommAbort(comm_);
    comm_ = nullptr;
  }
  ncclComm_t comm_ = nullptr;
};

/// Work of NCCL in a stream.
class NcclPending final : public Pending {
public:
  NcclPending(std::shared_ptr<NcclCommunicator> c, const Operation& op, cudaStream_t stream)
      : communicator_(std::move(c)), op_(op), done_(make_event()) {
    check_cuda(cudaEventRecord(done_.get(), stream), "cudaEventRecord");
  }
  NcclPending(const NcclPending&) = delete;
  bool test() override {
    const cudaError_t state = cudaEventQuery(done_.get());
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) check_cuda(state, "cudaEventQuery", op_.str());
    communicator_->poll(op_);
    return false;
  }
  void wait() override {
    const Watchdog watchdog;
    while (!test()) {
      if (unwinding_) return; // this rank has failed: it must not wait for peers that wait for it
      communicator_->limit(watchdog, op_);
      ::sched_yield();
    }
  }

private:
  std::shared_ptr<NcclCommunicator> communicator_;
  Operation op_;
  OwnedEvent done_;
  Unwinding unwinding_;
};

} // namespace detail

class NcclLink final : public DeviceLink {
public:
  /// Gives the stream that the calling thread's kernels run in.
  using CurrentStream = std::function<cudaStream_t()>;
  /// Collective over the group; each rank has chosen its GPU. `group` owns this object or outlives it.
  NcclLink(Endpoint& group, CurrentStream current)
      : group_(group), current_(std::move(current)), exchanges_(std::make_shared<detail::NcclCommunicator>(group)),
        reductions_(std::make_shared<detail::NcclCommunicator>(group)), reduction_stream_(make_stream()),
        before_(make_event()) {}
  std::string_view name() const override { return "nccl"; }

  std::unique_ptr<Pending> exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                                    int tag) override {
    detail::Operation op = describe("exchange");
    op.tag = tag;
    for (const DeviceMessage& m : sends) op.bytes += m.bytes;
    const cudaStream_t stream = current_();
    const ncclComm_t comm = exchanges_->raw();
    exchanges_->poll(op);
    exchanges_->settle(ncclGroupStart(), "ncclGroupStart", op);
    ncclResult_t worst = ncclSuccess;
    const auto keep = [&](ncclResult_t r) {
      if (r != ncclSuccess && r != ncclInProgress) worst = r;
    };
    for (const DeviceMessage& m : receives)
      if (m.bytes) keep(ncclRecv(m.data, m.bytes, ncclUint8, m.peer, comm, stream));
    for (const DeviceMessage& m : sends)
      if (m.bytes) keep(ncclSend(m.data, m.bytes, ncclUint8, m.peer, comm, stream));
    const ncclResult_t ended = ncclGroupEnd(); // always: a group that is left open would take in later calls
    exchanges_->settle(worst != ncclSuccess ? worst : ended, "ncclGroupEnd", op);
    group_.counters().messages += sends.size();
    group_.counters().bytes += op.bytes;
    return std::make_unique<detail::NcclPending>(exchanges_, op, stream);
  }
  std::unique_ptr<Pending> all_reduce(void* data, std::size_t count, Element element, Reduce how) override {
    detail::Operation op = describe("all_reduce");
    op.bytes = count * detail::size_of(element);
    order(current_(), reduction_stream_.get(), before_.get());
    reductions_->poll(op);
    reductions_->settle(ncclAllReduce(data, data, count, detail::nccl_type(element), detail::nccl_op(how),
                                      reductions_->raw(), reduction_stream_.get()),
                        "ncclAllReduce", op);
    ++group_.counters().collectives;
    group_.counters().collective_bytes += op.bytes;
    return std::make_unique<detail::NcclPending>(reductions_, op, reduction_stream_.get());
  }
  std::shared_ptr<DeviceLink> over(Endpoint& part) override { return std::make_shared<NcclLink>(part, current_); }

private:
  detail::Operation describe(std::string_view what) const {
    return {.what = what, .transport = "nccl", .rank = group_.rank(), .size = group_.size()};
  }
  Endpoint& group_;
  CurrentStream current_;
  std::shared_ptr<detail::NcclCommunicator> exchanges_, reductions_;
  OwnedStream reduction_stream_;
  OwnedEvent before_;
};

} // namespace tessera::comm
