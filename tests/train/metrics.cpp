// Metrics of segmentations: by hand, plain loops, several steps, every grid to the last bit, replicas once, bad labels.
#include "net/networks.hpp"

#include <tessera/train/metrics.hpp>

using namespace tessera;
using namespace tessera::names;
using namespace tessera::test;

namespace {

constexpr Layout layouts[] = {over_ndhw, whole_samples, place(n, rep, h, w), place(d, d, rep, n), replicated(4)};

} // namespace

TEST_CASE("metrics: by hand") {
  // Truth by row: of class 0 five were found and one taken for 1, of class 1 two found and two taken for 0, class 2 has
  // one voxel, taken for 1; class 3 is nowhere.
  const Confusion m(4, {5, 1, 0, 0, 2, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0});
  CHECK(m.total() == 11);
  CHECK(m.truth(1) == 4);
  CHECK(m.predicted(1) == 4);
  CHECK(m.dice(0) == 10. / 13);
  CHECK(m.iou(0) == 5. / 8);
  CHECK(m.dice(1) == 0.5);
  CHECK(m.iou(1) == 2. / 6);
  CHECK(m.dice(2) == 0);
  CHECK(std::isnan(m.dice(3)));
  CHECK(m.accuracy() == 7. / 11);
  CHECK(m.mean_dice() == doctest::Approx((10. / 13 + 0.5 + 0) / 3));
  CHECK(m.mean_dice(Background::left_out) == 0.25);
  CHECK(m.mean_iou(Background::left_out) == doctest::Approx(1. / 6));
  CHECK(std::isnan(Confusion(1, {0}).accuracy()));
}

TEST_CASE("metrics: counts over steps and ranks equal plain loops; argmax; replicas count once") {
  const Extents<5> e{{3, 4, 5, 3, 2}};
  const auto score = [](int step, const Index<5>& i) { return wave(i, 2 * step); };
  const auto label = [](int step, const Index<5>& i) {
    const double v = wave(i, step + 0.5);
    return v > 0.9 ? 255 : v > 0.5 ? 3 : v > 0 ? 2 : v > -0.5 ? 1 : 0;
  };
  std::vector<std::int64_t> want(16);
  std::vector<std::vector<int>> classes(2);
  for (int step = 0; step < 2; ++step)
    for_each_index(whole(Extents<5>{{3, 1, 5, 3, 2}}), [&](Index<5> i) {
      const int truth = label(step, i);
      int best = 0;
      double most = -2;
      for (int k = 0; k < 4; ++k) {
        i[1] = k;
        if (score(step, i) > most) most = score(step, i), best = k;
      }
      classes[std::size_t(step)].push_back(best);
      if (truth != 255) ++want[std::size_t(4 * truth + best)];
    });
  on_ranks([&](const Communicator& comm) {
    on_every_grid(comm, [&](const AnyGrid& grid) {
      for (const Layout& layout : layouts) {
        Tensor<float, 5> y(grid, Map<5>(layout, grid.shape(), e));
        Tensor<std::uint8_t, 5> t(grid, label_map(y.map()));
        Tensor<std::int32_t, 5> found(grid, t.map());
        ConfusionCounter counter(4, 255), from_labels(4, 255);
        for (int step = 0; step < 2; ++step) {
          fill(y, [&](const Index<5>& i) { return score(step, i); });
          fill(t, [&](const Index<5>& i) { return label(step, i); });
          counter.add(y, t);
          argmax(y, found);
          const auto all = gather(found);
          CHECK(std::ranges::equal(all, classes[std::size_t(step)]));
          from_labels.add_labels(found, t);
        }
        for (const Confusion& got : {counter.result(), from_labels.result(), counter.result()})
          for (long k = 0; k < 16; ++k) CHECK(got.at(k / 4, k % 4) == want[std::size_t(k)]);
        counter.clear();
        CHECK(counter.result().total() == 0);
      }
    });
  });
}

TEST_CASE("metrics: equal scores are the first class; bad labels and shapes are refused on every rank") {
  on_ranks({1, 2, 4}, [](const Communicator& comm) {
    const AnyGrid grid(comm, {1, comm.size()});
    Tensor<float, 5> y(grid, Map<5>(place(n, d), grid.shape(), {{1, 3, 4, 1, 1}}));
    Tensor<std::int32_t, 5> t(grid, label_map(y.map()));
    ConfusionCounter counter(3);
    CHECK(counter.result().total() == 0);
    counter.add(y, t);
    CHECK(counter.result().at(0, 0) == 4);
    CHECK(counter.result().accuracy() == 1);
    fill(t, [](const Index<5>& i) { return i[2] == 3 ? -1 : 0; });
    counter.add(y, t);
    CHECK(all_throw<usage_error>(comm, [&] { counter.result(); }).find("1 voxels with a label that is none of the 3") !=
          std::string::npos);
    CHECK(all_throw<usage_error>(comm, [&] { ConfusionCounter(2).add(y, t); }).find("prediction of 3") !=
          std::string::npos);
    CHECK_THROWS_AS(ConfusionCounter(0), usage_error);
    const Tensor<std::int32_t, 5> other(grid, Map<5>(place(n, d), grid.shape(), {{1, 1, 5, 1, 1}}));
    CHECK(all_throw<usage_error>(comm, [&] { counter.add(y, other); }).find("make_labels()") != std::string::npos);
    Tensor<std::int8_t, 5> narrow(grid, Map<5>(place(n, d), grid.shape(), {{1, 1, 4, 1, 1}}));
    const Tensor<float, 5> many(grid, Map<5>(place(n, d), grid.shape(), {{1, 200, 4, 1, 1}}));
    CHECK(all_throw<usage_error>(comm, [&] { argmax(many, narrow); }).find("wider") != std::string::npos);
  });
}
