// comm/sum.hpp: Sum, an all-reduce in place of elements in any memory space.
//
// Transports read host memory. Where the elements lie elsewhere they are copied to pinned host memory on the thread's
// transfer stream, reduced there and copied back; begin() only starts that, and post(), which is collective, hands the
// numbers over. Points at which post() is called are the same on every rank, so reductions never overtake each other.
// Where the group has a way for device memory (Endpoint::device_link), that does it all.
//
// May know: base, space, comm.
// Example: Sum<float, Space> s;  s.begin(ranks, gradients, on_host);  ...  s.wait();
#pragma once

#include <tessera/comm/communicator.hpp>
#include <tessera/space/memory.hpp>

namespace tessera {

template <class T, class Space> class Sum {
public:
  static constexpr bool staged = !Space::host_accessible;

  /// Starts to sum `data` over the ranks, whose communicator stays where it is. `on_host` is pinned memory for as many
  /// elements; null where the host may touch `data`. Both stay until wait() has returned, `on_host` until the copy back
  /// has run as well.
  void begin(const Communicator& ranks, std::span<T> data, T* on_host) {
    if (ranks.size() == 1) return;
    if constexpr (staged) {
      if (ranks.endpoint().device_link) {
        pending_ = Request(ranks.endpoint().device_link->all_reduce(data.data(), data.size(), comm::element_of<T>(),
                                                                    comm::Reduce::sum));
        return;
      }
      ranks_ = &ranks, data_ = data, on_host_ = on_host;
      const auto transfer = Space::transfer_stream();
      copied_.record(Space::stream());
      copied_.wait(transfer);
      Space::copy_to_host(on_host, data.data(), data.size_bytes(), transfer);
      copied_.record(transfer);
      state_ = State::copying;
    } else
      pending_ = ranks.iall_reduce(data);
  }
  /// Hands the elements over to the ranks, unless that is done. Collective.
  void post() {
    if constexpr (staged)
      if (state_ == State::copying) {
        copied_.synchronize();
        pending_ = ranks_->iall_reduce(std::span<T>(on_host_, data_.size()));
        state_ = State::summing;
      }
  }
  /// Moves the messages on.
  void test() { pending_.test(); }
  /// Posts and waits; afterwards the thread's stream finds the sums in `data`. Collective.
  void wait() {
    post();
    pending_.wait();
    if constexpr (staged)
      if (std::exchange(state_, State::idle) == State::summing)
        Space::copy_from_host(data_.data(), on_host_, data_.size_bytes(), Space::stream());
  }

private:
  enum class State : int { idle, copying, summing };
  const Communicator* ranks_ = nullptr;
  std::span<T> data_;
  T* on_host_ = nullptr;
  typename Space::Event copied_;
  State state_ = State::idle;
  Request pending_;
};

} // namespace tessera
