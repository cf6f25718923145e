// check::layer on classes derived from Layer, right and wrong in what only such classes can do wrong: halos, their
// adjoints, parameter gradients on ranks without outputs, what is announced.
#include "../support/ranks.hpp"

#include <tessera/check/layer.hpp>

using namespace tessera;
using namespace tessera::names;

namespace {

enum class Wrong { nothing, no_halo, no_adjoint, leaves_dx, leaves_dw, never_ready, only_with_dx, once, changes_x };

/// y(q) = a (x(q - 1) + x(q + 1)) along depth, one number a.
class Neighbours final : public Layer<double> {
public:
  Neighbours(Wrong wrong, const AnyGrid& grid, const Map<5>& in, const Map<5>& out)
      : wrong_(wrong), out_(out.box(grid.rank())), halo_(grid, in, stencil(), out) {}
  static Stencil stencil() { return window(3, 1, 1).same().padded_with(d, Padding::reflect); }
  Box<5> need() const override { return halo_.need(); }
  void forward(Pass<double>& pass, Field& x, Field& y) override {
    if (wrong_ != Wrong::no_halo && !(wrong_ == Wrong::once && runs_++ > 0)) halo_.run(x);
    const View<const double, 5> v = std::as_const(x).view(x.store());
    for_each_index(out_, [&](const Index<5>& q) {
      y.view()[q - out_.lo] = pass.weights[0] * (v[by(q, -1) - x.store().lo] + v[by(q, 1) - x.store().lo]);
    });
    if (wrong_ == Wrong::changes_x && !x.box().empty()) x.view()(0, 0, 0, 0, 0) += 1;
  }
  void backward(Pass<double>& pass, Field& x, const Field&, Field& dy, Field* dx) override {
    const View<const double, 5> v = std::as_const(x).view(x.store());
    double sum = 0;
    for_each_index(out_, [&](const Index<5>& q) {
      sum += dy.view()[q - out_.lo] * (v[by(q, -1) - x.store().lo] + v[by(q, 1) - x.store().lo]);
    });
    if (!(wrong_ == Wrong::leaves_dw && out_.empty())) pass.weight_gradients[0] = sum;
    if (wrong_ != Wrong::never_ready && !(wrong_ == Wrong::only_with_dx && !dx)) pass.gradients_ready();
    if (!dx) return;
    if (wrong_ != Wrong::leaves_dx || dx->box().extent(2) > 1) Blocks<host>::fill(dx->view(dx->store()), 0.0);
    for_each_index(out_, [&](const Index<5>& q) {
      for (const long steps : {-1L, 1L})
        dx->view(dx->store())[by(q, steps) - dx->store().lo] += pass.weights[0] * dy.view()[q - out_.lo];
    });
    if (wrong_ != Wrong::no_adjoint) halo_.run_adjoint(*dx);
  }

private:
  static Index<5> by(Index<5> i, long steps) {
    i[2] += steps;
    return i;
  }
  Wrong wrong_;
  Box<5> out_;
  Halo<double, 5> halo_;
  int runs_ = 0;
};

check::Subject subject(Wrong wrong) {
  check::Subject s;
  s.name = "neighbours";
  s.layouts = {place(d, w)};
  s.weights = {{1, 1, 1, 1, 1}};
  s.maps = [](const GridShape& shape, const Layout& layout) {
    const Map<5> in(layout, shape, {{1, 2, 7, 1, 3}}), uneven = check::detail::growing(in);
    const auto out = [](const Map<5>& m) { return output_map(m, Neighbours::stencil(), 2); };
    return std::vector<std::pair<Map<5>, Map<5>>>{{in, out(in)}, {uneven, out(uneven)}};
  };
  s.make = [wrong](const AnyGrid& grid, const Map<5>& in, const Map<5>& out) {
    return std::make_unique<Neighbours>(wrong, grid, in, out);
  };
  return s;
}

std::string told(Wrong wrong) {
  try {
    return check::layer(subject(wrong), {.ranks = {1, 2, 3, 6}}).str();
  } catch (const check::check_error& e) { return e.what(); }
}

} // namespace

TEST_CASE("a class derived from Layer: right, and wrong in each way") {
  CHECK(told(Wrong::nothing).starts_with("neighbours: 18 grids and boundaries, linear"));
  const auto says = [](Wrong wrong, const std::string& what) {
    const std::string all = told(wrong);
    CHECK_MESSAGE(all.find(what) != std::string::npos, all, " lacks ", what);
    MESSAGE(all);
  };
  says(Wrong::no_halo, "y is not a number in inference at 0x0x0x0x0");
  says(Wrong::no_halo, "is the halo exchanged before it is read?");
  says(Wrong::no_adjoint, "dx differs from central differences");
  says(Wrong::leaves_dx, "dx is not written in training at 0x0x0x0x0");
  says(Wrong::leaves_dw, "a rank without outputs writes zeros");
  says(Wrong::never_ready, "calls of gradients_ready() made and wanted: 0 and 1; call it once");
  says(Wrong::only_with_dx, "calls of gradients_ready() made and wanted: 0 and 1; call it once");
  says(Wrong::once, "y is not a number");
  says(Wrong::changes_x, "x differs from one rank's");
  says(Wrong::changes_x, "a layer changes no cell of x that its rank owns");
}
