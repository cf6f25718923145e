// Device memory between ranks: host staging, on memory that the host may touch and on an emulated device where it may
// not, and the choice of the way.
#include "support/ranks.hpp"

#include <array>
#include <numeric>
#include <tessera/comm/host_staged.hpp>
#include <tessera/comm/transport.hpp>
#include <tessera/space/emulated.hpp>
#include <tessera/space/host_access.hpp>

using namespace tessera;
using namespace tessera::test;
using comm::DeviceMessage;
using comm::Element;
using comm::Nccl;
using comm::RankPlace;
using comm::Reduce;
using comm::TransportChoice;

namespace {

template <class Space> Buffer<float, Space> on_device(const std::vector<float>& v) {
  Buffer<float, Space> b(v.size());
  write_from_host<Space>(b.data(), v.data(), v.size());
  return b;
}
template <class Space> std::vector<float> seen(const Buffer<float, Space>& b) {
  std::vector<float> v(b.size());
  read_back<Space>(v.data(), b.data(), v.size());
  return v;
}
std::vector<float> counted(std::size_t n, float from) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), from);
  return v;
}
/// A communicator of its own, with a link: the world's stays as it is.
template <class Space> Communicator linked(const Communicator& c) {
  Communicator mine = c.split(0);
  mine.endpoint().device_link = std::make_shared<comm::HostStaged<Space>>(mine.endpoint());
  return mine;
}
DeviceMessage message(int peer, auto& buffer) { return {peer, buffer.data(), buffer.bytes()}; }
const std::initializer_list<int> few{1, 2, 3, 4};

/// What rank r sends to its neighbour at distance d.
std::vector<float> letter(int r, int d) { return counted(std::size_t(5 + 3 * r + d), float(1000 * r + 100 * d)); }

} // namespace

TEST_CASE_TEMPLATE("device link: messages to all ranks, oneself included, arrive in order whoever waits first", Space,
                   host, emulated_device) {
  on_ranks(few, [](const Communicator& world) {
    const Communicator c = linked<Space>(world);
    const int n = c.size(), me = c.rank();
    constexpr int rounds = 3;
    std::vector<Buffer<float, Space>> out, in;
    std::vector<std::vector<DeviceMessage>> sends(rounds), receives(rounds);
    for (int k = 0; k < rounds; ++k) // a round is one message to each rank; all rounds have one tag
      for (int d = 0; d < n; ++d) {
        const int to = (me + d) % n, from = (me - d + n) % n;
        out.push_back(on_device<Space>(letter(me, d + 10 * k)));
        in.emplace_back(letter(from, d + 10 * k).size());
        sends[std::size_t(k)].push_back(message(to, out.back()));
        receives[std::size_t(k)].push_back(message(from, in.back()));
      }
    std::vector<Request> pending;
    for (std::size_t k = 0; k < rounds; ++k)
      pending.emplace_back(c.endpoint().device_link->exchange(sends[k], receives[k], 5));
    for (std::size_t k = rounds; k-- > 0;) // the last first
      if (me % 2 == 0) {
        pending[k].wait();
      } else {
        while (!pending[k].test()) {}
      }
    for (std::size_t k = 0; k < rounds; ++k)
      for (std::size_t d = 0; d < std::size_t(n); ++d)
        CHECK(seen<Space>(in[k * std::size_t(n) + d]) == letter((me - int(d) + n) % n, int(d + 10 * k)));
  });
}

TEST_CASE_TEMPLATE("device link: sums, beside sums of host memory that ranks start before and after them", Space, host,
                   emulated_device) {
  on_ranks(few, [](const Communicator& world) {
    const Communicator c = linked<Space>(world);
    const int n = c.size(), me = c.rank();
    auto a = on_device<Space>(counted(1000, float(me))), b = on_device<Space>(std::vector<float>(7, float(me + 1)));
    auto& link = *c.endpoint().device_link;
    Request first(link.all_reduce(a.data(), a.size(), Element::f32, Reduce::sum));
    CHECK(c.all_reduce(10) == 10 * n);
    Request second(link.all_reduce(b.data(), b.size(), Element::f32, Reduce::max));
    if (me == 0) first.test();
    CHECK(c.all_reduce(double(me), Reduce::max) == n - 1);
    second.wait();
    first.wait();
    for (std::size_t i = 0; const float v : seen<Space>(a)) CHECK(v == float(n) * float(i++) + float(n * (n - 1) / 2));
    CHECK(seen<Space>(b) == std::vector<float>(7, float(n)));
  });
}

TEST_CASE_TEMPLATE("device link: a part of the group has its own", Space, host, emulated_device) {
  on_ranks({2, 4}, [](const Communicator& world) {
    const Communicator c = linked<Space>(world);
    const Communicator part = c.split(c.rank() % 2);
    REQUIRE(part.endpoint().device_link);
    CHECK(part.endpoint().device_link != c.endpoint().device_link);
    CHECK(part.endpoint().device_link->name() == "host-staged");
    auto a = on_device<Space>({float(c.rank())});
    Request(part.endpoint().device_link->all_reduce(a.data(), 1, Element::f32, Reduce::sum)).wait();
    float want = 0;
    for (int r = c.rank() % 2; r < c.size(); r += 2) want += float(r);
    CHECK(seen<Space>(a) == std::vector<float>{want});
    CHECK(world.split(0).endpoint().device_link == nullptr); // a group without one passes none on
  });
}

TEST_CASE(
    "device link: what a kernel before the exchange computes is what leaves; what arrives is there for the next") {
  on_ranks({2}, [](const Communicator& world) {
    using Space = emulated_device;
    const Communicator c = linked<Space>(world);
    constexpr std::size_t size = 4096;
    Buffer<float, Space> out(size), in(size), copy(size);
    for (int k = 0; k < 20; ++k) {
      Blocks<Space>::fill(View<float, 1>(out.data(), {{long(size)}}), float(100 * k + c.rank()));
      const DeviceMessage send = message(1 - c.rank(), out), receive = message(1 - c.rank(), in);
      Request r(c.endpoint().device_link->exchange({&send, 1}, {&receive, 1}, 1));
      r.wait();
      // In place means for every stream: this one never heard of the exchange.
      const Space::Current other((Space::Stream()));
      Blocks<Space>::copy(View<const float, 1>(in.data(), {{long(size)}}), View<float, 1>(copy.data(), {{long(size)}}));
      CHECK(seen<Space>(copy) == std::vector<float>(size, float(100 * k + 1 - c.rank())));
    }
  });
}

TEST_CASE("device link: a message of another size is an error on the rank that receives it") {
  if (environment().world().size() > 1) return; // the transports report it at different times
  run_threads(2, [](const Communicator& world) {
    const Communicator c = linked<host>(world);
    std::array<float, 4> room{};
    if (c.rank() == 0) {
      const DeviceMessage m{1, room.data(), 8};
      Request(c.endpoint().device_link->exchange({&m, 1}, {}, 1)).wait();
    } else {
      const DeviceMessage m{0, room.data(), 16};
      Request r(c.endpoint().device_link->exchange({}, {&m, 1}, 1));
      CHECK_THROWS_AS(r.wait(), comm_error);
    }
    world.barrier();
  });
}

TEST_CASE("transport: chosen from what the machine has, with a sentence that says why") {
  using Way = TransportChoice::Way;
  const std::vector<RankPlace> apart{{"a", "0"}, {"a", "1"}, {"b", "0"}}, shared{{"a", "0"}, {"a", "1"}, {"a", "0"}};
  struct Case {
    comm::TransportFacts facts;
    Way way;
    std::string says;
  };
  for (const Case& k : {Case{{apart, Nccl::available, ""}, Way::nccl, "3 ranks, each with a GPU of its own"},
                        Case{{apart, Nccl::available, "auto"}, Way::nccl, "NCCL"},
                        Case{{apart, Nccl::available, "host"}, Way::host_staged, "TESSERA_TRANSPORT=host"},
                        Case{{apart, Nccl::available, "nccl"}, Way::nccl, "TESSERA_TRANSPORT=nccl"},
                        Case{{apart, Nccl::missing, ""}, Way::host_staged, "built without NCCL"},
                        Case{{shared, Nccl::available, ""}, Way::host_staged, "ranks 0 and 2 share a GPU (0 of a)"},
                        Case{{{{"a", "0"}}, Nccl::available, ""}, Way::none, "one rank"},
                        Case{{{{"a", "0"}}, Nccl::available, "nccl"}, Way::nccl, "asks"}}) {
    const TransportChoice c = choose_transport(k.facts);
    CHECK(c.way == k.way);
    CHECK_MESSAGE(c.why.find(k.says) != std::string::npos, c.why);
  }
  const auto refused = [](const comm::TransportFacts& f) -> std::string {
    try {
      choose_transport(f);
    } catch (const usage_error& e) { return e.what(); }
    return "nothing";
  };
  CHECK(refused({shared, Nccl::available, "nccl"}).find("ranks 0 and 2 share a GPU") != std::string::npos);
  CHECK(refused({apart, Nccl::missing, "nccl"}).find("built without NCCL") != std::string::npos);
  CHECK(refused({apart, Nccl::available, "mpi"}).find("never given to MPI") != std::string::npos);
  CHECK(refused({apart, Nccl::available, "NCCL"}).find("give auto, nccl or host") != std::string::npos);
  CHECK(refused({{{"a", "0"}, {"b", ""}}, Nccl::available, ""}).find("rank 1 on b has no GPU") != std::string::npos);
}

TEST_CASE("transport: facts are the same on every rank, and wishes must be") {
  on_ranks(few, [](const Communicator& c) {
    const auto f = gather_facts(c, text("gpu ", c.rank()), c.rank() == 0 ? Nccl::available : Nccl::missing, "host");
    REQUIRE(int(f.ranks.size()) == c.size());
    for (int r = 0; r < c.size(); ++r) CHECK(f.ranks[std::size_t(r)].gpu == text("gpu ", r));
    CHECK(f.nccl == (c.size() == 1 ? Nccl::available : Nccl::missing));
    CHECK(f.wish == "host");
    if (c.size() == 1) return;
    const std::string told =
        all_throw<usage_error>(c, [&] { gather_facts(c, "0", Nccl::available, c.rank() == 1 ? "nccl" : nullptr); });
    CHECK(told.find("'nccl' on rank 1") != told.npos);
  });
}
