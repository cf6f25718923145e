// comm/communicator.hpp: Communicator, a group of ranks that exchange raw bytes. A value; copies share the group.
//
// The transport (MPI, threads, later NCCL) derives from comm::Endpoint; nothing above this folder knows which it is.
// All calls on one communicator come from one thread per rank. Collectives are called by all ranks in the same order.
// Messages between two ranks with one tag arrive in the order they were sent.
//
// May know: base.
// Example: auto r = comm.irecv(peer, 7, bytes_in);  auto s = comm.isend(peer, 7, bytes_out);  r.wait(); s.wait();
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tessera/base/error.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

namespace comm {

enum class Element { f32, f64, i32, i64, u8 };
enum class Reduce { sum, min, max };

template <class T> constexpr Element element_of() {
  if constexpr (std::is_same_v<T, float>)
    return Element::f32;
  else if constexpr (std::is_same_v<T, double>)
    return Element::f64;
  else if constexpr (std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::byte> || std::is_same_v<T, char>)
    return Element::u8;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 4)
    return Element::i32;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8)
    return Element::i64;
  else
    static_assert(sizeof(T) == 0, "tessera: a reduction needs float, double, a 4- or 8-byte integer, or bytes");
}

/// What one rank has sent since it was made, over all groups derived from one world. Collectives count the payload
/// handed in once.
struct Counters {
  std::uint64_t messages = 0, bytes = 0, collectives = 0, collective_bytes = 0;
  friend Counters operator-(Counters a, const Counters& b) {
    return {a.messages - b.messages, a.bytes - b.bytes, a.collectives - b.collectives,
            a.collective_bytes - b.collective_bytes};
  }
  friend bool operator==(const Counters&, const Counters&) = default;
};

/// A pending operation of a transport.
struct Pending {
  virtual ~Pending() = default;
  /// True once complete; makes progress.
  virtual bool test() = 0;
  /// Blocks until complete. Throws comm_error that names `what` and the peer if the watchdog runs out.
  virtual void wait() = 0;
};

struct Endpoint;

/// Device memory that a rank sends to, or receives from, another.
struct DeviceMessage {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// A way between the memories of the ranks' devices, beside the host messages of a group: what it moves is device
/// memory. Every call starts behind the work in the calling thread's stream and returns at once; what it moves is in
/// place once its Pending is complete. All ranks of the group make the same calls in the same order.
struct DeviceLink {
  virtual ~DeviceLink() = default;
  /// "nccl", "host-staged"
  virtual std::string_view name() const = 0;
  /// All sends and receives of one exchange, together. Messages between two ranks match in order and in size. The
  /// memory stays as it is until the exchange is complete.
  virtual std::unique_ptr<Pending> exchange(std::span<const DeviceMessage> sends,
                                            std::span<const DeviceMessage> receives, int tag) = 0;
  /// In place over all ranks, `count` elements.
  virtual std::unique_ptr<Pending> all_reduce(void* data, std::size_t count, Element, Reduce) = 0;
  /// The same way for a part of the group. Collective over the part; the part owns it.
  virtual std::shared_ptr<DeviceLink> over(Endpoint& part) = 0;
};

/// What a transport provides. Byte spans are host memory unless the transport says otherwise.
struct Endpoint {
  virtual ~Endpoint() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "threads", ...
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<Pending> isend(int to, int tag, std::span<const std::byte> data) = 0;
  /// The message must have exactly the size of `data`; else comm_error.
  virtual std::unique_ptr<Pending> irecv(int from, int tag, std::span<std::byte> data) = 0;
  /// In place over all ranks, `count` elements.
  virtual std::unique_ptr<Pending> iall_reduce(void* data, std::size_t count, Element, Reduce) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// Every rank gives `mine`; result[r] is what rank r gave. Sizes may differ. For small control data.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) = 0;
  virtual void barrier() = 0;
  /// Ranks of equal colour form a group, ordered by their rank here. Collective.
  virtual std::shared_ptr<Endpoint> split(int color) = 0;
  /// Moves pending traffic on; cheap. Called between kernels.
  virtual void progress() = 0;
  /// Shared by every group derived from one world, on this rank.
  virtual Counters& counters() = 0;
  /// Ends all ranks of the world; prints `why` first.
  [[noreturn]] virtual void abort(std::string_view why) = 0;
  /// The way of device memory between these ranks; null if the program gave none. Parts of the group inherit it.
  std::shared_ptr<DeviceLink> device_link{};
};

/// What this rank's thread has spent in Request::wait so far: communication that nothing hid.
inline double& seconds_waited() {
  thread_local double seconds = 0;
  return seconds;
}

} // namespace comm

/// The handle of a pending operation. Its destructor waits, so memory in flight never outlives its buffer silently.
class [[nodiscard]] Request {
public:
  Request() = default;
  explicit Request(std::unique_ptr<comm::Pending> p) : p_(std::move(p)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& o) {
    if (this != &o) {
      wait();
      p_ = std::move(o.p_);
    }
    return *this;
  }
  ~Request() noexcept {
    try {
      wait();
    } catch (...) { // a destructor must not throw; the error shows again at the next operation
    }
  }
  bool test() {
    if (p_ && p_->test()) p_.reset();
    return !p_;
  }
  void wait() {
    auto p = std::move(p_);
    if (!p || p->test()) return;
    const auto start = std::chrono::steady_clock::now();
    p->wait();
    comm::seconds_waited() += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

private:
  std::unique_ptr<comm::Pending> p_;
};

/// A group of ranks. Default-constructed it is the group of this one rank, with no transport at all.
class Communicator {
public:
  Communicator();
  explicit Communicator(std::shared_ptr<comm::Endpoint> e) : e_(std::move(e)) {}

  int rank() const { return e_->rank(); }
  int size() const { return e_->size(); }
  std::string_view transport() const { return e_->name(); }

  template <class T> Request isend(int to, int tag, std::span<T> data) const {
    return Request(e_->isend(to, tag, std::as_bytes(data)));
  }
  template <class T> Request irecv(int from, int tag, std::span<T> data) const {
    return Request(e_->irecv(from, tag, std::as_writable_bytes(data)));
  }
  template <class T> Request iall_reduce(std::span<T> data, comm::Reduce how = comm::Reduce::sum) const {
    return Request(e_->iall_reduce(data.data(), data.size(), comm::element_of<T>(), how));
  }
  template <class T> T all_reduce(T value, comm::Reduce how = comm::Reduce::sum) const {
    iall_reduce(std::span<T>(&value, 1), how).wait();
    return value;
  }
  template <class T> void broadcast(std::span<T> data, int root) const {
    e_->broadcast(std::as_writable_bytes(data), root);
  }
  template <class T> std::vector<std::vector<T>> all_gather(std::span<const T> mine) const;
  void barrier() const { e_->barrier(); }
  Communicator split(int color) const {
    Communicator part(e_->split(color));
    if (e_->device_link) part.e_->device_link = e_->device_link->over(*part.e_);
    return part;
  }
  void progress() const { e_->progress(); }
  comm::Counters counters() const { return e_->counters(); }
  [[noreturn]] void abort(std::string_view why) const {
    e_->abort(why);
    std::abort(); // never reached; compilers forget that the virtual call does not return
  }
  comm::Endpoint& endpoint() const { return *e_; }
  friend bool operator==(const Communicator& a, const Communicator& b) { return a.e_ == b.e_; }

private:
  std::shared_ptr<comm::Endpoint> e_;
};

template <class T> std::vector<std::vector<T>> Communicator::all_gather(std::span<const T> mine) const {
  std::vector<std::vector<T>> all;
  for (auto& raw : e_->all_gather(std::as_bytes(mine))) {
    std::vector<T> v(raw.size() / sizeof(T));
    if (!v.empty())
      std::char_traits<char>::copy(reinterpret_cast<char*>(v.data()), reinterpret_cast<const char*>(raw.data()),
                                   raw.size());
    all.push_back(std::move(v));
  }
  return all;
}

} // namespace tessera

#include <tessera/comm/self.hpp>
