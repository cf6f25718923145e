// The emulated device: the host faults on its memory, streams are ordered by events alone, kernels run in any order,
// freed memory and steps over the end fault, and what the host gave wrongly is said by name.
#include <array>
#include <csignal>
#include <doctest/doctest.h>
#include <numeric>
#include <sys/wait.h>
#include <tessera/space/emulated.hpp>
#include <tessera/space/host_access.hpp>
#include <unistd.h>

using namespace tessera;

namespace {

#if defined(__SANITIZE_THREAD__) // reports the races that a test makes, and allows no threads in child processes
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

using Device = emulated_device;
template <class T> using Memory = Buffer<T, Device>;

/// The signal that ends a child process which runs f(); 0 if it returns.
template <class F> int signal_of(const F& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int s : {SIGSEGV, SIGBUS}) std::signal(s, SIG_DFL); // doctest and sanitizers would report it
    f();
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// Keeps a stream busy until it is told to go on.
class Gate {
public:
  explicit Gate(const Device::Stream& s) {
    s.add([open = open_] { open->wait(0); });
  }
  ~Gate() {
    open_->store(1);
    open_->notify_all();
  }

private:
  std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

struct Square {
  const int* from;
  int* to;
  template <class V> void operands(const V& visit) { visit(from), visit(to); }
  void operator()(long i) const { to[i] = from[i] * from[i]; }
};

/// Writes down the order in which elements run.
struct Note {
  int* at;
  std::vector<long>* seen;
  std::mutex* mutex;
  template <class V> void operands(const V& visit) { visit(at); }
  void operator()(long i) const {
    const std::lock_guard lock(*mutex);
    seen->push_back(i);
  }
};

/// Puts the settings back.
struct Settings {
  int delay_one_in = emulation().delay_one_in, longest = emulation().longest_delay_us;
  ~Settings() {
    emulation().delay_one_in = delay_one_in, emulation().longest_delay_us = longest;
    emulation().waits_count = true;
  }
};

std::vector<int> numbers(std::size_t count) {
  std::vector<int> v(count);
  std::iota(v.begin(), v.end(), 1);
  return v;
}

} // namespace

TEST_CASE("the host faults when it reads or writes device memory, and nowhere else") {
  Memory<int> b(1000);
  const std::vector<int> mine(1000);
  volatile int* at = b.data();
  CHECK(signal_of([&] { static_cast<void>(mine[7]); }) == 0);
  CHECK(signal_of([&] { static_cast<void>(at[0]); }) == SIGSEGV);
  CHECK(signal_of([&] { at[999] = 1; }) == SIGSEGV);
  CHECK(read_back<Device>(std::span(b.data(), b.size())) == mine); // by name
}

TEST_CASE("buffers in device memory are zero, and copies of them deep") {
  for (const std::size_t count : {1u, 63u, 1024u, 5000u}) {
    Memory<int> a(count);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % Device::alignment == 0);
    CHECK(read_back<Device>(std::span(a.data(), count)) == std::vector<int>(count, 0));
    const std::vector<int> v = numbers(count);
    write_from_host<Device>(a.data(), v.data(), count);
    const Memory<int> b = a;
    a = Memory<int>(count);
    CHECK(read_back<Device>(std::span(b.data(), count)) == v);
    CHECK(read_back<Device>(std::span(a.data(), count)) == std::vector<int>(count, 0));
  }
}

TEST_CASE("a kernel runs each element once, in another order each time") {
  constexpr std::size_t count = 3000;
  const std::vector<int> v = numbers(count);
  Memory<int> a(count), b(count);
  write_from_host<Device>(a.data(), v.data(), count);
  device::launch<Device>(long(count), Square{a.data(), b.data()});
  const std::vector<int> got = read_back<Device>(std::span(b.data(), count));
  bool right = true;
  for (std::size_t i = 0; i < count; ++i) right = right && got[i] == v[i] * v[i];
  CHECK(right);

  std::vector<std::vector<long>> orders;
  std::mutex mutex;
  for (int k = 0; k < 8; ++k) {
    std::vector<long> seen;
    device::launch<Device>(100, Note{b.data(), &seen, &mutex});
    Device::stream().synchronize();
    orders.push_back(seen);
    std::ranges::sort(seen);
    std::vector<long> want(100);
    std::iota(want.begin(), want.end(), 0);
    CHECK(seen == want);
  }
  CHECK(std::ranges::any_of(orders, [&](const auto& o) { return o != orders.front(); }));
}

TEST_CASE("strided blocks are copied, added and filled as on the host") {
  const Extents<5> e{{2, 3, 4, 5, 6}};
  const Box<5> part{{{0, 0, 1, 1, 0}}, {{2, 3, 3, 4, 5}}};
  const std::size_t count = std::size_t(product(e));
  const std::vector<int> x = numbers(count);
  std::vector<int> y = numbers(count);
  Memory<int> dx(count), dy(count);
  write_from_host<Device>(dx.data(), x.data(), count);
  write_from_host<Device>(dy.data(), y.data(), count);
  const auto check = [&] { CHECK(read_back<Device>(std::span(dy.data(), count)) == y); };
  const auto both = [&](const auto& f) {
    f(Blocks<host>(), View<const int, 5>(x.data(), e), View<int, 5>(y.data(), e));
    f(Blocks<Device>(), View<const int, 5>(dx.data(), e), View<int, 5>(dy.data(), e));
    check();
  };
  const Box<5> other = shifted(part, {{0, 0, 1, 0, 1}});
  both([&](auto blocks, auto from, auto to) { blocks.copy(from.box(part), to.box(other)); });
  both([&](auto blocks, auto from, auto to) { blocks.add(from.box(other), to.box(part)); });
  both([&](auto blocks, auto, auto to) { blocks.fill(to.box(part), -7); });
  both([&](auto blocks, auto from, auto to) { blocks.copy(from, to); });
  both([&](auto blocks, auto from, auto to) { blocks.copy(from.box({}), to.box({})); });
}

TEST_CASE("streams: work of one in order, of two in none; an event orders them, and without it the order is lost") {
  Memory<int> b(4);
  Device::stream().synchronize();
  const std::array<int, 4> new_values{5, 6, 7, 8};
  const Device::Stream writer, reader;
  for (const bool waits : {true, false}) {
    Device::zero(b.data(), b.bytes(), writer);
    writer.synchronize();
    std::array<int, 4> seen{-1, -1, -1, -1};
    Device::Event written;
    {
      const Gate late(writer);
      Device::copy_from_host(b.data(), new_values.data(), b.bytes(), writer);
      written.record(writer);
      CHECK(!written.ready());
      if (waits) written.wait(reader); // the line that a program must not forget
      Device::copy_to_host(seen.data(), b.data(), b.bytes(), reader);
      if (!waits) reader.synchronize(); // the writer is still held up
    }
    written.synchronize();
    CHECK(written.ready());
    reader.synchronize();
    CHECK((seen == new_values) == waits);
  }
  const Device::Event never;
  CHECK(never.ready());
  never.wait(reader);
  never.synchronize();
  reader.synchronize();
}

TEST_CASE("with events switched off, readers that wait for them see old values: the delays find a missing wait") {
  Settings settings;
  emulation().delay_one_in = 1, emulation().longest_delay_us = 300;
  Memory<int> b(1);
  Device::stream().synchronize();
  const auto wrong_of_50 = [&] {
    const Device::Stream writer, reader;
    std::vector<int> values = numbers(50), seen(50);
    for (std::size_t k = 0; k < 50; ++k) {
      Device::Event written, read;
      Device::copy_from_host(b.data(), &values[k], 4, writer);
      written.record(writer);
      written.wait(reader);
      Device::copy_to_host(&seen[k], b.data(), 4, reader);
      read.record(reader);
      read.wait(writer);
    }
    reader.synchronize(), writer.synchronize();
    int wrong = 0;
    for (std::size_t k = 0; k < 50; ++k) wrong += seen[k] != values[k];
    return wrong;
  };
  CHECK(wrong_of_50() == 0);
  if (sanitized) return;
  emulation().waits_count = false;
  CHECK(wrong_of_50() > 5);
}

TEST_CASE("freeing waits for the work of the thread's streams; afterwards even kernels fault" *
          doctest::skip(sanitized)) {
  const auto run = [](long reach) {
    Memory<int> keeps(1);
    auto freed = std::make_unique<Memory<int>>(1024);
    int* const at = freed->data();
    std::vector<int> seen(1024, -1);
    {
      const Device::Current current(Device::transfer_stream());
      Device::stream().add([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      Device::copy_to_host(seen.data(), at, freed->bytes(), Device::stream());
    }
    freed.reset();
    Device::stream().synchronize();
    Device::transfer_stream().synchronize();
    if (seen != std::vector<int>(1024, 0)) std::abort(); // the copy saw what was there before
    if (reach > 0) {
      device::launch<Device>(reach, Square{at, keeps.data()});
      Device::stream().synchronize();
    }
  };
  CHECK(signal_of([&] { std::thread(run, 0L).join(); }) == 0);
  CHECK(signal_of([&] { std::thread(run, 1L).join(); }) == SIGSEGV);
}

TEST_CASE("pinned memory may be freed at once: that waits for the copies that use it") {
  Memory<int> b(1024);
  const std::vector<int> want = numbers(1024);
  {
    const Device::Current current(Device::transfer_stream());
    Buffer<int, Device::pinned> mine(1024);
    std::ranges::copy(want, mine.data());
    Device::stream().add([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    Device::copy_from_host(b.data(), mine.data(), mine.bytes(), Device::stream());
  }
  Device::transfer_stream().synchronize();
  CHECK(read_back<Device>(std::span(b.data(), b.size())) == want);
}

TEST_CASE("a kernel that steps over the end of a block faults" * doctest::skip(sanitized)) {
  const auto run = [](long elements) {
    Memory<int> a(64), b(64); // 256 bytes: the end of a page
    device::launch<Device>(elements, Square{a.data(), b.data()});
    Device::stream().synchronize();
  };
  CHECK(signal_of([&] { std::thread(run, 64L).join(); }) == 0);
  CHECK(signal_of([&] { std::thread(run, 65L).join(); }) == SIGSEGV);
}

TEST_CASE("memory of the host in a kernel or copy is refused where it is given") {
  Memory<int> b(4);
  int mine[4] = {};
  CHECK_THROWS_WITH_AS(device::launch<Device>(4, Square{mine, b.data()}),
                       doctest::Contains("memory that is not its own"), usage_error);
  CHECK_THROWS_AS(Device::copy(b.data(), mine, 16), usage_error);
  CHECK_THROWS_AS(Device::copy_to_host(mine, mine, 16, Device::stream()), usage_error);
}

TEST_CASE("an error in a stream is thrown by its next call, once") {
  const Device::Stream s;
  s.add([] { throw usage_error("in the stream"); });
  CHECK_THROWS_WITH_AS(s.synchronize(), "in the stream", usage_error);
  CHECK_NOTHROW(s.synchronize());
}

TEST_CASE("more than the device has: a usage_error that says how much was asked for") {
  CHECK_THROWS_WITH_AS(Memory<double>(std::size_t{1} << 40), doctest::Contains("bytes of the emulated device"),
                       usage_error);
}

TEST_CASE("every thread has its own streams; they end with it, after their work") {
  std::vector<std::vector<int>> seen(4, std::vector<int>(100));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&seen, t] {
      Memory<int> b(100);
      Blocks<Device>::fill(View<int, 1>(b.data(), {{100}}), int(t));
      Device::copy_to_host(seen[t].data(), b.data(), b.bytes(), Device::stream());
    }); // nobody waits
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < 4; ++t) CHECK(seen[t] == std::vector<int>(100, int(t)));
}
