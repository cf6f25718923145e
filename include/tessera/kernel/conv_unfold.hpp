// kernel/conv_unfold.hpp: convolutions of small volumes and many channels as matrix products, f32.
//
// Deep in a network a layer has more weights than cells. There the time goes into reading the weights, and a kernel
// that first brings them into a format of its own reads and writes them three times. Here the few cells are unfolded
// instead,
//   X[r, (tap, ci)] = the cell that `tap` sees from output r,
// and with the weights as they are stored, W[co, (tap, ci)], the passes are Y = X W^T, X' = Y' W (folded back) and
// W' = Y'^T X: each reads or writes the weights once.
//
// May know: base, kernel/problem.hpp, check.hpp, onednn.hpp, pointwise.hpp, workspace.hpp.
// Example: if (ConvUnfolded::pays(p)) ConvUnfolded(p).forward(x, w, bias, y);
#pragma once

#include <tessera/kernel/onednn.hpp>
#include <tessera/kernel/pointwise.hpp>

namespace tessera::kernel {

/// Takes views of any strides in n,d,h,w; channels contiguous. The weights are dense, stored co,d,h,w,ci.
class ConvUnfolded {
public:
  explicit ConvUnfolded(const Conv& p) : p_(p), rows_(p.n * product(p.out)), columns_(product(p.k) * p.ci) {
    check_problem(p_);
  }

  /// True where the weights outweigh the cells.
  static bool pays(const Conv& p) {
    const long cells = p.n * (p.ci * product(p.in) + p.co * product(p.out));
    return p.groups == 1 && cells > 0 && p.ci > 0 && p.co > 0 && product(w_extents(p)) > 2 * cells &&
           p.n * product(p.out) > 0;
  }

  const Conv& problem() const { return p_; }

  /// y = act(bias + w * x). `bias` may be null.
  void forward(const View<const float, 5>& x, const View<const float, 5>& w, const float* bias,
               const View<float, 5>& y) {
    check(x, w, y);
    const Scratch s = take_scratch();
    unfold(x, s.unfolded);
    onednn_gemm({false, s.unfolded}, {true, w.data}, rows_, p_.co, columns_, s.outputs, Gradient::overwrite);
    with_activation<float>(p_.act, p_.slope, [&](const auto& act) {
      for_each_output(y, [&](float* to, long row) {
        const float* from = s.outputs + row * p_.co;
        if (bias)
          map_elements(
              to, p_.co, [&act](auto v, auto b) { return act.value(v + b); }, from, bias);
        else
          map_elements(
              to, p_.co, [&act](auto v) { return act.value(v); }, from);
      });
    });
  }

  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const float, 5>& dy, const View<const float, 5>& w, const View<float, 5>& dx) {
    check(dx, w, dy);
    const Scratch s = take_scratch();
    take_outputs(dy, s.outputs);
    onednn_gemm({false, s.outputs}, {false, w.data}, rows_, columns_, p_.co, s.unfolded, Gradient::overwrite);
    fill_block(dx, 0.F);
    for_each_tap(dx, [&](float* cell, long row, long tap) {
      add_floats(s.unfolded + row * columns_ + tap * p_.ci, cell, p_.ci);
    });
  }

  /// dw and db (null: not wanted) = or += the gradients of <dy, conv(x)>.
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    check(x, dw, dy);
    const Scratch s = take_scratch();
    unfold(x, s.unfolded);
    take_outputs(dy, s.outputs);
    onednn_gemm({true, s.outputs}, {false, s.unfolded}, p_.co, columns_, rows_, dw.data, mode);
    if (db) sum_channels<float>(dy, db, mode);
  }

private:
  struct Scratch {
    float *unfolded, *outputs;
  };
  Scratch take_scratch() const {
    Scratch s{};
    const auto layout = [&](Carver carver) {
      s = {carver.take<float>(rows_ * columns_), carver.take<float>(rows_ * p_.co)};
      return carver.used();
    };
    layout(Carver(workspace(layout(Carver()))));
    return s;
  }

  void check(const View<const float, 5>& x, const View<const float, 5>& w, const View<const float, 5>& y) const {
    check_extents("x", x.extents, x_extents(p_));
    check_extents("the weights", w.extents, w_extents(p_));
    check_extents("y", y.extents, y_extents(p_));
    TESSERA_REQUIRE(w.dense() && (x.strides[1] == 1 || p_.ci == 1) && (y.strides[1] == 1 || p_.co == 1), p_.str(),
                    ": the weights must be dense and the channels of x and y contiguous");
  }

  /// Calls f(channels of the output, its row), in the order of the rows.
  template <class T, class F> void for_each_output(const View<T, 5>& y, const F& f) const {
    long row = 0;
    for (long n = 0; n < p_.n; ++n)
      for_each_index(whole(p_.out), [&](const Index<3>& q) { f(&y(n, 0, q[0], q[1], q[2]), row++); });
  }
  void take_outputs(const View<const float, 5>& dy, float* to) const {
    for_each_output(dy, [&](const float* from, long row) { std::copy_n(from, p_.co, to + row * p_.co); });
  }

  /// Calls f(channels of the cell, row of the output, tap) for every pair of an output and a cell of its window.
  template <class T, class F> void for_each_tap(const View<T, 5>& x, const F& f) const {
    long row = 0;
    for (long n = 0; n < p_.n; ++n)
      for_each_index(whole(p_.out), [&](const Index<3>& q) {
        long tap = 0;
        for_each_index(whole(p_.k), [&](const Index<3>& t) {
          Index<3> cell{};
          bool inside = true;
          for (int i = 0; i < 3; ++i) {
            cell[i] = q[i] * p_.stride[i] - p_.below[i] + t[i] * p_.dilation[i];
            inside = inside && cell[i] >= 0 && cell[i] < p_.in[i];
          }
          if (inside) f(&x(n, 0, cell[0], cell[1], cell[2]), row, tap);
          ++tap;
        });
        ++row;
      });
  }
  void unfold(const View<const float, 5>& x, float* to) const {
    std::fill_n(to, rows_ * columns_, 0.F);
    for_each_tap(
        x, [&](const float* cell, long row, long tap) { std::copy_n(cell, p_.ci, to + row * columns_ + tap * p_.ci); });
  }

  Conv p_;
  long rows_, columns_; // outputs; (tap, input channel) pairs
};

} // namespace tessera::kernel
