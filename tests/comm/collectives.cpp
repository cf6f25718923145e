// Reductions, broadcast, gathering, barrier and groups.
#include "../support/ranks.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

using namespace tessera;
using comm::Reduce;
using test::on_ranks;

namespace {

/// A small whole number that depends on rank and position, so that sums are exact in every type.
template <class T> T entry(int rank, std::size_t i) {
  return static_cast<T>((7 * rank + static_cast<int>(i % 13)) % 23);
}

template <class T> void reduces_exactly(const Communicator& c, std::size_t count) {
  for (const Reduce how : {Reduce::sum, Reduce::min, Reduce::max}) {
    std::vector<T> data(count), expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      data[i] = expected[i] = entry<T>(c.rank(), i);
      T sum = 0, low = entry<T>(0, i), high = low;
      for (int r = 0; r < c.size(); ++r) {
        sum = static_cast<T>(sum + entry<T>(r, i));
        low = std::min(low, entry<T>(r, i));
        high = std::max(high, entry<T>(r, i));
      }
      expected[i] = how == Reduce::sum ? sum : how == Reduce::min ? low : high;
    }
    c.iall_reduce(std::span(data), how).wait();
    CHECK(data == expected);
  }
}

/// Arrays of any size take the two rounds of messages for the time of its life, where the transport has them.
class AlwaysDirect {
public:
#if TESSERA_WITH_MPI
  AlwaysDirect() { comm::detail::direct_reduction.bytes = 1; }
  ~AlwaysDirect() { comm::detail::direct_reduction = before_; }
#else
  AlwaysDirect() {}
#endif
  AlwaysDirect(const AlwaysDirect&) = delete;

private:
#if TESSERA_WITH_MPI
  comm::detail::DirectReduction before_ = comm::detail::direct_reduction;
#endif
};

} // namespace

TEST_CASE("all_reduce in two rounds of messages: every type and operation, arrays with fewer elements than ranks") {
  const AlwaysDirect direct;
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{5000}})
    on_ranks([count](const Communicator& c) {
      reduces_exactly<float>(c, count);
      reduces_exactly<double>(c, count);
      reduces_exactly<std::int64_t>(c, count);
      reduces_exactly<std::uint8_t>(c, count);
    });
}

TEST_CASE("all_reduce of an array that is large enough for two rounds of messages") {
  on_ranks([](const Communicator& c) { reduces_exactly<float>(c, (std::size_t{64} << 10) + 7); });
}

TEST_CASE("all_reduce: every element type, every operation, sizes from none to above one block") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{5000}})
    on_ranks([count](const Communicator& c) {
      reduces_exactly<float>(c, count);
      reduces_exactly<double>(c, count);
      reduces_exactly<std::int32_t>(c, count);
      reduces_exactly<std::int64_t>(c, count);
      reduces_exactly<std::uint8_t>(c, count);
    });
}

TEST_CASE("all_reduce: bytes wrap, large integers keep every bit, negative numbers order well") {
  on_ranks([](const Communicator& c) {
    CHECK(c.all_reduce(std::uint8_t{200}) == static_cast<std::uint8_t>(200 * c.size()));
    std::vector<std::uint8_t> bytes(1000, 200); // long enough for vector instructions
    c.iall_reduce(std::span(bytes)).wait();
    CHECK(bytes == std::vector<std::uint8_t>(1000, static_cast<std::uint8_t>(200 * c.size())));
    std::vector<std::int32_t> words(1000, 2'000'000'000);
    c.iall_reduce(std::span(words)).wait();
    CHECK(words == std::vector<std::int32_t>(1000, static_cast<std::int32_t>(2'000'000'000LL * c.size())));
    const std::int64_t large = (std::int64_t{1} << 53) + 1; // not a double
    CHECK(c.all_reduce(large) == large * c.size());
    CHECK(c.all_reduce(-c.rank(), Reduce::min) == 1 - c.size());
    CHECK(c.all_reduce(-1.5f - static_cast<float>(c.rank()), Reduce::max) == -1.5f);
    CHECK(c.all_reduce(c.rank() == 0 ? -std::numeric_limits<double>::infinity() : 0.0) ==
          -std::numeric_limits<double>::infinity());
  });
}

TEST_CASE("all_reduce of floating point gives bitwise the same on all ranks, time after time") {
  constexpr unsigned seed = 20240;
  if (test::environment().world().rank() == 0) MESSAGE("seed ", seed);
  on_ranks([](const Communicator& c) {
    constexpr std::size_t count = 3000;
    // Magnitudes from 1e-8 to 1e8: any other order of addition would show.
    const auto random = [](int rank) {
      std::mt19937 bits(seed + static_cast<unsigned>(rank));
      std::uniform_real_distribution<float> mantissa(-1, 1), exponent(-8, 8);
      std::vector<float> v(count);
      for (auto& x : v) x = mantissa(bits) * std::pow(10.f, exponent(bits));
      return v;
    };
    std::vector<float> first;
    for (int repeat = 0; repeat < 5; ++repeat) {
      auto data = random(c.rank());
      c.iall_reduce(std::span(data)).wait();
      if (repeat == 0) first = data;
      CHECK(std::memcmp(first.data(), data.data(), count * sizeof(float)) == 0);
    }
    bool equal = true;
    for (const auto& other : c.all_gather(std::span<const float>(first)))
      equal = equal && std::memcmp(other.data(), first.data(), count * sizeof(float)) == 0;
    CHECK(equal);
    if (c.transport() == "threads") {
      auto in_rank_order = random(0);
      for (int r = 1; r < c.size(); ++r) {
        const auto next = random(r);
        for (std::size_t i = 0; i < count; ++i) in_rank_order[i] += next[i];
      }
      CHECK(std::memcmp(first.data(), in_rank_order.data(), count * sizeof(float)) == 0);
    }
  });
}

TEST_CASE("several reductions at once, completed in the opposite order, between messages") {
  std::optional<AlwaysDirect> direct;
  SUBCASE("as they come") {}
  SUBCASE("in two rounds of messages") { direct.emplace(); }
  on_ranks([](const Communicator& c) {
    constexpr std::size_t n = 8;
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    std::array<std::vector<double>, n> data;
    std::vector<Request> pending;
    int out = c.rank(), in = -1;
    Request r = c.irecv(from, 0, std::span<int>(&in, 1));
    for (std::size_t k = 0; k < n; ++k) {
      data[k].assign(100 * k + 1, static_cast<double>(k) + c.rank());
      pending.push_back(c.iall_reduce(std::span(data[k])));
    }
    Request s = c.isend(to, 0, std::span<int>(&out, 1));
    while (!pending.empty()) {
      c.progress();
      pending.back().wait();
      pending.pop_back();
    }
    r.wait(), s.wait();
    CHECK(in == from);
    for (std::size_t k = 0; k < n; ++k) {
      const double expected = static_cast<double>(k) * c.size() + c.size() * (c.size() - 1) / 2.0;
      CHECK(std::ranges::all_of(data[k], [expected](double x) { return x == expected; }));
    }
  });
}

TEST_CASE("broadcast from every root, nothing and 100 kB") {
  on_ranks([](const Communicator& c) {
    for (int root = 0; root < c.size(); ++root)
      for (const std::size_t count : {std::size_t{0}, std::size_t{25000}}) {
        std::vector<int> data(count, c.rank() == root ? 0 : -1), expected(count);
        std::iota(expected.begin(), expected.end(), root);
        if (c.rank() == root) data = expected;
        c.broadcast(std::span(data), root);
        CHECK(data == expected);
      }
  });
}

TEST_CASE("all_gather of uneven parts, some of them empty") {
  on_ranks([](const Communicator& c) {
    const auto part = [](int rank) {
      return std::vector<double>(static_cast<std::size_t>(rank * rank % 7), rank + 0.5);
    };
    const auto mine = part(c.rank());
    const auto all = c.all_gather(std::span<const double>(mine));
    REQUIRE(all.size() == static_cast<std::size_t>(c.size()));
    for (int r = 0; r < c.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == part(r));
  });
}

TEST_CASE("barrier: nobody leaves before everybody has come") {
  std::atomic<int> here = 0;
  on_ranks([&here](const Communicator& c) {
    // Thread-ranks share the counter; processes have one each and only show that they return.
    const int shared = c.transport() == "threads" ? c.size() : 1;
    for (int round = 1; round <= 20; ++round) {
      ++here;
      c.barrier();
      CHECK(here >= round * shared);
      c.barrier();
    }
    if (c.rank() == 0 || shared == 1) here -= 20 * shared;
    c.barrier();
  });
}

TEST_CASE("split orders by rank; groups within groups work independently") {
  on_ranks([](const Communicator& c) {
    const Communicator parity = c.split(c.rank() % 2);
    CHECK(parity.size() == (c.size() + 1 - c.rank() % 2) / 2);
    CHECK(parity.rank() == c.rank() / 2);
    int expected = 0;
    for (int r = c.rank() % 2; r < c.size(); r += 2) expected += r;
    CHECK(parity.all_reduce(c.rank()) == expected);

    const Communicator pair = parity.split(parity.rank() / 2);
    const int mates = std::min(2, parity.size() - parity.rank() / 2 * 2);
    CHECK(pair.size() == mates);
    const auto members = pair.all_gather(std::span<const int>(std::array{c.rank()}));
    const int first = parity.rank() / 2 * 4 + c.rank() % 2;
    CHECK(members.front().front() == first);
    CHECK(members.back().front() == first + 2 * (mates - 1));

    // Different groups take different numbers of turns.
    for (int i = 0; i <= c.rank() % 2 * 3; ++i) CHECK(parity.all_reduce(1) == parity.size());
    const Communicator alone = c.split(c.rank() + 100);
    CHECK(alone.size() == 1);
    CHECK(alone.all_reduce(c.rank()) == c.rank());
    CHECK(c.all_reduce(1) == c.size());
  });
}

TEST_CASE("thread-ranks: collectives that do not match are an error on every rank") {
  const auto different_calls = [](const Communicator& c) {
    const std::string told = test::all_throw<comm_error>(c, [&] {
      if (c.rank() == 1)
        c.barrier();
      else
        c.all_reduce(1);
    });
    CHECK_MESSAGE(told.find("does not match the collective") != told.npos, told);
  };
  const auto different_sizes = [](const Communicator& c) {
    std::vector<int> data(c.rank() == 1 ? 3 : 4);
    test::all_throw<comm_error>(c, [&] { c.iall_reduce(std::span(data)).wait(); });
    test::all_throw<comm_error>(c, [&] { c.broadcast(std::span(data), 0); });
  };
  for (const int ranks : {2, 4}) {
    run_threads(ranks, different_calls);
    run_threads(ranks, different_sizes);
  }
}
