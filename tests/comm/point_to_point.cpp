// Messages between two ranks: contents, order, tags, self sends, sizes, misuse, counters.
#include "../support/ranks.hpp"

#include <numeric>

using namespace tessera;
using test::on_ranks;

namespace {

/// What rank `from` sends to rank `to` with tag `tag` at position i.
int value(int from, int to, int tag, std::size_t i) {
  return from * 1000003 + to * 10007 + tag * 101 + static_cast<int>(i);
}

std::vector<int> message(int from, int to, int tag, std::size_t count) {
  std::vector<int> v(count);
  for (std::size_t i = 0; i < count; ++i) v[i] = value(from, to, tag, i);
  return v;
}

} // namespace

TEST_CASE("every rank sends to every rank, itself too; sizes from nothing to 1 MiB") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{262144}})
    on_ranks([count](const Communicator& c) {
      std::vector<std::vector<int>> in, out;
      std::vector<Request> requests;
      for (int peer = 0; peer < c.size(); ++peer) {
        in.emplace_back(count, -1);
        out.push_back(message(c.rank(), peer, 5, count));
      }
      for (int peer = 0; peer < c.size(); ++peer)
        requests.push_back(c.irecv(peer, 5, std::span(in[static_cast<std::size_t>(peer)])));
      for (int peer = 0; peer < c.size(); ++peer)
        requests.push_back(c.isend(peer, 5, std::span(out[static_cast<std::size_t>(peer)])));
      for (auto& r : requests) r.wait();
      for (int peer = 0; peer < c.size(); ++peer)
        CHECK(in[static_cast<std::size_t>(peer)] == message(peer, c.rank(), 5, count));
    });
}

TEST_CASE("messages of one tag keep their order, whether the receive or the send comes first") {
  on_ranks([](const Communicator& c) {
    constexpr int n = 50;
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    std::array<int, n> in{}, out{};
    std::iota(out.begin(), out.end(), 100 * c.rank());
    std::vector<Request> requests;
    for (int i = 0; i < n / 2; ++i)
      requests.push_back(c.irecv(from, 0, std::span(&in[static_cast<std::size_t>(i)], 1)));
    for (auto& x : out) requests.push_back(c.isend(to, 0, std::span(&x, 1)));
    c.barrier();
    for (int i = n / 2; i < n; ++i)
      requests.push_back(c.irecv(from, 0, std::span(&in[static_cast<std::size_t>(i)], 1)));
    for (auto& r : requests) r.wait();
    for (int i = 0; i < n; ++i) CHECK(in[static_cast<std::size_t>(i)] == 100 * from + i);
  });
}

TEST_CASE("tags select messages; they arrive in the order that is asked for") {
  on_ranks([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    const std::array<int, 4> tags{0, 1, 77, 32767};
    std::vector<std::vector<int>> out, in;
    std::vector<Request> sends;
    for (const int tag : tags) out.push_back(message(c.rank(), to, tag, 3));
    for (std::size_t k = 0; k < tags.size(); ++k) sends.push_back(c.isend(to, tags[k], std::span(out[k])));
    for (std::size_t k = tags.size(); k-- > 0;) {
      std::vector<int> got(3);
      c.irecv(from, tags[k], std::span(got)).wait();
      CHECK(got == message(from, c.rank(), tags[k], 3));
    }
    for (auto& s : sends) s.wait();
  });
}

TEST_CASE("equal tags of different groups do not mix") {
  on_ranks({2, 4, 6, 8}, [](const Communicator& c) {
    // Neighbours 2k and 2k+1 share `pair`; the messages run in the opposite order of the receives.
    const Communicator pair = c.split(c.rank() / 2), again = pair.split(0);
    const int other = c.rank() ^ 1, mate = 1 - pair.rank();
    std::array<int, 3> out{c.rank(), 100 + c.rank(), 200 + c.rank()}, in{};
    Request s0 = c.isend(other, 9, std::span(&out[0], 1)), s1 = pair.isend(mate, 9, std::span(&out[1], 1)),
            s2 = again.isend(mate, 9, std::span(&out[2], 1));
    again.irecv(mate, 9, std::span(&in[2], 1)).wait();
    pair.irecv(mate, 9, std::span(&in[1], 1)).wait();
    c.irecv(other, 9, std::span(&in[0], 1)).wait();
    s0.wait(), s1.wait(), s2.wait();
    CHECK(in == std::array<int, 3>{other, 100 + other, 200 + other});
  });
}

TEST_CASE("test() completes without wait()") {
  on_ranks([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    std::vector<double> out(30000, c.rank()), in(30000, -1);
    Request r = c.irecv(from, 2, std::span(in)), s = c.isend(to, 2, std::span(out));
    for (bool received = false, sent = false; !received || !sent;) {
      received = r.test();
      sent = s.test();
      c.progress();
      std::this_thread::yield();
    }
    CHECK(r.test());
    CHECK(std::ranges::all_of(in, [from](double x) { return x == from; }));
  });
}

TEST_CASE("a message of another size than the receive is an error that gives both sizes") {
  on_ranks([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    for (const std::size_t sent : {std::size_t{3}, std::size_t{5}}) {
      std::vector<int> out(sent), in(4);
      Request s = c.isend(to, 4, std::span(out)), r = c.irecv(from, 4, std::span(in));
      std::string told;
      try {
        r.wait();
      } catch (const comm_error& e) { told = e.what(); }
      CHECK_MESSAGE(told.find(text("irecv from rank ", from, ", tag 4, 16 bytes (this is rank ", c.rank(), " of ",
                                   c.size())) != told.npos,
                    told);
      CHECK_MESSAGE(told.find("both sides must agree on the size") != told.npos, told);
      s.wait();
    }
    // The group still works.
    CHECK(c.all_reduce(1) == c.size());
  });
}

TEST_CASE("peers and tags that do not exist are usage errors, found before any message") {
  on_ranks([](const Communicator& c) {
    int x = 0;
    const std::span one(&x, 1);
    for (const int peer : {-1, c.size()}) {
      CHECK_THROWS_AS(c.isend(peer, 0, one).wait(), usage_error);
      CHECK_THROWS_AS(c.irecv(peer, 0, one).wait(), usage_error);
      CHECK_THROWS_AS(c.broadcast(one, peer), usage_error);
    }
    CHECK_THROWS_AS(c.isend(0, -1, one).wait(), usage_error);
    CHECK_THROWS_AS(c.irecv(0, -1, one).wait(), usage_error);
    CHECK_THROWS_AS(c.split(-1), usage_error);
    CHECK(c.counters() == c.counters());
  });
}

TEST_CASE("counters: every send and every collective, over all groups of one world") {
  on_ranks([](const Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    const Communicator half = c.split(c.rank() % 2);
    std::array<double, 10> out{}, in{};
    const comm::Counters before = c.counters();
    Request r = c.irecv(from, 0, std::span<double>(in)), s = c.isend(to, 0, std::span<double>(out));
    r.wait(), s.wait();
    std::array<std::byte, 3> self_out{}, self_in{};
    Request sr = half.irecv(half.rank(), 1, std::span<std::byte>(self_in)),
            ss = half.isend(half.rank(), 1, std::span<std::byte>(self_out));
    sr.wait(), ss.wait();
    CHECK(c.counters() - before == comm::Counters{.messages = 2, .bytes = 83});
    CHECK(half.counters() == c.counters());

    const comm::Counters middle = c.counters();
    half.all_reduce(1.0);
    c.broadcast(std::span<double>(out), 0);
    c.all_gather(std::span<const std::byte>(self_out));
    c.barrier();
    CHECK(c.counters() - middle ==
          comm::Counters{.collectives = 4, .collective_bytes = 8u + (c.rank() == 0 ? 80u : 0u) + 3u});
  });
}

TEST_CASE("a lone rank: sends to itself, collectives, and a receive that can never end") {
  const Communicator alone;
  CHECK(alone.transport() == "self");
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  int a = 1, b = 2, x = 0, y = 0;
  Request early = alone.irecv(0, 3, std::span(&x, 1));
  CHECK_FALSE(early.test());
  alone.isend(0, 3, std::span(&a, 1)).wait();
  alone.isend(0, 3, std::span(&b, 1)).wait();
  CHECK(early.test());
  alone.irecv(0, 3, std::span(&y, 1)).wait();
  CHECK(x == 1);
  CHECK(y == 2);
  CHECK_THROWS_WITH_AS(
      alone.irecv(0, 8, std::span(&x, 1)).wait(),
      "irecv from rank 0, tag 8, 4 bytes (this is rank 0 of 1, transport self): this rank is alone and "
      "has not sent it; the wait would never end",
      comm_error);
  CHECK(alone.all_reduce(7.5) == 7.5);
  CHECK(alone.all_gather(std::span<const int>(&a, 1)) == std::vector<std::vector<int>>{{1}});
  CHECK(alone.split(4).size() == 1);
  CHECK(alone.counters() == comm::Counters{.messages = 2, .bytes = 8, .collectives = 3, .collective_bytes = 12});
}
