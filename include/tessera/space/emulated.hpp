// space/emulated.hpp: emulated_device, a device without a device: for tests of everything that runs on one.
//
// Its addresses are reserved but never readable: a host that follows one faults at once. The memory itself lies a fixed
// distance away, where only the worker threads of streams go. A stream is a queue of work and a thread that runs it,
// after random delays; streams are ordered by events only, so a missing wait gives wrong numbers, and ThreadSanitizer
// reports it as a data race. The elements of a kernel run in random order, at times in two threads.
//
// Who owns what:
//  * A block belongs to whoever allocated it (Buffer). Freeing is ordered behind all work that the freeing thread has
//    given to its two streams; work on other streams must have ended. Freed memory faults, even in kernels.
//  * Each thread has two streams of its own, made when first asked for, which end with it after their work is done.
//    Handles are values and keep a stream alive.
//  * Host memory given to a copy stays as it is until the stream has run the copy; pinned memory sees to that when it
//  is
//    freed. An error in a stream is thrown by its next call.
//
// May know: base, space.
// Example: Buffer<float, emulated_device> b(64);  Blocks<emulated_device>::fill(View<float, 1>(b.data(), {{64}}), 1.F);
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <tessera/space/device_blocks.hpp>
#include <thread>
#include <vector>

namespace tessera {

/// How unruly the emulated device is. Set it while its streams are idle.
struct EmulationSettings {
  std::atomic<std::uint64_t> seed{1};
  std::atomic<int> delay_one_in{8};      ///< of the pieces of work in a queue; 0: none
  std::atomic<int> longest_delay_us{50}; ///< each delay is drawn from 0 to this
  std::atomic<bool> waits_count{true};   ///< false: streams do not wait for events. Tests show that they notice
  std::atomic<std::uint64_t> memory{std::uint64_t{1} << 36}; ///< bytes that it says it has
};
inline EmulationSettings& emulation() {
  static EmulationSettings settings;
  return settings;
}

namespace detail {

/// The address range of the emulated device: `reach` bytes that nobody may touch, and as many behind them that hold the
/// contents.
class EmulatedMemory {
public:
  static constexpr std::size_t reach = std::size_t{1} << 36, page = 4096, alignment = 256;

  static EmulatedMemory& instance() {
    static EmulatedMemory* memory = new EmulatedMemory; // never destroyed: buffers of static objects come back late
    return *memory;
  }
  void* allocate(std::size_t bytes) {
    const std::size_t room = room_for(bytes);
    std::byte* at = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (auto it = free_.find(room); it != free_.end() && !it->second.empty()) {
        at = it->second.back();
        it->second.pop_back();
      } else if (room + page <= reach - used_) {
        at = base_ + used_;
        used_ += room + page; // a page that stays closed between any two blocks
      }
    }
    if (!at || ::mprotect(at + reach, room, PROT_READ | PROT_WRITE) != 0)
      throw usage_error(text("out of memory: ", bytes, " bytes of the emulated device are not to be had; ",
                             "use more ranks or a smaller sample or batch"));
    std::memset(at + reach, 0xFF, room); // not a number, to whoever reads it before it is written
    // The block ends where its pages end, so that a step too far falls into the closed page.
    return at + (room - (bytes + alignment - 1) / alignment * alignment);
  }
  void release(void* p, std::size_t bytes) {
    const std::size_t room = room_for(bytes);
    std::byte* at = base_ + std::size_t(static_cast<std::byte*>(p) - base_) / page * page;
    ::madvise(at + reach, room, MADV_DONTNEED);
    ::mprotect(at + reach, room, PROT_NONE);
    const std::lock_guard lock(mutex_);
    free_[room].push_back(at);
  }
  /// Where a worker finds the contents of a device address. Throws usage_error for any other address.
  template <class T> T* contents(T* p) const {
    if (!p) return p;
    const auto at = reinterpret_cast<std::uintptr_t>(p), first = reinterpret_cast<std::uintptr_t>(base_);
    TESSERA_REQUIRE(at >= first && at < first + reach, "emulated device: a kernel or copy was given memory that is not "
                                                       "its own; copy from the host first");
    return reinterpret_cast<T*>(at + reach);
  }

private:
  EmulatedMemory() {
    void* p = ::mmap(nullptr, 2 * reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw usage_error("emulated device: its range of addresses is not to be had");
    base_ = static_cast<std::byte*>(p);
  }
  static std::size_t room_for(std::size_t bytes) { return (bytes + page - 1) / page * page; }

  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  std::map<std::size_t, std::vector<std::byte*>> free_; ///< by size
};

/// Work in order, run by a thread of its own.
class EmulatedQueue {
public:
  using Work = std::function<void(std::minstd_rand&)>;

  EmulatedQueue() : random_(seed()), thread_([this] { run(); }) {}
  EmulatedQueue(const EmulatedQueue&) = delete;
  EmulatedQueue& operator=(const EmulatedQueue&) = delete;
  /// Ends after the work it holds.
  ~EmulatedQueue() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  /// Throws what failed in the queue before.
  void add(Work work) {
    {
      const std::lock_guard lock(mutex_);
      rethrow();
    }
    add_anyway(std::move(work));
  }
  void add_anyway(Work work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void synchronize() {
    drain();
    const std::lock_guard lock(mutex_);
    rethrow();
  }
  /// Waits for all work, whatever became of it.
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
  }

private:
  static std::minstd_rand::result_type seed() {
    static std::atomic<std::uint64_t> queues{0};
    return static_cast<std::minstd_rand::result_type>(emulation().seed * 7919 + ++queues);
  }
  void rethrow() {
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
      if (work_.empty()) return;
      Work work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr failed;
      try {
        delay();
        work(random_);
      } catch (...) { failed = std::current_exception(); }
      work = nullptr;
      lock.lock();
      if (failed && !failed_) failed_ = failed;
      busy_ = false;
      changed_.notify_all();
    }
  }
  void delay() {
    const int one_in = emulation().delay_one_in, longest = emulation().longest_delay_us;
    if (one_in > 0 && random_() % unsigned(one_in) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % unsigned(longest + 1)));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::exception_ptr failed_;
  bool busy_ = false, ending_ = false;
  std::minstd_rand random_;
  std::thread thread_;
};

} // namespace detail

struct emulated_device {
  static constexpr std::string_view name = "emulated device";
  static constexpr bool host_accessible = false;
  static constexpr std::size_t alignment = detail::EmulatedMemory::alignment;

  /// Host memory for copies. Freeing it waits for the thread's streams, which may still copy from and to it.
  struct pinned : host {
    static constexpr std::string_view name = "pinned host memory of the emulated device";
    static void deallocate(void* p, std::size_t bytes) noexcept {
      drain();
      host::deallocate(p, bytes);
    }
  };

  class Stream {
  public:
    /// A new stream.
    Stream() : queue_(std::make_shared<detail::EmulatedQueue>()) {}
    /// Waits for all work it was given.
    void synchronize() const { queue_->synchronize(); }
    /// Runs f() in the stream, behind all it was given before.
    template <class F> void add(F f) const {
      queue_->add([f = std::move(f)](std::minstd_rand&) mutable { f(); });
    }
    friend bool operator==(const Stream&, const Stream&) = default;

  private:
    friend struct emulated_device;
    explicit Stream(std::shared_ptr<detail::EmulatedQueue> q) : queue_(std::move(q)) {}
    std::shared_ptr<detail::EmulatedQueue> queue_;
  };

  /// Waiting for an event that was never recorded is no wait.
  class Event {
  public:
    void record(const Stream& s) {
      auto state = std::make_shared<State>();
      state_ = state;
      s.queue_->add_anyway([state](std::minstd_rand&) {
        const std::lock_guard lock(state->mutex);
        state->done = true;
        state->changed.notify_all();
      });
    }
    /// What the stream is given from now on runs after the event as it was last recorded.
    void wait(const Stream& s) const {
      if (emulation().waits_count) wait_anyway(s);
    }
    bool ready() const {
      if (!state_) return true;
      const std::lock_guard lock(state_->mutex);
      return state_->done;
    }
    void synchronize() const {
      if (state_) state_->wait();
    }

  private:
    friend struct emulated_device;
    void wait_anyway(const Stream& s) const {
      if (state_) s.queue_->add_anyway([state = state_](std::minstd_rand&) { state->wait(); });
    }
    struct State {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return done; });
      }
    };
    std::shared_ptr<State> state_;
  };

  static std::string device_name() { return std::string(name); }
  /// Bytes that can be had.
  static std::uint64_t available_memory() {
    return std::min<std::uint64_t>(emulation().memory, tessera::available_memory());
  }

  static Stream stream() { return own().current; }
  static Stream transfer_stream() { return own().transfer; }
  /// While it lives, the calling thread's kernels and copies go to another stream.
  class Current {
  public:
    explicit Current(const Stream& s) : before_(std::exchange(own().current, s)) {}
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() { own().current = before_; }

  private:
    Stream before_;
  };

  static void* allocate(std::size_t bytes) { return detail::EmulatedMemory::instance().allocate(bytes); }
  static void deallocate(void* p, std::size_t bytes) noexcept {
    if (!p) return;
    const auto release = [p, bytes] { detail::EmulatedMemory::instance().release(p, bytes); };
    if (ended()) return release(); // the streams of this thread have ended, with all their work
    const Own& mine = own();
    for (const Stream& s : {mine.transfer, mine.current})
      if (!(s == mine.compute)) {
        Event done;
        done.record(s);
        done.wait_anyway(mine.compute);
      }
    mine.compute.queue_->add_anyway([release](std::minstd_rand&) { release(); });
  }
  static void zero(void* p, std::size_t bytes, const Stream& s) {
    if (bytes) s.add([p = inside(p), bytes] { std::memset(p, 0, bytes); });
  }
  static void copy(void* to, const void* from, std::size_t bytes, const Stream& s) {
    if (bytes) s.add([to = inside(to), from = inside(from), bytes] { std::memcpy(to, from, bytes); });
  }
  static void copy_from_host(void* to, const void* from, std::size_t bytes, const Stream& s) {
    if (bytes) s.add([to = inside(to), from, bytes] { std::memcpy(to, from, bytes); });
  }
  static void copy_to_host(void* to, const void* from, std::size_t bytes, const Stream& s) {
    if (bytes) s.add([to, from = inside(from), bytes] { std::memcpy(to, from, bytes); });
  }
  static void zero(void* p, std::size_t bytes) { zero(p, bytes, stream()); }
  static void copy(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes, stream()); }

  /// Runs f(0), ..., f(count - 1) in the stream, in random order, some at the same time.
  template <class F> static void launch(const Stream& s, long count, F f) {
    f.operands([](auto*& p) { p = inside(p); });
    s.queue_->add([f, count](std::minstd_rand& random) { run_in_any_order(f, count, random); });
  }

private:
  struct Own {
    Stream compute, transfer, current = compute;
    ~Own() {
      compute = transfer = current = Stream(nullptr); // waits for the work of all
      ended() = true;
    }
  };
  static Own& own() {
    thread_local Own streams;
    return streams;
  }
  static bool& ended() {
    thread_local bool over = false;
    return over;
  }
  static void drain() noexcept {
    if (ended()) return;
    for (const Stream* s : {&own().compute, &own().transfer, &own().current}) s->queue_->drain();
  }
  template <class T> static T* inside(T* p) { return detail::EmulatedMemory::instance().contents(p); }

  template <class F> static void run_in_any_order(const F& f, long count, std::minstd_rand& random) {
    constexpr long most = 8, worth_a_thread = 256;
    const long pieces = std::min(most, count);
    std::array<long, std::size_t(most)> order{};
    for (long k = 0; k < pieces; ++k) order[std::size_t(k)] = k;
    std::shuffle(order.begin(), order.begin() + pieces, random);
    const auto run = [&f, &order, count, pieces](long first, long last) {
      for (long k = first; k < last; ++k) {
        const long piece = order[std::size_t(k)];
        for (long i = (piece + 1) * count / pieces; i-- > piece * count / pieces;) f(i);
      }
    };
    if (count < worth_a_thread || random() % 4 != 0) return run(0, pieces);
    std::thread other(run, 0, pieces / 2);
    run(pieces / 2, pieces);
    other.join();
  }
};

} // namespace tessera
