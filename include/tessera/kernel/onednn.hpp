// kernel/onednn.hpp: convolutions and dense layers through oneDNN, f32, on dense channels-last samples.
//
// The one file that includes dnnl.hpp. It works with oneDNN 2.x (operation descriptors) and 3.x (none). Activations are
// used where they lie and in the format they have; a strided operand is refused, because oneDNN would fall to a scalar
// kernel for it. Weights, stored co,d,h,w,ci, are brought into the format oneDNN likes before each use, and counted.
//
// May know: base, space, kernel/problem.hpp, check.hpp, reference.hpp, workspace.hpp.
// Example: OnednnConvolution conv(problem);  conv.forward(x, w, bias, y);
#pragma once

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <tessera/base/copy.hpp>
#include <tessera/kernel/check.hpp>
#include <tessera/kernel/reference.hpp>
#include <tessera/kernel/workspace.hpp>
#include <vector>

namespace tessera::kernel {

/// What this process has asked of oneDNN. Activation reorders and copies stand at 0, always.
struct OnednnCounters {
  std::atomic<long> primitives{0}, executions{0}, weight_reorders{0}, activation_reorders{0};
};
inline OnednnCounters& onednn_counters() {
  static OnednnCounters counters;
  return counters;
}

namespace detail {

/// Runs f and turns oneDNN's exceptions into backend_error.
template <class F> auto onednn(const std::string& what, const F& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    throw backend_error(text("oneDNN: ", what, ": ", e.what(), " (code ", int(e.status), ")"));
  }
}

/// Layers keep their primitives themselves. oneDNN's own cache would hold on to the code of every shape that ever was,
/// up to 1024 of them, so it is made small, unless the user has given its size in the environment.
inline const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine = [] {
    if (!std::getenv("DNNL_PRIMITIVE_CACHE_CAPACITY") && !std::getenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY"))
      dnnl::set_primitive_cache_capacity(32);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}
/// Ranks may be threads: each has its own stream.
inline const dnnl::stream& onednn_stream() {
  thread_local const dnnl::stream stream(onednn_engine());
  return stream;
}

// The two API generations differ here and nowhere else.
#if DNNL_VERSION_MAJOR >= 3
template <class Primitive, class... Args>
auto onednn_descriptor(const dnnl::primitive_attr& attributes, const Args&... args) {
  return typename Primitive::primitive_desc(onednn_engine(), args..., attributes);
}
template <class Primitive, class Hint, class... Args>
auto onednn_backward_descriptor(const dnnl::primitive_attr& attributes, const Hint& forward, const Args&... args) {
  return typename Primitive::primitive_desc(onednn_engine(), args..., forward, attributes);
}
inline void append_eltwise(dnnl::post_ops& ops, dnnl::algorithm what, float alpha) {
  ops.append_eltwise(what, alpha, 0.F);
}
#else
template <class Primitive, class... Args>
auto onednn_descriptor(const dnnl::primitive_attr& attributes, const Args&... args) {
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attributes, onednn_engine());
}
template <class Primitive, class Hint, class... Args>
auto onednn_backward_descriptor(const dnnl::primitive_attr& attributes, const Hint& forward, const Args&... args) {
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attributes, onednn_engine(), forward);
}
inline void append_eltwise(dnnl::post_ops& ops, dnnl::algorithm what, float alpha) {
  ops.append_eltwise(1.F, what, alpha, 0.F);
}
#endif

inline void append_activation(dnnl::post_ops& ops, Activation act, float slope) {
  switch (act) {
  case Activation::none: return;
  case Activation::relu: return append_eltwise(ops, dnnl::algorithm::eltwise_relu, 0.F);
  case Activation::leaky_relu: return append_eltwise(ops, dnnl::algorithm::eltwise_relu, slope);
  case Activation::elu: return append_eltwise(ops, dnnl::algorithm::eltwise_elu, slope);
  case Activation::sigmoid: return append_eltwise(ops, dnnl::algorithm::eltwise_logistic, 0.F);
  case Activation::tanh: return append_eltwise(ops, dnnl::algorithm::eltwise_tanh, 0.F);
  }
}

inline dnnl::primitive_attr onednn_attributes(Activation act, double slope) {
  dnnl::primitive_attr a;
  a.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (act != Activation::none) {
    dnnl::post_ops ops;
    append_activation(ops, act, static_cast<float>(slope));
    a.set_post_ops(ops);
  }
  return a;
}

inline dnnl::memory::desc onednn_f32(const dnnl::memory::dims& dims, dnnl::memory::format_tag tag) {
  return {dims, dnnl::memory::data_type::f32, tag};
}

/// A primitive with its arguments: made once, then only pointed at other memory.
class OnednnCall {
public:
  OnednnCall() = default;
  OnednnCall(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, std::string implementation)
      : primitive_(primitive), implementation_(std::move(implementation)), scratch_bytes_(scratchpad.get_size()) {
    onednn_counters().primitives.fetch_add(1, std::memory_order_relaxed);
    if (scratch_bytes_) add(DNNL_ARG_SCRATCHPAD, scratchpad);
  }
  void add(int argument, const dnnl::memory::desc& desc) {
    memories_.emplace_back(desc, onednn_engine(), nullptr);
    arguments_.push_back({argument, memories_.back().get()});
  }
  /// Points an argument at its data. oneDNN's C++ API has no const handles.
  void point(int argument, const float* data) {
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].arg == argument) memories_[i].set_data_handle(const_cast<float*>(data));
  }
  void run() {
    if (scratch_bytes_) point(DNNL_ARG_SCRATCHPAD, reinterpret_cast<float*>(workspace(scratch_bytes_)));
    const dnnl::stream& stream = onednn_stream();
    // The C call takes the prepared list; the C++ one would build a new list each time.
    const auto status =
        dnnl_primitive_execute(primitive_.get(), stream.get(), int(arguments_.size()), arguments_.data());
    if (status != dnnl_success)
      throw backend_error(text("oneDNN: executing ", implementation_, ": code ", int(status)));
    onednn("waiting", [&] { dnnl::stream(stream).wait(); });
    onednn_counters().executions.fetch_add(1, std::memory_order_relaxed);
  }
  const std::string& implementation() const { return implementation_; }

private:
  dnnl::primitive primitive_;
  std::string implementation_;
  std::size_t scratch_bytes_ = 0;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// Weights between the user's format and the one oneDNN chose for a pass. Passes them through where the two are equal.
class OnednnWeights {
public:
  enum class Direction { in, out };
  OnednnWeights() = default;
  OnednnWeights(const dnnl::memory::desc& stored, const dnnl::memory::desc& chosen, Direction direction) {
    if (stored == chosen) return;
    block_ = Buffer<float>((chosen.get_size() + sizeof(float) - 1) / sizeof(float));
    const auto& from = direction == Direction::in ? stored : chosen;
    const auto& to = direction == Direction::in ? chosen : stored;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::reorder::primitive_desc d(onednn_engine(), from, onednn_engine(), to, attributes);
    reorder_.emplace(dnnl::reorder(d), d.scratchpad_desc(), "reorder");
    reorder_->add(DNNL_ARG_FROM, from);
    reorder_->add(DNNL_ARG_TO, to);
  }
  /// The weights `w` in the chosen format.
  const float* bring(const float* w) {
    if (!reorder_) return w;
    run(w, block_.data());
    return block_.data();
  }
  /// Where oneDNN is to write, given that the result belongs in `w`.
  float* room(float* w) { return reorder_ ? block_.data() : w; }
  /// Takes what oneDNN wrote into room() to `w`.
  void take(float* w) {
    if (reorder_) run(block_.data(), w);
  }

private:
  void run(const float* from, float* to) {
    reorder_->point(DNNL_ARG_FROM, from);
    reorder_->point(DNNL_ARG_TO, to);
    reorder_->run();
    onednn_counters().weight_reorders.fetch_add(1, std::memory_order_relaxed);
  }
  std::optional<OnednnCall> reorder_;
  Buffer<float> block_;
};

/// One pass: the primitive and the way of its weights.
struct OnednnPass {
  OnednnCall call;
  OnednnWeights weights;
};

} // namespace detail

/// to += from
inline void add_floats(const float* from, float* to, long count) {
  for (long i = 0; i < count; ++i) to[i] += from[i];
}

/// An operand of a matrix product, row-major; stored the other way round if `transposed`.
struct Matrix {
  bool transposed = false;
  const float* data = nullptr;
};

/// C (m x n) = or += A (m x k) B (k x n), row-major and dense.
inline void onednn_gemm(const Matrix& a, const Matrix& b, long m, long n, long k, float* c, Gradient mode) {
  if (k == 0 && mode == Gradient::overwrite) std::fill_n(c, m * n, 0.F);
  if (m == 0 || n == 0 || k == 0) return;
  const auto status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.F, a.data, a.transposed ? m : k, b.data,
                 b.transposed ? k : n, mode == Gradient::overwrite ? 0.F : 1.F, c, n);
  if (status != dnnl_success)
    throw backend_error(text("oneDNN: matrix product ", m, "x", n, "x", k, ": code ", int(status)));
  onednn_counters().executions.fetch_add(1, std::memory_order_relaxed);
}

/// One convolution problem with its primitives. x and y are dense sample by sample (dense_samples); where the batch is
/// dense too, one primitive does it all. Not thread safe: one object a thread.
class OnednnConvolution {
public:
  explicit OnednnConvolution(const Conv& p) : p_(p) {
    check_problem(p_);
    idle_ = p_.n == 0 || p_.ci == 0 || p_.co == 0 || product(p_.in) == 0 || product(p_.out) == 0;
    if (idle_) return;
    for (int i = 0; i < 3; ++i) {
      // What oneDNN calls the right padding follows from the shapes; it must not be negative. Rows that no window reads
      // are covered by the rounding of its shape formula, and what is more than that can be cut off along depth only.
      const long reach = (p_.out[i] - 1) * p_.stride[i] + span(p_.k[i], p_.dilation[i]) - p_.below[i];
      read_[i] = p_.in[i];
      right_[i] = std::max(0L, reach - p_.in[i]);
      if (p_.in[i] - reach < p_.stride[i]) continue;
      TESSERA_REQUIRE(i == 0 && reach > 0, p_.str(), ": the block holds ", p_.in[i] - reach, " cells of dim ", i,
                      " beyond the last window; give it only what the windows need");
      read_[i] = reach;
    }
  }

  const Conv& problem() const { return p_; }
  /// The implementation oneDNN reports for the pass; "none" if there is nothing to do.
  std::string implementation(Pass pass) {
    return idle_ ? "none" : this->pass(pass, p_.n, Bias::without).call.implementation();
  }

  /// y = act(bias + w * x). `bias` may be null.
  void forward(const View<const float, 5>& x, const View<const float, 5>& w, const float* bias,
               const View<float, 5>& y) {
    check(x, w, y);
    if (idle_) return reference::convolution<float>(p_, x, w, bias, y);
    const float* weights = nullptr;
    for_each_call(x, y, Pass::forward, bias ? Bias::with : Bias::without,
                  [&](detail::OnednnPass& pass, const float* px, const float* py, bool first) {
                    if (first) weights = pass.weights.bring(w.data);
                    pass.call.point(DNNL_ARG_SRC, px);
                    pass.call.point(DNNL_ARG_WEIGHTS, weights);
                    pass.call.point(DNNL_ARG_BIAS, bias);
                    pass.call.point(DNNL_ARG_DST, py);
                    pass.call.run();
                  });
  }

  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const float, 5>& dy, const View<const float, 5>& w, const View<float, 5>& dx) {
    check(dx, w, dy);
    if (idle_) return reference::convolution_backward_data<float>(p_, dy, w, dx);
    const float* weights = nullptr;
    for_each_call(dx, dy, Pass::backward_data, Bias::without,
                  [&](detail::OnednnPass& pass, const float* px, const float* py, bool first) {
                    if (first) weights = pass.weights.bring(w.data);
                    pass.call.point(DNNL_ARG_DIFF_DST, py);
                    pass.call.point(DNNL_ARG_WEIGHTS, weights);
                    pass.call.point(DNNL_ARG_DIFF_SRC, px);
                    pass.call.run();
                  });
    if (read_ != p_.in) {
      Box<5> unread = whole(dx.extents);
      unread.lo[2] = read_[0];
      fill_block(dx.box(unread), 0.F);
    }
  }

  /// dw and db (null: not wanted) = or += the gradients of <dy, conv(x)>.
  void backward_weights(const View<const float, 5>& x, const View<const float, 5>& dy, const View<float, 5>& dw,
                        float* db, Gradient mode) {
    check(x, dw, dy);
    if (idle_) return reference::convolution_backward_weights<float>(p_, x, dy, dw, db, mode);
    const long weights = dw.size();
    for_each_call(x, dy, Pass::backward_weights, db ? Bias::with : Bias::without,
                  [&](detail::OnednnPass& pass, const float* px, const float* py, bool first) {
                    const bool add = !first || mode == Gradient::accumulate;
                    if (add && addend_.size() == 0) addend_ = Buffer<float>(std::size_t(weights + p_.co));
                    float* to = add ? addend_.data() : dw.data;
                    float* to_bias = add ? addend_.data() + weights : db;
                    pass.call.point(DNNL_ARG_SRC, px);
                    pass.call.point(DNNL_ARG_DIFF_DST, py);
                    pass.call.point(DNNL_ARG_DIFF_WEIGHTS, pass.weights.room(to));
                    pass.call.point(DNNL_ARG_DIFF_BIAS, to_bias);
                    pass.call.run();
                    pass.weights.take(to);
                    if (!add) return;
                    add_floats(to, dw.data, weights);
                    if (db) add_floats(to_bias, db, p_.co);
                  });
  }

private:
  enum class Bias { without, with };
  using Slot = std::optional<detail::OnednnPass>;

  void check(const View<const float, 5>& x, const View<const float, 5>& w, const View<const float, 5>& y) const {
    check_extents("x", x.extents, x_extents(p_));
    check_extents("the weights", w.extents, w_extents(p_));
    check_extents("y", y.extents, y_extents(p_));
    TESSERA_REQUIRE(w.dense(), p_.str(), ": weights have strides ", w.strides, "; they must be dense (co,d,h,w,ci)");
    TESSERA_REQUIRE(dense_samples(x) && dense_samples(y), p_.str(), ": x has strides ", x.strides, ", y ", y.strides,
                    " (n,c,d,h,w); each sample must be dense channels-last: copy the block first");
  }

  /// Calls f(pass, x, y, first call?) once if the batch is dense, else sample by sample.
  template <class F>
  void for_each_call(const View<const float, 5>& x, const View<const float, 5>& y, Pass which, Bias bias, const F& f) {
    const bool at_once = p_.n == 1 || (x.dense() && y.dense() && read_ == p_.in);
    const long batch = at_once ? p_.n : 1;
    detail::OnednnPass& pass = this->pass(which, batch, bias);
    for (long n = 0; n < p_.n; n += batch) f(pass, x.data + n * x.strides[0], y.data + n * y.strides[0], n == 0);
  }

  detail::OnednnPass& pass(Pass which, long batch, Bias bias) {
    Slot& slot = slots_[std::size_t(which)][batch == 1][std::size_t(bias)];
    if (!slot) slot = detail::onednn(p_.str(), [&] { return make(which, batch, bias); });
    return *slot;
  }

  detail::OnednnPass make(Pass which, long batch, Bias bias) const {
    using dnnl::memory;
    using tag = memory::format_tag;
    const auto three = [](const Triple& t) { return memory::dims{t[0], t[1], t[2]}; };
    memory::dims weight_dims{p_.co, p_.ci, p_.k[0], p_.k[1], p_.k[2]};
    if (p_.groups > 1) weight_dims = {p_.groups, p_.co / p_.groups, p_.ci / p_.groups, p_.k[0], p_.k[1], p_.k[2]};
    const memory::desc x = detail::onednn_f32({batch, p_.ci, read_[0], read_[1], read_[2]}, tag::ndhwc);
    const memory::desc y = detail::onednn_f32({batch, p_.co, p_.out[0], p_.out[1], p_.out[2]}, tag::ndhwc);
    const memory::desc any = detail::onednn_f32(weight_dims, tag::any);
    const memory::desc stored = detail::onednn_f32(weight_dims, p_.groups > 1 ? tag::godhwi : tag::odhwi);
    const memory::desc b = bias == Bias::with ? detail::onednn_f32({p_.co}, tag::x) : memory::desc();
    const memory::dims stride = three(p_.stride), below = three(p_.below), above = three(right_);
    const memory::dims dilation = three(p_.dilation - Triple{{1, 1, 1}}); // oneDNN counts the holes
    constexpr auto direct = dnnl::algorithm::convolution_direct;
    using Direction = detail::OnednnWeights::Direction;

    const auto fd = detail::onednn_descriptor<dnnl::convolution_forward>(
        detail::onednn_attributes(which == Pass::forward ? p_.act : Activation::none, p_.slope),
        dnnl::prop_kind::forward_training, direct, x, any, b, y, stride, dilation, below, above);
    const auto attributes = detail::onednn_attributes(Activation::none, 0);
    detail::OnednnPass pass;
    const auto finish = [&](const auto& primitive, const auto& d, const memory::desc& chosen, int x_arg, int w_arg,
                            int y_arg, Direction direction) {
      pass.call = detail::OnednnCall(primitive, d.scratchpad_desc(), d.impl_info_str());
      pass.call.add(x_arg, x);
      pass.call.add(w_arg, chosen);
      pass.call.add(y_arg, y);
      pass.weights = detail::OnednnWeights(stored, chosen, direction);
    };
    if (which == Pass::forward) {
      finish(dnnl::convolution_forward(fd), fd, fd.weights_desc(), DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
             Direction::in);
      if (bias == Bias::with) pass.call.add(DNNL_ARG_BIAS, b);
    } else if (which == Pass::backward_data) {
      const auto d = detail::onednn_backward_descriptor<dnnl::convolution_backward_data>(
          attributes, fd, direct, x, any, y, stride, dilation, below, above);
      finish(dnnl::convolution_backward_data(d), d, d.weights_desc(), DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS,
             DNNL_ARG_DIFF_DST, Direction::in);
    } else {
      const auto d = detail::onednn_backward_descriptor<dnnl::convolution_backward_weights>(
          attributes, fd, direct, x, any, b, y, stride, dilation, below, above);
      finish(dnnl::convolution_backward_weights(d), d, d.diff_weights_desc(), DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS,
             DNNL_ARG_DIFF_DST, Direction::out);
      if (bias == Bias::with) pass.call.add(DNNL_ARG_DIFF_BIAS, b);
    }
    return pass;
  }

  Conv p_;
  Triple read_{}, right_{}; // extents oneDNN sees, its padding above
  bool idle_ = false;
  Slot slots_[3][2][2];
  Buffer<float> addend_;
};

/// One dense layer with its primitives: everything row-major, the weights (co, ci) used where they lie.
class OnednnDense {
public:
  explicit OnednnDense(const Dense& p) : p_(p) {
    TESSERA_REQUIRE(p.n >= 0 && p.ci >= 0 && p.co >= 0, "dense: negative extents ", p.n, ", ", p.ci, " -> ", p.co);
    idle_ = p.n == 0 || p.ci == 0 || p.co == 0;
  }
  const Dense& problem() const { return p_; }
  /// The implementation oneDNN reports for the pass; "none" if there is nothing to do.
  std::string implementation(Pass which) { return idle_ ? "none" : pass(which, Bias::without).implementation(); }

  /// y = act(b + W x). `bias` may be null.
  void forward(const float* x, const float* w, const float* bias, float* y) {
    if (idle_) return reference::dense<float>(p_, x, w, bias, y);
    detail::OnednnCall& call = pass(Pass::forward, bias ? Bias::with : Bias::without);
    call.point(DNNL_ARG_SRC, x);
    call.point(DNNL_ARG_WEIGHTS, w);
    call.point(DNNL_ARG_BIAS, bias);
    call.point(DNNL_ARG_DST, y);
    call.run();
  }
  /// dx = dy W.
  void backward_data(const float* dy, const float* w, float* dx) {
    if (idle_) return reference::dense_backward_data<float>(p_, dy, w, dx);
    detail::OnednnCall& call = pass(Pass::backward_data, Bias::without);
    call.point(DNNL_ARG_DIFF_DST, dy);
    call.point(DNNL_ARG_WEIGHTS, w);
    call.point(DNNL_ARG_DIFF_SRC, dx);
    call.run();
  }
  /// dW = or += dy^T x;  db (null: not wanted) = or += the sum of dy over samples.
  void backward_weights(const float* x, const float* dy, float* dw, float* db, Gradient mode) {
    if (idle_) return reference::dense_backward_weights<float>(p_, x, dy, dw, db, mode);
    const bool add = mode == Gradient::accumulate;
    const long weights = p_.ci * p_.co;
    if (add && addend_.size() == 0) addend_ = Buffer<float>(std::size_t(weights + p_.co));
    float* to = add ? addend_.data() : dw;
    float* to_bias = add ? addend_.data() + weights : db;
    detail::OnednnCall& call = pass(Pass::backward_weights, db ? Bias::with : Bias::without);
    call.point(DNNL_ARG_SRC, x);
    call.point(DNNL_ARG_DIFF_DST, dy);
    call.point(DNNL_ARG_DIFF_WEIGHTS, to);
    call.point(DNNL_ARG_DIFF_BIAS, to_bias);
    call.run();
    if (!add) return;
    add_floats(to, dw, weights);
    if (db) add_floats(to_bias, db, p_.co);
  }

private:
  enum class Bias { without, with };

  detail::OnednnCall& pass(Pass which, Bias bias) {
    auto& slot = slots_[std::size_t(which)][std::size_t(bias)];
    if (!slot) slot = detail::onednn("dense layer", [&] { return make(which, bias); });
    return *slot;
  }
  detail::OnednnCall make(Pass which, Bias bias) const {
    using tag = dnnl::memory::format_tag;
    const auto x = detail::onednn_f32({p_.n, p_.ci}, tag::nc), y = detail::onednn_f32({p_.n, p_.co}, tag::nc);
    const auto w = detail::onednn_f32({p_.co, p_.ci}, tag::oi);
    const auto b = bias == Bias::with ? detail::onednn_f32({p_.co}, tag::x) : dnnl::memory::desc();
    const auto fd = detail::onednn_descriptor<dnnl::inner_product_forward>(
        detail::onednn_attributes(which == Pass::forward ? p_.act : Activation::none, p_.slope),
        dnnl::prop_kind::forward_training, x, w, b, y);
    const auto attributes = detail::onednn_attributes(Activation::none, 0);
    detail::OnednnCall call;
    const auto finish = [&](const auto& primitive, const auto& d, int x_arg, int w_arg, int y_arg) {
      call = detail::OnednnCall(primitive, d.scratchpad_desc(), d.impl_info_str());
      call.add(x_arg, x);
      call.add(w_arg, w);
      call.add(y_arg, y);
    };
    if (which == Pass::forward) {
      finish(dnnl::inner_product_forward(fd), fd, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST);
      if (bias == Bias::with) call.add(DNNL_ARG_BIAS, b);
    } else if (which == Pass::backward_data) {
      const auto d = detail::onednn_backward_descriptor<dnnl::inner_product_backward_data>(attributes, fd, x, w, y);
      finish(dnnl::inner_product_backward_data(d), d, DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST);
    } else {
      const auto d =
          detail::onednn_backward_descriptor<dnnl::inner_product_backward_weights>(attributes, fd, x, w, b, y);
      finish(dnnl::inner_product_backward_weights(d), d, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST);
      if (bias == Bias::with) call.add(DNNL_ARG_DIFF_BIAS, b);
    }
    return call;
  }

  Dense p_;
  bool idle_ = false;
  std::optional<detail::OnednnCall> slots_[3][2];
  Buffer<float> addend_;
};

} // namespace tessera::kernel
