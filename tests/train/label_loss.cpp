// Losses of class scores against integer labels: by hand, plain loops, published values, finite differences, every
// grid, and labels that are no class.
#include "net/networks.hpp"

#include <tessera/train/trainer.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr Extents<5> extents{{2, 3, 2, 2, 2}};
constexpr double no_label = 255; // ignored;

/// y = (3 * torch.sin(torch.arange(48.).double())).reshape(2, 3, 2, 2, 2)
std::vector<double> scores() {
  std::vector<double> y;
  for (int k = 0; k < 48; ++k) y.push_back(3 * std::sin(double(k)));
  return y;
}
/// t = (torch.arange(16) * torch.arange(16) // 3 % 3).reshape(2, 2, 2, 2)
std::vector<std::uint8_t> labels() {
  std::vector<std::uint8_t> t;
  for (int k = 0; k < 16; ++k) t.push_back(std::uint8_t(k * k / 3 % 3));
  return t;
}

/// Prediction, labels and gradient on a grid, from whole tensors.
template <class L = std::uint8_t> struct Case {
  Tensor<double, 5> y, dy;
  Tensor<L, 5> t;

  Case(const AnyGrid& grid, const Layout& layout, const Extents<5>& e, const std::vector<double>& all_scores,
       const std::vector<L>& all_labels)
      : y(grid, Map<5>(layout, grid.shape(), e)), dy(grid, y.map()), t(grid, label_map(y.map())) {
    scatter(y, all_scores);
    scatter(t, all_labels);
  }
  template <class Loss> double loss(const Loss& l) { return loss_and_gradient(l, y, t, nullptr).resolve(); }
};

/// The layouts that a prediction may have on a grid of four axes: channels are never split.
constexpr Layout layouts[] = {over_ndhw, whole_samples, place(n, rep, h, w), place(d, d, rep, n), replicated(4)};

/// The value that the plain formulas give, and its gradient by central differences: no code in common with the library.
template <class F> std::vector<double> by_differences(const F& f, std::vector<double> y) {
  std::vector<double> g;
  for (double& v : y) {
    const double was = v;
    v = was + 1e-5;
    const double up = f(y);
    v = was - 1e-5;
    const double down = f(y);
    v = was;
    g.push_back((up - down) / 2e-5);
  }
  return g;
}

struct Voxel {
  std::vector<double> p; ///< softmax of its scores
  long label;
};
std::vector<Voxel> voxels(const std::vector<double>& y) {
  const auto t = labels();
  std::vector<Voxel> all;
  for (int s = 0; s < 2; ++s)
    for (int v = 0; v < 8; ++v) {
      Voxel x{{}, long(t[std::size_t(8 * s + v)])};
      double sum = 0;
      for (int c = 0; c < 3; ++c) sum += std::exp(y[std::size_t(24 * s + 8 * c + v)]);
      for (int c = 0; c < 3; ++c) x.p.push_back(std::exp(y[std::size_t(24 * s + 8 * c + v)]) / sum);
      all.push_back(x);
    }
  return all;
}

double plain_cross_entropy(const std::vector<double>& y, const std::vector<double>& w, long ignore) {
  double sum = 0, weights = 0;
  for (const Voxel& v : voxels(y))
    if (v.label != ignore)
      sum -= w[std::size_t(v.label)] * std::log(v.p[std::size_t(v.label)]), weights += w[std::size_t(v.label)];
  return sum / weights;
}

/// 1 - the mean of (2 I + smooth) / (S + smooth) over the classes from `first`; of probabilities, or of scores.
double plain_dice(const std::vector<Voxel>& all, double smooth, int first, long ignore) {
  double sum = 0;
  for (int c = first; c < 3; ++c) {
    double both = 0, sizes = 0;
    for (const Voxel& v : all)
      if (v.label != ignore) {
        const double p = v.p[std::size_t(c)], g = v.label == c ? 1 : 0;
        both += p * g, sizes += p + g;
      }
    sum += (2 * both + smooth) / (sizes + smooth);
  }
  return 1 - sum / (3 - first);
}

/// Checks a loss on every grid against plain(y), values known from elsewhere, and differences of plain.
template <class Loss, class F> void check_everywhere(const Loss& loss, const F& plain) {
  const double want = plain(scores());
  const std::vector<double> gradient = by_differences(plain, scores());
  on_ranks([&](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      for (const Layout& layout : layouts) {
        Case one(grid, layout, extents, scores(), labels());
        const int ranks = grid.over(layout.mask(Placement::Kind::split)).size(); // made before messages are counted
        const auto before = comm.counters();
        LossSum sum = loss_and_gradient(loss, one.y, one.t, &one.dy);
        const double got = sum.resolve();
        const auto used = comm.counters() - before;
        CHECK_MESSAGE(std::abs(got - want) < 1e-13, grid.shape().str(), " ", layout.str());
        CHECK_MESSAGE(distance(gather(one.dy), gradient) < 1e-9, grid.shape().str(), " ", layout.str());
        CHECK(used.collectives == (ranks > 1 ? 1 : 0));
      }
    });
  });
}

} // namespace

TEST_CASE("cross_entropy: equals plain loops, values, gradients and one all-reduce, on every grid") {
  check_everywhere(cross_entropy{}, [](const auto& y) { return plain_cross_entropy(y, {1, 1, 1}, -1); });
  check_everywhere(cross_entropy{.weights = {0.5, 1, 2}}, [](const auto& y) {
    return plain_cross_entropy(y, {0.5, 1, 2}, -1);
  });
  check_everywhere(cross_entropy{.ignore = 1}, [](const auto& y) { return plain_cross_entropy(y, {1, 1, 1}, 1); });
  check_everywhere(cross_entropy{.weights = {0.5, 1, 2}, .ignore = 2}, [](const auto& y) {
    return plain_cross_entropy(y, {0.5, 1, 2}, 2);
  });
}

TEST_CASE("cross_entropy: as PyTorch has it") {
  // l = torch.nn.functional.cross_entropy(y, t, weight, ignore_index); l.backward(); y.grad.flatten()[[0, 8, 16, 47]]
  // with y and t as above and weight = torch.tensor([0.5, 1, 2]).double(); PyTorch 2.
  struct Known {
    cross_entropy loss;
    double value;
    std::vector<double> gradient;
  };
  const Known all[] = {
      {{}, 1.966411031714034, {-0.05950613485063406, 0.05824393603138631, 0.0012621988192477408, 0.004581345895995214}},
      {{.weights = {0.5, 1, 2}},
       1.3572805315816565,
       {-0.030712843793875642, 0.03006138633878003, 0.0006514574550956082, 0.0023645656237394654}},
      {{.ignore = 1},
       1.707732298453138,
       {-0.07323831981616499, 0.07168484434632162, 0.0015534754698433733, 0.005638579564301803}},
      {{.weights = {0.5, 1, 2}, .ignore = 2},
       2.6849519124622616,
       {-0.06347321050734299, 0.0621268651001454, 0.0013463454071975902, 0.004886768955728229}},
  };
  on_ranks({1, 2, 4}, [&](const Communicator& comm) {
    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    for (const Known& k : all) {
      Case one(grid, over_ndhw, extents, scores(), labels());
      CHECK(std::abs(loss_and_gradient(k.loss, one.y, one.t, &one.dy).resolve() - k.value) < 1e-14);
      const auto g = gather(one.dy);
      CHECK(distance(std::vector<double>{g[0], g[8], g[16], g[47]}, k.gradient) < 1e-14);
    }
  });
}

TEST_CASE("cross_entropy: ignored voxels do not count on any rank: the mean of 2, 0, 0, 0 is 0.5") {
  // Along depth: one valid voxel of loss 2 among ignored ones, then three valid ones of loss 0.
  const double two = std::log(std::exp(2.0) - 1); // -log softmax(0, two)[0] = 2
  const std::vector<double> y{0, 5, 5, 5, 1000, 1000, 1000, -3, two, 1, 1, 1, 0, 0, 0, 7};
  const std::vector<std::int32_t> t{0, 255, 255, 255, 0, 0, 0, 255};
  on_ranks([&](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      Case one(grid, over_ndhw, {{1, 2, 8, 1, 1}}, y, t);
      CHECK(std::abs(loss_and_gradient(cross_entropy{.ignore = 255}, one.y, one.t, &one.dy).resolve() - 0.5) < 1e-15);
      const auto g = gather(one.dy);
      CHECK(std::abs(g[0] - (std::exp(-2.0) - 1) / 4) < 1e-15); // p - 1 of four voxels
      CHECK(std::abs(g[8] - (1 - std::exp(-2.0)) / 4) < 1e-15);
      for (const std::size_t k : {1u, 2u, 3u, 7u, 9u, 10u, 11u, 15u}) CHECK(g[k] == 0);
    });
  });
}

TEST_CASE("cross_entropy: scores of any size, and nothing but ignored voxels") {
  on_ranks({1, 2}, [](const Communicator& comm) {
    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    Case<std::uint8_t> far(grid, over_ndhw, {{1, 2, 2, 1, 1}}, {1e4, -1e4, -1e4, 1e4}, {1, 1});
    CHECK(loss_and_gradient(cross_entropy{}, far.y, far.t, &far.dy).resolve() == 1e4);
    CHECK(gather(far.dy) == std::vector<double>{0.5, 0, -0.5, 0});
    Case<std::uint8_t> none(grid, over_ndhw, {{1, 2, 2, 1, 1}}, {1, 2, 3, 4}, {9, 9});
    CHECK(loss_and_gradient(cross_entropy{.ignore = 9}, none.y, none.t, &none.dy).resolve() == 0);
    CHECK(gather(none.dy) == std::vector<double>{0, 0, 0, 0});
  });
}

TEST_CASE("dice: equals plain loops, values, gradients and one all-reduce, on every grid") {
  check_everywhere(dice{}, [](const auto& y) { return plain_dice(voxels(y), 1e-5, 0, -1); });
  check_everywhere(dice{.smooth = 1, .background = Background::left_out},
                   [](const auto& y) { return plain_dice(voxels(y), 1, 1, -1); });
  check_everywhere(dice{.smooth = 0.5, .ignore = 1}, [](const auto& y) { return plain_dice(voxels(y), 0.5, 0, 1); });
  // The scores as they are are no probabilities, but the formula holds.
  check_everywhere(dice{.smooth = 30, .ignore = 2, .scores = Scores::probabilities}, [](const auto& y) {
    auto all = voxels(y);
    for (std::size_t k = 0; k < all.size(); ++k)
      for (std::size_t c = 0; c < 3; ++c) all[k].p[c] = y[24 * (k / 8) + 8 * c + k % 8];
    return plain_dice(all, 30, 0, 2);
  });
}

TEST_CASE("losses: sums with weights, of waiting and others, on every grid") {
  check_everywhere(0.25 * cross_entropy{} + 0.75 * dice{}, [](const auto& y) {
    return 0.25 * plain_cross_entropy(y, {1, 1, 1}, -1) + 0.75 * plain_dice(voxels(y), 1e-5, 0, -1);
  });
  check_everywhere(dice{} + 2.0 * (cross_entropy{.weights = {1, 2, 3}} + 0.5 * cross_entropy{}), [](const auto& y) {
    return plain_dice(voxels(y), 1e-5, 0, -1) + 2 * plain_cross_entropy(y, {1, 2, 3}, -1) +
           plain_cross_entropy(y, {1, 1, 1}, -1);
  });
  CHECK(!(2.0 * cross_entropy{} + cross_entropy{}).waits());
  CHECK((cross_entropy{} + dice{}).waits());
}

TEST_CASE("dice: as PyTorch has it") {
  // With y and t as above, g = torch.nn.functional.one_hot(t, 3).movedim(-1, 1).double(), m = (t != ignore)[:, None],
  // p = y.softmax(1) * m, g = g * m, I = (p * g).sum((0, 2, 3, 4)), S = (p + g).sum((0, 2, 3, 4)):
  // l = 1 - ((2 * I + smooth) / (S + smooth))[first:].mean(); y.grad.flatten()[[0, 8, 16, 47]]; PyTorch 2.
  const auto known = [](const auto& loss, double value, const std::vector<double>& gradient) {
    on_ranks({1, 2, 4}, [&](const Communicator& comm) {
      const AnyGrid grid(comm, {1, comm.size(), 1, 1});
      Case one(grid, over_ndhw, extents, scores(), labels());
      CHECK(std::abs(loss_and_gradient(loss, one.y, one.t, &one.dy).resolve() - value) < 1e-14);
      const auto g = gather(one.dy);
      CHECK(distance(std::vector<double>{g[0], g[8], g[16], g[47]}, gradient) < 1e-14);
    });
  };
  known(dice{}, 0.5724950513309708,
        {-0.0019684740028310253, 0.001465575794972426, 0.0005028982078585995, 0.0016318038840211185});
  known(dice{.smooth = 1, .background = Background::left_out}, 0.4935291286533924,
        {-0.0005365807510290962, -2.5800838822476994e-05, 0.0005623815898515738, 0.0019058364246192206});
  known(dice{.smooth = 0.5, .ignore = 1}, 0.5445707447377031,
        {-0.0021492364477335266, 0.001675298336233686, 0.0004739381114998407, 0.0015235196064161726});
  // 0.25 * torch.nn.functional.cross_entropy(y, t) + 0.75 * l
  known(0.25 * cross_entropy{} + 0.75 * dice{}, 0.9209740464267366,
        {-0.016352889214781785, 0.015660165854075897, 0.0006927233607058848, 0.0023691893870146424});
}

TEST_CASE("dice: sums over the ranks before the ratio: intersections 1, 0 and sizes 2, 6 give 0.25") {
  // Along depth, 4 voxels and 4. Class 1: the first half has one voxel with p = 1 and its label; the second p = 1 in
  // three voxels, none of them labelled, and three labels elsewhere. Averaging over ranks would give (1 + 0) / 2.
  const std::vector<double> p1{1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0}, t1{1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0};
  std::vector<double> y;
  for (const double p : p1) y.push_back(1 - p);
  y.insert(y.end(), p1.begin(), p1.end());
  const std::vector<std::uint8_t> t(t1.begin(), t1.end());
  on_ranks([&](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      Case one(grid, over_ndhw, {{1, 2, 12, 1, 1}}, y, t);
      const dice loss{.smooth = 0, .background = Background::left_out, .scores = Scores::probabilities};
      CHECK(loss_and_gradient(loss, one.y, one.t, &one.dy).resolve() == 0.75);
      const auto g = gather(one.dy);
      for (std::size_t k = 0; k < 12; ++k) {
        CHECK(g[k] == 0); // the background does not count
        // d/dp of -2 I / S: -2 g / S + 2 I / S^2
        CHECK(g[12 + k] == (t[k] ? -2. / 8 : 0) + 2. / 64);
      }
    });
  });
}

TEST_CASE("dice: classes that are nowhere, nothing that counts, a sure prediction") {
  const AnyGrid grid(Communicator(), {1, 1, 1, 1});
  Case<std::uint8_t> sure(grid, over_ndhw, {{1, 3, 2, 1, 1}}, {1e4, -1e4, -1e4, 1e4, -1e4, -1e4}, {0, 1});
  CHECK(loss_and_gradient(dice{.smooth = 0}, sure.y, sure.t, &sure.dy).resolve() == 0); // class 2: coefficient 1
  for (const double g : gather(sure.dy)) CHECK(g == 0);
  Case<std::uint8_t> none(grid, over_ndhw, {{1, 3, 2, 1, 1}}, {1, 2, 3, 4, 5, 6}, {9, 9});
  CHECK(loss_and_gradient(dice{.smooth = 0, .ignore = 9}, none.y, none.t, &none.dy).resolve() == 0);
  for (const double g : gather(none.dy)) CHECK(g == 0);
}

TEST_CASE("labels: one that is no class is the same error on every rank, with its place") {
  on_ranks([](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      auto t = labels();
      t[13] = 7; // sample 1, voxel 1,0,1: in the second half of every split
      t[15] = 9;
      Case one(grid, over_ndhw, extents, scores(), t);
      const auto told = [&](const auto& loss) {
        return all_throw<usage_error>(comm, [&] { loss_and_gradient(loss, one.y, one.t, &one.dy).resolve(); });
      };
      for (const std::string& s : {told(cross_entropy{}), told(cross_entropy{.ignore = 9}), told(0.5 * cross_entropy{}),
                                   told(dice{}), told(dice{.ignore = 9} + cross_entropy{})}) {
        CHECK(s.find("label 7 in sample 1 at voxel (d,h,w) 1,0,1") != s.npos);
        CHECK(s.find("3 classes, 0 to 2") != s.npos);
      }
      CHECK(told(cross_entropy{.ignore = 7}).find("label 9 in sample 1 at voxel (d,h,w) 1,1,1") != std::string::npos);
      Case<std::int32_t> negative(grid, over_ndhw, {{1, 2, 2, 1, 1}}, {1, 2, 3, 4}, {0, -1});
      const auto s = all_throw<usage_error>(
          comm, [&] { loss_and_gradient(cross_entropy{}, negative.y, negative.t, nullptr).resolve(); });
      CHECK(s.find("label -1 in sample 0 at voxel (d,h,w) 1,0,0") != s.npos);
    });
  });
}

TEST_CASE("labels: shapes, layouts and weights that do not fit are refused") {
  on_ranks({1, 2}, [](const Communicator& comm) {
    const AnyGrid grid(comm, {1, comm.size()});
    const Tensor<double, 5> y(grid, Map<5>(place(n, d), grid.shape(), {{2, 3, 4, 1, 1}}));
    const auto told = [&](const cross_entropy& loss, const Map<5>& labels, const Tensor<double, 5>& prediction) {
      const Tensor<std::uint8_t, 5> t(grid, labels);
      return all_throw<usage_error>(comm, [&] { loss_and_gradient(loss, prediction, t, nullptr); });
    };
    CHECK(told({}, y.map(), y).find("make_labels()") != std::string::npos); // three channels of labels
    CHECK(told({}, Map<5>(place(d, n), grid.shape(), {{2, 1, 4, 1, 1}}), y).find("place(d,n)") != std::string::npos);
    CHECK(told({}, Map<5>(place(n, d), grid.shape(), {{2, 1, 5, 1, 1}}), y).find("2x1x5x1x1") != std::string::npos);
    CHECK(told({.weights = {1, 2}}, label_map(y.map()), y).find("2 weights for 3 classes") != std::string::npos);
    CHECK(told({.weights = {1, -2, 1}}, label_map(y.map()), y).find("not be negative") != std::string::npos);
    const Tensor<std::uint8_t, 5> t(grid, label_map(y.map()));
    const auto refused = all_throw<usage_error>(comm, [&] { loss_and_gradient(dice{.smooth = -1}, y, t, nullptr); });
    CHECK(refused.find("not be negative") != std::string::npos);
    const Tensor<double, 5> one(grid, label_map(y.map()));
    CHECK(all_throw<usage_error>(comm, [&] {
            loss_and_gradient(dice{.background = Background::left_out}, one, t, nullptr);
          }).find("leaves none") != std::string::npos);
    if (comm.size() == 2) {
      const Tensor<double, 5> split(grid, Map<5>(place(n, Dim::c), grid.shape(), {{2, 3, 4, 1, 1}}));
      CHECK(told({}, label_map(split.map()), split).find("splits the channels") != std::string::npos);
    }
  });
}

namespace {

NetworkDescription segmenter() {
  return describe({conv(4).with_bias(), leaky_relu(0.1), conv(3, window(1)).with_bias()},
                  {.c = 1, .d = 6, .h = 5, .w = 4}, over_ndhw);
}

template <class Loss> std::vector<double> losses(const AnyGrid& grid, const Loss& loss) {
  Oracle net(grid, segmenter(), {.batch = 3, .seed = 2});
  Trainer trainer(net, adam{.rate = 3e-2}, loss);
  std::vector<double> all;
  for (int k = 0; k < 8; ++k) {
    const long samples = k % 2 ? 3 : 2;
    auto x = net.make_input(samples);
    auto t = net.template make_labels<std::int32_t>(samples);
    fill(x, [](const Index<5>& i) { return wave(i); });
    fill(t, [](const Index<5>& i) { return i[3] == 0 ? no_label : wave(i) > 0.4 ? 2 : wave(i) > 0 ? 1 : 0; });
    all.push_back(trainer.step(x, t));
    all.push_back(trainer.evaluate(x, t));
  }
  return all;
}

} // namespace

TEST_CASE("trainer: labels flow through step and evaluate: the same losses on every grid") {
  const auto loss = 0.5 * cross_entropy{.weights = {1, 2, 1}, .ignore = 255} + 0.5 * dice{.ignore = 255};
  const std::vector<double> want = losses(AnyGrid(Communicator(), {1, 1, 1, 1}), loss);
  CHECK(want[15] < 0.9 * want[1]); // it learns
  on_ranks([&](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      CHECK_MESSAGE(distance(losses(grid, loss), want) < 1e-9, grid.shape().str());
    });
  });
}

TEST_CASE("trainer: a bad label leaves the weights as they were, and the next step is as if nothing had been") {
  on_ranks({1, 2, 3}, [](const Communicator& comm) {
    const AnyGrid grid(comm, {1, comm.size(), 1, 1});
    for (const cross_entropy& loss : {cross_entropy{}, cross_entropy{.ignore = 200}}) {
      Oracle net(grid, segmenter(), {.batch = 1}), other(grid, segmenter(), {.batch = 1});
      Trainer trainer(net, adam{.rate = 1e-2}, loss), straight(other, adam{.rate = 1e-2}, loss);
      auto x = net.make_input();
      auto t = net.make_labels();
      fill(x, [](const Index<5>& i) { return wave(i); });
      fill(t, [](const Index<5>& i) { return i[2] == 5 && i[4] == 3 ? 3 : 0; });
      const std::vector<double> before(net.parameters().begin(), net.parameters().end());
      const auto told = all_throw<usage_error>(comm, [&] { trainer.step(x, t); });
      CHECK(told.find("label 3 in sample 0 at voxel (d,h,w) 5,0,3") != told.npos);
      CHECK(std::ranges::equal(net.parameters(), before));
      fill(t, [](const Index<5>& i) { return i[2] % 3; });
      CHECK(trainer.step(x, t) == straight.step(x, t));
      CHECK(std::ranges::equal(net.parameters(), other.parameters()));
    }
  });
}
