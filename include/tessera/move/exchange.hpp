// move/exchange.hpp: Exchange runs a BoxPlan, forward or as its adjoint, any number of times.
//
// Forward copies (or adds) each `from` box into its `to` box. The adjoint adds each `to` box into its `from` box: the
// transposed matrix. One message per peer; a box that lies contiguous in memory is sent and received in place, others
// go through buffers that are made once. start() posts everything, finish() waits and unpacks; compute in between.
//
// Messages are host memory. Where the host cannot touch the tensor, boxes are packed there and copied to pinned host
// memory on the thread's transfer stream, so kernels run meanwhile; the sends follow as soon as the copies are done,
// at the latest in finish(). Nothing but finish() waits for the device. Where the group has a way for device memory
// (Endpoint::device_link), packed boxes go through that instead, all messages of an exchange together.
//
// May know: base, layout, space, comm, tensor, move/plan.hpp.
// Example: Exchange<float, 5> halo(comm, plan, tag);  halo.start(x, x);  interior();  halo.finish();
#pragma once

#include <tessera/move/plan.hpp>
#include <tessera/tensor/tensor.hpp>

namespace tessera {

/// What one exchange moves on this rank, each time it runs.
struct Traffic {
  std::uint64_t messages = 0, bytes = 0;
  friend Traffic operator+(Traffic a, Traffic b) { return {a.messages + b.messages, a.bytes + b.bytes}; }
  friend bool operator==(Traffic, Traffic) = default;
};

template <class T, int N, class Space = host> class Exchange {
public:
  /// How values arrive. Forward only; the adjoint always adds.
  enum class Arrive { copy, add };

  Exchange() = default;
  Exchange(Communicator comm, BoxPlan<N> plan, int tag)
      : comm_(std::move(comm)), plan_(std::move(plan)), tag_(tag), sends_(messages_of(plan_.sends)),
        recvs_(messages_of(plan_.recvs)) {
    pending_.reserve(sends_.size() + recvs_.size());
  }

  bool empty() const { return sends_.empty() && recvs_.empty() && plan_.local.empty(); }
  const BoxPlan<N>& plan() const { return plan_; }
  /// What this rank sends each time.
  Traffic traffic() const { return {sends_.size(), std::uint64_t(plan_.sent_elements()) * sizeof(T)}; }
  /// What this rank sends each time the adjoint runs.
  Traffic adjoint_traffic() const {
    Traffic t{recvs_.size(), 0};
    for (const auto& m : recvs_) t.bytes += std::uint64_t(m.elements) * sizeof(T);
    return t;
  }

  /// Posts the forward exchange from `source` to `target` (they may be one tensor). Until finish(), the source's boxes
  /// are unchanged by the caller and the target's are untouched.
  void start(const Tensor<T, N, Space>& source, Tensor<T, N, Space>& target, Arrive how = Arrive::copy) {
    begin(how == Arrive::add, false, target);
    if constexpr (staged) return start_staged(source, how == Arrive::add);
    for (Message& m : recvs_) post_receive(m, how == Arrive::copy);
    for (Message& m : sends_) post_send(m, source);
    if (how == Arrive::copy)
      for (const Transfer<N>& t : plan_.local) Blocks<Space>::copy(source.view(t.from), target.view(t.to));
    else
      source_ = &source;
  }
  /// Posts the adjoint: the `to` boxes of `target` are added into the `from` boxes of `source`.
  void start_adjoint(const Tensor<T, N, Space>& target, Tensor<T, N, Space>& source) {
    begin(true, true, source);
    if constexpr (staged) return start_staged(target, true);
    for (Message& m : sends_) post_receive(m, false);
    for (Message& m : recvs_) post_send(m, target);
    source_ = &target;
  }
  /// Waits and puts what arrived where it belongs. Sums are formed in the order of the ranks, so replicas agree
  /// bitwise.
  void finish() {
    if (!target_) return;
    if constexpr (staged) send_staged();
    for (Request& r : pending_) r.wait();
    pending_.clear();
    if constexpr (staged) return finish_staged();
    put_in_place();
    target_ = nullptr;
    source_ = nullptr;
  }
  /// Moves pending messages on; call it between kernels.
  void poke() {
    if constexpr (staged)
      if (target_ && streams_.packed.ready()) send_staged();
    for (Request& r : pending_) r.test();
  }

  void run(const Tensor<T, N, Space>& source, Tensor<T, N, Space>& target, Arrive how = Arrive::copy) {
    start(source, target, how);
    finish();
  }
  void run_adjoint(const Tensor<T, N, Space>& target, Tensor<T, N, Space>& source) {
    start_adjoint(target, source);
    finish();
  }

private:
  /// True if messages go through pinned host memory.
  static constexpr bool staged = !Space::host_accessible;
  using Pinned = typename Space::pinned;

  struct Message {
    int peer = 0;
    std::size_t first = 0, last = 0; ///< the transfers it carries
    long elements = 0;
    bool in_place = false;
    Buffer<T, Space> buffer;   ///< made when first needed
    Buffer<T, Pinned> on_host; ///< what is sent or received, where that is not the buffer
  };
  /// Between the thread's streams: the tensor is ready for the transfer stream, boxes are packed and copied to the
  /// host, everything that arrived is in its place.
  struct Streams {
    typename Space::Event ready, packed, placed;
    bool sent = true;
  };

  /// Puts what arrived where it belongs.
  void put_in_place() {
    if (!adding_) {
      for (const Message& m : recvs_)
        if (!m.in_place)
          unpack(m, [](const View<const T, N>& from, const View<T, N>& to) { Blocks<Space>::copy(from, to); });
    } else {
      bool own_done = false;
      for (const Message& m : adjoint_ ? sends_ : recvs_) {
        if (!own_done && m.peer > comm_.rank()) add_own(), own_done = true;
        unpack(m, [](const View<const T, N>& from, const View<T, N>& to) { Blocks<Space>::add(from, to); });
      }
      if (!own_done) add_own();
    }
  }

  std::vector<Message>& outgoing() { return adjoint_ ? recvs_ : sends_; }
  std::vector<Message>& incoming() { return adjoint_ ? sends_ : recvs_; }
  /// The one box of a message, if it lies contiguous in the tensor: it needs no packing.
  template <class Field> auto contiguous(const Message& m, Field& t) const {
    auto v = t.view(leaving(m, m.first));
    return m.last - m.first == 1 && v.dense() ? v.data : nullptr;
  }
  void start_staged(const Tensor<T, N, Space>& from, bool adding) {
    if (empty()) {
      target_ = nullptr;
      return;
    }
    streams_.ready.record(Space::stream());
    streams_.ready.wait(Space::transfer_stream());
    const typename Space::Current current(Space::transfer_stream());
    comm::DeviceLink* const link = comm_.endpoint().device_link.get();
    std::vector<comm::DeviceMessage> leaving;
    for (Message& m : outgoing()) {
      const T* packed = contiguous(m, from);
      if (!packed) {
        pack(m, from);
        packed = m.buffer.data();
      }
      if (link) {
        leaving.push_back({m.peer, const_cast<T*>(packed), std::size_t(m.elements) * sizeof(T)});
        continue;
      }
      const std::span<T> out = host_room(m);
      Space::copy_to_host(out.data(), packed, out.size_bytes(), Space::stream());
    }
    if (link)
      start_linked(*link, leaving, adding);
    else {
      streams_.packed.record(Space::stream());
      streams_.sent = false;
      streams_.placed.synchronize(); // the last exchange has taken what arrived out of the host's memory
      for (Message& m : incoming()) pending_.push_back(comm_.irecv(m.peer, tag_, host_room(m)));
    }
    if (adding)
      source_ = &from;
    else
      for (const Transfer<N>& t : plan_.local) Blocks<Space>::copy(from.view(t.from), target_->view(t.to));
  }
  /// All messages at once, device to device, behind the packing.
  void start_linked(comm::DeviceLink& link, const std::vector<comm::DeviceMessage>& leaving, bool adding) {
    std::vector<comm::DeviceMessage> arriving;
    for (Message& m : incoming()) {
      T* to = adding ? nullptr : contiguous(m, *target_);
      m.in_place = to != nullptr;
      if (!to) to = room(m).data();
      arriving.push_back({m.peer, to, std::size_t(m.elements) * sizeof(T)});
    }
    if (!leaving.empty() || !arriving.empty()) pending_.emplace_back(link.exchange(leaving, arriving, tag_));
  }
  void send_staged() {
    if (std::exchange(streams_.sent, true)) return;
    streams_.packed.synchronize();
    for (Message& m : outgoing())
      pending_.push_back(comm_.isend(m.peer, tag_, std::span<const T>(m.on_host.data(), m.on_host.size())));
  }
  void finish_staged() {
    {
      const typename Space::Current current(Space::transfer_stream());
      for (Message& m : incoming()) {
        if (comm_.endpoint().device_link) break; // it has arrived where it belongs
        T* to = adding_ ? nullptr : contiguous(m, *target_);
        m.in_place = to != nullptr;
        if (!to) to = room(m).data();
        Space::copy_from_host(to, m.on_host.data(), m.on_host.bytes(), Space::stream());
      }
      put_in_place();
      streams_.placed.record(Space::stream());
    }
    streams_.placed.wait(Space::stream());
    target_ = nullptr;
    source_ = nullptr;
  }
  static std::span<T> host_room(Message& m) {
    if (m.on_host.size() == 0) m.on_host = Buffer<T, Pinned>(std::size_t(m.elements));
    return {m.on_host.data(), m.on_host.size()};
  }

  static std::vector<Message> messages_of(const std::vector<Transfer<N>>& transfers) {
    std::vector<Message> all;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (all.empty() || all.back().peer != transfers[i].peer) {
        all.emplace_back();
        all.back().peer = transfers[i].peer;
        all.back().first = i;
      }
      all.back().last = i + 1;
      all.back().elements += transfers[i].from.volume();
    }
    return all;
  }
  void begin(bool adding, bool adjoint, Tensor<T, N, Space>& target) {
    finish();
    adding_ = adding;
    adjoint_ = adjoint;
    target_ = &target;
  }
  /// The box a transfer touches in the tensor that values leave (sending) or reach (receiving).
  const Box<N>& leaving(const Message& m, std::size_t i) const {
    return &m >= recvs_.data() && &m < recvs_.data() + recvs_.size() ? plan_.recvs[i].to : plan_.sends[i].from;
  }
  static std::span<T> room(Message& m) {
    if (m.buffer.size() == 0) m.buffer = Buffer<T, Space>(std::size_t(m.elements));
    return {m.buffer.data(), m.buffer.size()};
  }
  void post_receive(Message& m, bool copying) {
    m.in_place = false;
    if (copying && m.last - m.first == 1) {
      const View<T, N> v = target_->view(leaving(m, m.first));
      if (v.dense()) {
        m.in_place = true;
        pending_.push_back(comm_.irecv(m.peer, tag_, std::span<T>(v.data, std::size_t(m.elements))));
        return;
      }
    }
    pending_.push_back(comm_.irecv(m.peer, tag_, room(m)));
  }
  void post_send(Message& m, const Tensor<T, N, Space>& from) {
    if (m.last - m.first == 1) {
      const View<const T, N> v = from.view(leaving(m, m.first));
      if (v.dense()) {
        pending_.push_back(comm_.isend(m.peer, tag_, std::span<const T>(v.data, std::size_t(m.elements))));
        return;
      }
    }
    pack(m, from);
    pending_.push_back(comm_.isend(m.peer, tag_, std::span<const T>(m.buffer.data(), m.buffer.size())));
  }
  void pack(Message& m, const Tensor<T, N, Space>& from) {
    T* at = room(m).data();
    for (std::size_t i = m.first; i < m.last; ++i) {
      const View<const T, N> v = from.view(leaving(m, i));
      Blocks<Space>::copy(v, View<T, N>(at, v.extents));
      at += v.size();
    }
  }
  template <class F> void unpack(const Message& m, F&& put) {
    const T* at = m.buffer.data();
    for (std::size_t i = m.first; i < m.last; ++i) {
      const View<T, N> v = target_->view(leaving(m, i));
      put(View<const T, N>(at, v.extents), v);
      at += v.size();
    }
  }
  void add_own() {
    for (const Transfer<N>& t : plan_.local)
      if (adjoint_)
        Blocks<Space>::add(source_->view(t.to), target_->view(t.from));
      else
        Blocks<Space>::add(source_->view(t.from), target_->view(t.to));
  }

  Communicator comm_;
  BoxPlan<N> plan_;
  int tag_ = 0;
  std::vector<Message> sends_, recvs_;
  Streams streams_;
  std::vector<Request> pending_; // after the messages, so before them to go
  const Tensor<T, N, Space>* source_ = nullptr;
  Tensor<T, N, Space>* target_ = nullptr;
  bool adding_ = false, adjoint_ = false;
};

} // namespace tessera
