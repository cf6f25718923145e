// check/layer.hpp: check::layer, whether a layer keeps its contract: the test of a layer of your own.
//
// On one rank: gradients of the input, the weights and the biases equal central differences. On every factorisation of
// the given numbers of ranks, in balanced and in uneven blocks: outputs and all gradients equal those of one rank, and
// <J v, u> = <v, J* u>. Memory is poisoned before a layer runs, so what it forgets to write, or takes from cells it did
// not fetch, shows. Works in any test framework and without one: it throws check_error, the same on every rank.
//
// May know: everything.
// Example: check::layer(Sharpen{});   check::layer(conv(8), {.ranks = {1, 4}});
#pragma once

#include <tessera/backend/reference.hpp>
#include <tessera/check/subject.hpp>
#include <tessera/comm/threads.hpp>
#include <tessera/tensor/gather.hpp>

namespace tessera::check {

/// What was found.
struct LayerReport {
  std::string layer;
  int grids = 0;       ///< pairs of a grid and a layout, with one set of boundaries
  bool linear = true;  ///< in its input
  double gradient = 0; ///< the worst gradient against differences, relative
  double adjoint = 0;  ///< the worst |<Jv,u> - <v,J*u>|, relative
  std::string str() const {
    return text(layer, ": ", grids, " grids and boundaries, ", linear ? "linear" : "not linear", ", gradients to ",
                detail::digits(gradient), ", adjoint to ", detail::digits(adjoint));
  }
};

namespace detail {

/// All that goes into a layer, and all that comes out, in logical order; parameters as they lie in memory.
struct Data {
  std::vector<double> x, w, b;
};
struct Outcome {
  std::vector<double> y, dx, dw, db, state;
};

enum class Backwards : int { none, without_dx, with_dx };

/// One layer on one grid.
class Trial {
public:
  Trial(const Subject& s, const AnyGrid& grid, const Map<5>& in, const Map<5>& out, std::string where)
      : s_(s), grid_(grid), in_(in), out_(out), where_(std::move(where)), layer_(s.make(grid, in, out)) {}

  /// Runs the layer; with `want`, everything must equal it. What comes back of y and dx is gathered.
  Outcome run(const Data& data, const std::vector<double>& dy, Mode mode, Backwards back, const Outcome* want,
              double tolerance) {
    const char* const when = mode == Mode::training ? "in training" : "in inference";
    Outcome o;
    Tensor<double, 5> x = tensor(in_, layer_->need(), data.x), y = tensor(out_, out_.box(grid_.rank()), {});
    o.state.assign(std::size_t(s_.state), 0.0);
    std::fill(o.state.begin() + s_.state / 2, o.state.end(), 1.0);
    o.dw.assign(data.w.size(), poison(Poison::unwritten)), o.db.assign(data.b.size(), poison(Poison::unwritten));
    Pass<double> pass;
    int ready = 0;
    pass.mode = mode, pass.seed = 7, pass.step = 3;
    pass.weights = data.w, pass.biases = data.b, pass.state = o.state;
    pass.weight_gradients = o.dw, pass.bias_gradients = o.db;
    pass.poke = [this] { grid_.world().progress(); };
    pass.gradients_ready = [&ready] { ++ready; };

    layer_->forward(pass, x, y);
    require_numbers("y", y.view(), y.box().lo, out_.extents(), when);
    if (want) require_equal("y", y.view(), y.box().lo, out_.extents(), want->y, tolerance, when);
    o.y = gather(y);
    if (want && s_.state > 0)
      require_equal("state", view(o.state), {}, {{s_.state, 1, 1, 1, 1}}, want->state, tolerance, when);
    if (back == Backwards::none) return o;

    Tensor<double, 5> g = tensor(out_, out_.box(grid_.rank()), dy), dx = tensor(in_, layer_->need(), {});
    const bool with_dx = back == Backwards::with_dx;
    layer_->backward(pass, x, y, g, with_dx ? &dx : nullptr);
    const Extents<5> weights = s_.weight_count() ? s_.weights : Extents<5>{};
    const View<const double, 5> dw(o.dw.data(), weights), db = view(o.db);
    require_numbers("dw", dw, {}, weights, when, "a rank without outputs writes zeros");
    require_numbers("db", db, {}, db.extents, when, "a rank without outputs writes zeros");
    const Communicator& ranks = grid_.over(out_.layout().mask(Placement::Kind::split));
    ranks.iall_reduce(std::span<double>(o.dw)).wait();
    ranks.iall_reduce(std::span<double>(o.db)).wait();
    const int wanted = data.w.empty() && data.b.empty() ? 0 : 1;
    require(ready == wanted, "calls of gradients_ready() made and wanted", ready, wanted,
            "call it once, when the gradients of the parameters are complete on this rank");
    require_equal("x", x.view(), x.box().lo, in_.extents(), data.x, 0, when,
                  "a layer changes no cell of x that its rank owns");
    if (want) {
      std::vector<double> logical; // parameters lie channels-last
      for_each_index(whole(weights),
                     [&](const Index<5>& i) { logical.push_back(want->dw[std::size_t(dw.offset(i))]); });
      require_equal("dw", dw, {}, weights, logical, tolerance, when);
      require_equal("db", db, {}, db.extents, want->db, tolerance, when);
    }
    if (!with_dx) return o;
    require_numbers("dx", dx.view(), dx.box().lo, in_.extents(), when);
    if (want) require_equal("dx", dx.view(), dx.box().lo, in_.extents(), want->dx, tolerance, when);
    o.dx = gather(dx);
    return o;
  }

  /// Throws on every rank if `good` is false on one. Collective.
  void require(bool good, const char* what, double got, double want, const char* words) const {
    Difference d;
    if (!good) d = {0, got, want};
    d = first_of_all(grid_.world(), d);
    if (d.any()) fail(text(what, ": ", digits(d.got), " and ", digits(d.want)), std::nullopt, d.got, d.want, words);
  }
  [[noreturn]] void fail(const std::string& what, const std::optional<Index<5>>& at, double got, double want,
                         const std::string& words) const {
    detail::fail(s_.name, grid_.shape().str(), " " + where_, what, at, got, want, words);
  }

private:
  Tensor<double, 5> tensor(const Map<5>& map, const Box<5>& store, const std::vector<double>& values) const {
    Tensor<double, 5> t(grid_, map);
    if (!store.empty()) t.reserve(store);
    std::fill_n(t.data(), t.store().volume(), poison(values.empty() ? Poison::unwritten : Poison::beyond));
    if (!values.empty()) scatter(t, values);
    return t;
  }
  static View<const double, 5> view(const std::vector<double>& v) { return {v.data(), {{long(v.size()), 1, 1, 1, 1}}}; }

  /// No poison in what a rank holds. Collective.
  void require_numbers(const char* what, const View<const double, 5>& part, const Index<5>& origin, const Extents<5>& e,
                       const char* when, const char* words = "write every element that the rank holds") const {
    Difference d;
    for_each_index(whole(part.extents), [&](const Index<5>& i) {
      if (!d.any() && std::isnan(part[i])) d = {linear(i + origin, e), double(poison_in(part[i])), 0};
    });
    d = first_of_all(grid_.world(), d);
    if (!d.any()) return;
    const bool unwritten = d.got == double(Poison::unwritten);
    fail(text(what, unwritten ? " is not written " : " is not a number ", when), index_of(d.at, e),
         poison(Poison::none), 0,
         unwritten ? words : "it was made from cells that nobody fetched: is the halo exchanged before it is read?");
  }
  void
  require_equal(const char* what, const View<const double, 5>& part, const Index<5>& origin, const Extents<5>& e,
                const std::vector<double>& want, double tolerance, const char* when,
                const char* words = "does it use local indices where global ones count, or clip its windows at the "
                                    "block?") const {
    const Difference d = first_of_all(grid_.world(), first_difference(part, origin, e, want, tolerance));
    if (d.any()) fail(text(what, " differs from one rank's ", when), index_of(d.at, e), d.got, d.want, words);
  }

  const Subject& s_;
  AnyGrid grid_;
  Map<5> in_, out_;
  std::string where_;
  std::unique_ptr<Layer<double>> layer_;
};

inline double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double length(const std::vector<double>& a) { return std::sqrt(inner(a, a)); }
inline std::vector<double> moved(std::vector<double> a, double t, const std::vector<double>& v) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += t * v[i];
  return a;
}

/// What one rank computes: the measure of all grids.
struct Alone {
  Data data;
  std::vector<double> dy, direction; ///< the direction is one in x
  Outcome training, inference;
  bool linear = false;
};

/// The output at x + by * direction.
inline std::vector<double> output_at(Trial& t, const Alone& a, double by) {
  const Data data{moved(a.data.x, by, a.direction), a.data.w, a.data.b};
  return t.run(data, {}, Mode::training, Backwards::none, nullptr, 0).y;
}
/// J v by central differences.
inline std::vector<double> derivative(Trial& t, const Alone& a, double step) {
  std::vector<double> above = output_at(t, a, step);
  const std::vector<double> below = output_at(t, a, -step);
  for (std::size_t i = 0; i < above.size(); ++i) above[i] = (above[i] - below[i]) / (2 * step);
  return above;
}
/// True if the outputs at three places along the direction lie on a straight line through the one in the middle.
inline bool is_straight(Trial& t, const Alone& a) {
  const auto &at = a.training.y, above = output_at(t, a, 0.5), below = output_at(t, a, -0.25);
  double bend = 0;
  for (std::size_t i = 0; i < at.size(); ++i) bend = std::max(bend, std::abs(above[i] + 2 * below[i] - 3 * at[i]));
  return bend <= 1e-12 * std::max(1.0, length(at));
}

/// Compares one gradient with differences of <dy, y>: along two directions, and where that fails element by element.
inline void check_gradient(Trial& t, const Alone& a, std::vector<double> Data::*part,
                           const std::vector<double>& gradient, const char* name, const Extents<5>& e,
                           const LayerOptions& o, LayerReport& report) {
  const auto loss = [&](double step, const std::vector<double>& v) {
    Data d = a.data;
    d.*part = moved(std::move(d.*part), step, v);
    return inner(a.dy, t.run(d, {}, Mode::training, Backwards::none, nullptr, 0).y);
  };
  constexpr double step = 1e-5;
  const auto slope = [&](const std::vector<double>& v) { return (loss(step, v) - loss(-step, v)) / (2 * step); };
  const std::size_t count = gradient.size();
  if (count == 0) return;
  bool good = true;
  for (const std::uint64_t salt : {11U, 12U}) {
    const std::vector<double> v = scattered_numbers(o.seed + salt, count);
    const double want = slope(v), got = inner(gradient, v);
    const double off = std::abs(got - want) / std::max({1.0, std::abs(want), length(gradient)});
    report.gradient = std::max(report.gradient, off);
    good = good && off <= o.gradient;
  }
  if (good) return;
  const View<const double, 5> lie(nullptr, e); // parameters lie channels-last, x is in logical order
  const bool in_memory = part != &Data::x;
  Index<5> worst{};
  double got = 0, want = 0, most = -1;
  bool found = false;
  for_each_index(whole(e), [&](const Index<5>& i) {
    if (found) return;
    const std::size_t k = std::size_t(in_memory ? lie.offset(i) : linear(i, e));
    std::vector<double> v(count, 0.0);
    v[k] = 1;
    const double s = slope(v), off = std::abs(gradient[k] - s) / std::max(1.0, std::abs(s));
    found = !(off <= 10 * o.gradient);
    if (found || off > most) most = off, worst = i, got = gradient[k], want = s;
  });
  t.fail(text(name, " differs from central differences of the loss"), worst, got, want,
         "is a term of the derivative missing, or its sign wrong?");
}

/// Everything that one rank can tell.
inline Alone check_alone(const Subject& s, const LayerOptions& o, LayerReport& report) {
  s.alone();
  const AnyGrid grid(Communicator(), std::vector<int>(std::size_t(s.layouts.front().axes), 1));
  const auto [in, out] = s.maps(grid.shape(), s.layouts.front()).front();
  Trial t(s, grid, in, out, text("on grid ", grid.shape()));
  Alone a;
  const auto numbers = [&](std::uint64_t salt, long count) {
    return scattered_numbers(o.seed + salt, std::size_t(count));
  };
  a.data = {numbers(1, product(in.extents())), numbers(2, long(s.weight_count())), numbers(3, s.biases)};
  a.dy = numbers(4, product(out.extents())), a.direction = numbers(5, product(in.extents()));
  a.inference = t.run(a.data, a.dy, Mode::inference, Backwards::with_dx, nullptr, 0);
  a.training = t.run(a.data, a.dy, Mode::training, Backwards::with_dx, nullptr, 0);
  a.linear = report.linear = is_straight(t, a);
  check_gradient(t, a, &Data::x, a.training.dx, "dx", in.extents(), o, report);
  check_gradient(t, a, &Data::w, a.training.dw, "dw", s.weights, o, report);
  check_gradient(t, a, &Data::b, a.training.db, "db", {{s.biases, 1, 1, 1, 1}}, o, report);
  return a;
}

/// Every way to write `ranks` as a product of `axes` sizes.
inline std::vector<std::vector<int>> all_grids(int ranks, int axes) {
  if (axes <= 1) return {std::vector<int>(std::size_t(axes), ranks)};
  std::vector<std::vector<int>> all;
  for (int first = 1; first <= ranks; ++first)
    if (ranks % first == 0)
      for (auto rest : all_grids(ranks / first, axes - 1)) {
        rest.insert(rest.begin(), first);
        all.push_back(std::move(rest));
      }
  return all;
}

/// Every grid of these ranks against one rank. Collective.
inline void check_on(const Communicator& world, const Subject& s, const LayerOptions& o, const Alone& a,
                     LayerReport& report) {
  for (const Layout& layout : s.layouts)
    for (const auto& sizes : all_grids(world.size(), layout.axes)) {
      const AnyGrid grid(world, sizes);
      const char* blocks = ", balanced blocks";
      for (const auto& [in, out] : s.maps(grid.shape(), layout)) {
        Trial t(s, grid, in, out, text("on grid ", grid.shape(), " as ", layout, blocks));
        for (int again = 0; again < 2; ++again) // a layer serves every step
          t.run(a.data, a.dy, Mode::training, Backwards::with_dx, &a.training, o.equal);
        t.run(a.data, a.dy, Mode::training, Backwards::without_dx, &a.training, o.equal);
        const Outcome last = t.run(a.data, a.dy, Mode::inference, Backwards::with_dx, &a.inference, o.equal);
        const Outcome trained = t.run(a.data, a.dy, Mode::training, Backwards::with_dx, &a.training, o.equal);
        const std::vector<double> jv = derivative(t, a, a.linear ? 0.5 : 1e-5);
        const double left = inner(jv, a.dy), right = inner(a.direction, trained.dx);
        const double off = std::abs(left - right) / std::max(1.0, length(jv) * length(a.dy));
        report.adjoint = std::max(report.adjoint, off);
        t.require(off <= (a.linear ? 1e-12 : o.gradient), "<v, J* u> and <J v, u> differ", right, left,
                  "is what backward adds to the margins of dx what forward read there?");
        ++report.grids;
        blocks = ", uneven blocks";
      }
    }
}

} // namespace detail

/// Checks a layer given as a Subject with ranks as threads of this process. Throws check_error.
inline LayerReport layer(const Subject& s, const LayerOptions& options = {}) {
  LayerReport report{.layer = s.name};
  const detail::Alone alone = detail::check_alone(s, options, report);
  for (const int ranks : options.ranks) {
    LayerReport after;
    run_threads(ranks, [&](const Communicator& world) {
      LayerReport mine = report;
      detail::check_on(world, s, options, alone, mine);
      if (world.rank() == 0) after = mine;
    });
    report = after;
  }
  return report;
}
/// The same on the ranks of a communicator, for example those of mpirun. Collective.
inline LayerReport layer(const Communicator& world, const Subject& s, const LayerOptions& options = {}) {
  LayerReport report{.layer = s.name};
  const detail::Alone alone = detail::check_alone(s, options, report);
  detail::check_on(world, s, options, alone, report);
  return report;
}

/// A layer of the library, or of the user's own.
template <class L>
concept Checkable = std::is_same_v<L, LayerSpec> || LocalLayer<L>;

template <class Backend = reference, Checkable L> LayerReport layer(const L& what, const LayerOptions& options = {}) {
  return layer(subject_of<Backend>(what, options), options);
}
template <class Backend = reference, Checkable L>
LayerReport layer(const Communicator& world, const L& what, const LayerOptions& options = {}) {
  return layer(world, subject_of<Backend>(what, options), options);
}

} // namespace tessera::check
