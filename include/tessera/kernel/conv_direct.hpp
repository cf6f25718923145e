// kernel/conv_direct.hpp: a convolution as a matrix product in registers, without unfolding x.
//
//   y[q, o] = act(bias[o] + sum over (tap, channel) pairs m of X[q, m] W[m, o])
//
// A tile of up to six neighbouring outputs times two vectors of o's stays in registers while m runs. The cells come
// from a padded slab, where the pairs of one row of taps lie behind each other; the weights are packed into panels as
// wide as a tile. m is cut into chunks whose weights stay in the first-level cache for all tiles of some rows. The
// adjoint of a convolution of stride 1 is the convolution of dy with the flipped, transposed weights.
//
// May know: base, kernel/problem.hpp, check.hpp, simd.hpp, slab.hpp, workspace.hpp, pointwise.hpp.
// Example: ConvDirect<float> k(problem);  k.run(x, w, bias, y);
#pragma once

#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/simd.hpp>
#include <tessera/kernel/slab.hpp>

namespace tessera::kernel {

/// The convolution whose forward pass is the backward-data pass of `p` (stride 1).
inline Conv adjoint_problem(const Conv& p) {
  Conv a = p;
  a.ci = p.co, a.co = p.ci, a.in = p.out, a.out = p.in, a.act = Activation::none;
  for (int i = 0; i < 3; ++i) {
    const long reach = span(p.k[i], p.dilation[i]) - 1;
    a.below[i] = reach - p.below[i];
    a.above[i] = std::max(0L, p.in[i] + reach - a.below[i] - p.out[i]);
  }
  return a;
}
/// True if adjoint_problem may be used: stride 1, and no padding beyond what a window reaches.
inline bool has_adjoint_problem(const Conv& p) {
  for (int i = 0; i < 3; ++i)
    if (p.stride[i] != 1 || p.below[i] >= span(p.k[i], p.dilation[i])) return false;
  return true;
}
/// The weights of adjoint_problem: taps flipped, channels exchanged. A view of the same memory.
template <class T> View<const T, 5> adjoint_weights(const View<const T, 5>& w) {
  View<const T, 5> a = w;
  std::swap(a.extents[0], a.extents[1]);
  std::swap(a.strides[0], a.strides[1]);
  for (int i = 2; i < 5; ++i) a.data += (w.extents[i] - 1) * w.strides[i], a.strides[i] = -w.strides[i];
  return a;
}

/// Takes views of any strides in n,d,h,w; channels contiguous. Weights may have any strides.
template <class T> class ConvDirect {
public:
  explicit ConvDirect(const Conv& p) : p_(p) {
    check_problem(p_);
    vectors_ = p_.co > lanes ? 2 : 1;
    panel_ = vectors_ * lanes;
    panels_ = (p_.co + panel_ - 1) / panel_;
    idle_ = p_.n == 0 || p_.ci == 0 || p_.co == 0 || product(p_.in) == 0 || product(p_.out) == 0;
    if (idle_) return;
    // A row of taps is one run of pairs, unless dilation parts it.
    run_ = p_.dilation[2] == 1 ? p_.k[2] * p_.ci : p_.ci;
    runs_ = product(p_.k) * p_.ci / run_;
    constexpr long chunk_bytes = 16 << 10, slab_bytes = 128 << 10, sums_bytes = 16 << 10;
    chunk_ = std::clamp(chunk_bytes / (run_ * panel_ * long(sizeof(T))), 1L, runs_);
    rows_ = std::clamp(sums_bytes / (p_.out[2] * panel_ * long(sizeof(T))), 1L, p_.out[1]);
    slab_ = PaddedSlab<T>(p_, rows_, slab_bytes);
  }

  const Conv& problem() const { return p_; }

  /// y = act(bias + w * x). `bias` may be null.
  void run(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
    check_extents("x", x.extents, x_extents(p_));
    check_extents("the weights", w.extents, w_extents(p_));
    check_extents("y", y.extents, y_extents(p_));
    TESSERA_REQUIRE((x.strides[1] == 1 || p_.ci == 1) && (y.strides[1] == 1 || p_.co == 1), p_.str(),
                    ": the channels of x and y must be contiguous");
    if (idle_) return fill_channels(y, bias, p_.act, p_.slope);
    const Scratch s = take_scratch();
    pack(w, bias, s);
    with_activation<T>(p_.act, p_.slope, [&](const auto& act) {
      for (long n = 0; n < p_.n; ++n)
        for (long h = 0; h < p_.out[1]; h += slab_.block()) {
          const long rows = std::min(slab_.block(), p_.out[1] - h);
          slab_.begin(n, h, rows);
          for (long d = 0; d < p_.out[0]; ++d) make_rows(s, x, y, n, d, h, rows, act);
        }
    });
  }

private:
  static constexpr int lanes = simd_lanes<T>;
  static constexpr int tile_rows = 6;
  using V = Simd<T>;

  struct Scratch {
    T *weights, *bias, *sums;
    long* offsets; // of each run, from the slab's begin
  };

  Scratch take_scratch() {
    Scratch s{};
    const auto layout = [&](Carver carver) {
      s.weights = carver.take<T>(panels_ * runs_ * run_ * panel_);
      s.bias = carver.take<T>(panels_ * panel_);
      s.sums = carver.take<T>(rows_ * p_.out[2] * panel_);
      s.offsets = carver.take<long>(runs_);
      slab_.place(carver);
      return carver.used();
    };
    layout(Carver(workspace(layout(Carver()))));
    return s;
  }

  /// Weights as [panel][tap][channel][o in panel], with zeros beyond the last o.
  void pack(const View<const T, 5>& w, const T* bias, const Scratch& s) const {
    T* to = s.weights;
    for (long panel = 0; panel < panels_; ++panel) {
      const long first = panel * panel_, width = std::min(panel_, p_.co - first);
      for_each_index(whole(p_.k), [&](const Index<3>& k) {
        for (long c = 0; c < p_.ci; ++c, to += panel_) {
          const T* from = &w(first, c, k[0], k[1], k[2]);
          for (long o = 0; o < width; ++o) to[o] = from[o * w.strides[0]];
          std::fill_n(to + width, panel_ - width, T{});
        }
      });
      for (long o = 0; o < panel_; ++o) s.bias[first + o] = bias && o < width ? bias[first + o] : T{};
    }
  }

  /// The outputs of sample n at depth d in rows h0 to h0+rows-1; the slab has turned to them.
  template <class Act>
  void make_rows(const Scratch& s, const View<const T, 5>& x, const View<T, 5>& y, long n, long d, long h0, long rows,
                 const Act& act) {
    const Interval depths = taps(p_, 0, d);
    const long per_depth = runs_ / p_.k[0];
    for (long kd = depths.first; kd < depths.last; ++kd) {
      const T* plane = slab_.plane(x, d * p_.stride[0] - p_.below[0] + kd * p_.dilation[0]);
      long* to = s.offsets + kd * per_depth;
      for (long kh = 0; kh < p_.k[1]; ++kh)
        for (long kw = 0; kw < per_depth / p_.k[1]; ++kw)
          *to++ = (plane - slab_.data()) + kh * p_.dilation[1] * slab_.pitch() + kw * p_.dilation[2] * p_.ci;
    }
    const long first = depths.first * per_depth, last = std::max(first, depths.last * per_depth);
    for (long h = 0; h < rows; h += rows_)
      for (long panel = 0; panel < panels_; ++panel) {
        const long count = std::min(rows_, rows - h);
        long run = first;
        do { // at least once: without any tap, the outputs are the bias
          const long end = std::min(last, run + chunk_);
          for (long r = 0; r < count; ++r) {
            const bool complete = end == last;
            T* to = &y(n, panel * panel_, d, h0 + h + r, 0);
            if (complete) prefetch<Use::write>(to, p_.out[2] * y.strides[4]); // arrives while the row is computed
            const Row row{.x = slab_.data() + (h + r) * p_.stride[1] * slab_.pitch(),
                          .run = run,
                          .end = end,
                          .panel = panel,
                          .first = run == first,
                          .sums = s.sums + r * p_.out[2] * panel_};
            if (vectors_ == 2)
              make_row<2>(s, row);
            else
              make_row<1>(s, row);
            if (complete) finish_row(row.sums, panel, to, y.strides[4], act);
          }
          run = end;
        } while (run < last);
      }
  }

  /// A row of outputs of one panel, and the runs [run, end) of pairs to add to it.
  struct Row {
    const T* x;
    long run, end, panel;
    bool first; // the sums begin with the bias, else with what stands in `sums`
    T* sums;
  };

  template <int vectors> void make_row(const Scratch& s, Row row) const {
    // Tiles of nearly equal heights: short ones would leave the units idle.
    const long tiles = (p_.out[2] + tile_rows - 1) / tile_rows, height = p_.out[2] / tiles;
    long taller = p_.out[2] - tiles * height;
    for (long t = 0; t < tiles; ++t, --taller) {
      const long outputs = height + (taller > 0);
      switch (outputs) {
      case 1: make_tile<1, vectors>(s, row); break;
      case 2: make_tile<2, vectors>(s, row); break;
      case 3: make_tile<3, vectors>(s, row); break;
      case 4: make_tile<4, vectors>(s, row); break;
      case 5: make_tile<5, vectors>(s, row); break;
      default: make_tile<6, vectors>(s, row);
      }
      row.x += outputs * p_.stride[2] * p_.ci;
      row.sums += outputs * panel_;
    }
  }

  // Not inlined: around it, compilers run out of registers for the inner loop.
  template <int outputs, int vectors> [[gnu::noinline]] void make_tile(const Scratch& s, const Row& row) const {
    V sum[outputs][vectors];
    for (int i = 0; i < outputs; ++i)
      for (int v = 0; v < vectors; ++v)
        sum[i][v] = load(row.first ? s.bias + row.panel * panel_ + v * lanes : row.sums + (i * vectors + v) * lanes);
    const long step = p_.stride[2] * p_.ci;
    const long run = run_;
    const T* w = s.weights + (row.panel * runs_ + row.run) * run * panel_;
    const long *offset = s.offsets + row.run, *end = s.offsets + row.end;
    const T* base = row.x;
    for (; offset < end; ++offset) {
      const T* x = base + *offset;
      for (const T* x_end = x + run; x < x_end; ++x, w += vectors * lanes) {
        V wv[vectors];
        for (int v = 0; v < vectors; ++v) wv[v] = load(w + v * lanes);
        // One cell after the other, so that only one of them needs a register at a time.
        for (int i = 0; i < outputs; ++i)
          for (int v = 0; v < vectors; ++v) sum[i][v] += x[i * step] * wv[v];
      }
    }
    for (int i = 0; i < outputs; ++i)
      for (int v = 0; v < vectors; ++v) store(row.sums + (i * vectors + v) * lanes, sum[i][v]);
  }

  /// y = act(sums) for a row of one panel.
  template <class Act> void finish_row(const T* sums, long panel, T* y, long y_step, const Act& act) const {
    const long width = std::min(panel_, p_.co - panel * panel_);
    for (long w = 0; w < p_.out[2]; ++w, sums += panel_, y += y_step)
      map_elements(
          y, width, [&act](auto v) { return act.value(v); }, sums);
  }

  Conv p_;
  PaddedSlab<T> slab_;
  long vectors_ = 1, panel_ = 0, panels_ = 0; // vectors and elements of a tile's width; panels of o's
  long run_ = 0, runs_ = 0, chunk_ = 1;       // pairs of a run; runs in all and in a chunk
  long rows_ = 1;                             // rows that share a chunk
  bool idle_ = false;
};

} // namespace tessera::kernel
