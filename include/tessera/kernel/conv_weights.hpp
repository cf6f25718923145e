// kernel/conv_weights.hpp: the weight gradient of a convolution as a matrix product in registers, f32 or f64.
//
// dW[m, o] = sum over outputs r of X[r, m] dY[r, o], where m runs over all (tap, input channel) pairs and X[r, m] is
// the cell that tap sees from output r. A tile of `tile_rows` m's times two vectors of o's stays in registers while r
// runs along rows of outputs. For that,
//   - x is copied into a padded slab, where each pair is a fixed distance from its output,
//   - rows of dy are copied into panels as wide as a tile, unless that does not pay.
// Both stay in the cache for all taps; the products are as many as the multiply-adds, the copies a few per cent.
//
// May know: base, kernel/problem.hpp, check.hpp, simd.hpp, slab.hpp, workspace.hpp.
// Example: ConvWeights<float> k(problem);  k.run(x, dy, dw, db, Gradient::overwrite);
#pragma once

#include <algorithm>
#include <tessera/base/view.hpp>
#include <tessera/kernel/check.hpp>
#include <tessera/kernel/simd.hpp>
#include <tessera/kernel/slab.hpp>

namespace tessera::kernel {

/// Takes views of any strides in n,d,h,w; channels contiguous. The weights are dense, stored co,d,h,w,ci.
template <class T> class ConvWeights {
public:
  explicit ConvWeights(const Conv& p) : p_(p) {
    check_problem(p_);
    pairs_ = product(p_.k) * p_.ci;
    tiles_ = (pairs_ + tile_rows - 1) / tile_rows;
    vectors_ = p_.co > lanes ? 2 : 1;
    panel_ = vectors_ * lanes;
    panels_ = (p_.co + panel_ - 1) / panel_;
    idle_ = p_.n == 0 || product(p_.in) == 0 || product(p_.out) == 0 || pairs_ == 0 || p_.co == 0;
    if (idle_) return;
    // A panel of dy stays in half of the first-level cache, a slab of x in part of the second-level cache.
    constexpr long panel_bytes = 8 << 10, slab_bytes = 128 << 10;
    rows_ = std::clamp(panel_bytes / (p_.out[2] * panel_ * long(sizeof(T))), 1L, p_.out[1]);
    slab_ = PaddedSlab<T>(p_, rows_, slab_bytes);
  }

  const Conv& problem() const { return p_; }

  /// dw and db (null: not wanted) = or += the gradients of <dy, conv(x)>.
  void run(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db, Gradient mode) {
    check_extents("x", x.extents, x_extents(p_));
    check_extents("dy", dy.extents, y_extents(p_));
    check_extents("the weights", dw.extents, w_extents(p_));
    TESSERA_REQUIRE(dw.dense() && (x.strides[1] == 1 || p_.ci == 1) && (dy.strides[1] == 1 || p_.co == 1), p_.str(),
                    ": the weight gradient must be dense and the channels of x and dy contiguous");
    const Scratch s = take_scratch();
    std::fill_n(s.sums, tiles_ * panels_ * tile_elements(), T{});
    std::fill_n(s.bias, p_.co, T{});
    if (!idle_) {
      std::fill_n(s.zeros, slab_.plane_elements(), T{});
      for (long n = 0; n < p_.n; ++n)
        for (long h = 0; h < p_.out[1]; h += slab_.block())
          add_block(s, x, dy, n, h, std::min(slab_.block(), p_.out[1] - h), db != nullptr);
    }
    put(s, dw, mode);
    if (db)
      for (long o = 0; o < p_.co; ++o) db[o] = mode == Gradient::overwrite ? s.bias[o] : db[o] + s.bias[o];
  }

private:
  static constexpr int lanes = simd_lanes<T>;
  static constexpr int tile_rows = 6;
  using V = Simd<T>;

  struct Scratch {
    T *sums, *bias, *zeros, *panel;
    long* offsets; // of each pair, from the slab's begin
  };

  long tile_elements() const { return tile_rows * panel_; }

  Scratch take_scratch() {
    Scratch s{};
    const auto layout = [&](Carver carver) {
      s.sums = carver.take<T>(tiles_ * panels_ * tile_elements());
      s.bias = carver.take<T>(p_.co);
      s.zeros = carver.take<T>(slab_.plane_elements());
      s.panel = carver.take<T>(idle_ ? 0 : rows_ * p_.out[2] * panel_);
      s.offsets = carver.take<long>(tiles_ * tile_rows);
      slab_.place(carver);
      return carver.used();
    };
    layout(Carver(workspace(layout(Carver()))));
    return s;
  }

  /// Adds the products of the outputs of sample n in rows h0 to h0+rows-1, all depths.
  void add_block(const Scratch& s, const View<const T, 5>& x, const View<const T, 5>& dy, long n, long h0, long rows,
                 bool with_bias) {
    slab_.begin(n, h0, rows);
    for (long d = 0; d < p_.out[0]; ++d) {
      const Interval depths = taps(p_, 0, d);
      set_offsets(s, x, d, depths);
      // Tiles whose taps all lie outside the block in depth have nothing to add.
      const long per_depth = p_.k[1] * p_.k[2] * p_.ci;
      const long tile0 = depths.first * per_depth / tile_rows;
      const long tile1 = depths.empty() ? tile0 : (depths.last * per_depth + tile_rows - 1) / tile_rows;
      for (long h = 0; h < rows; h += rows_) {
        const long count = std::min(rows_, rows - h);
        const View<const T, 5> g = dy.box({{{n, 0, d, h0 + h, 0}}, {{n + 1, p_.co, d + 1, h0 + h + count, p_.out[2]}}});
        const T* base = slab_.data() + h * p_.stride[1] * slab_.pitch();
        // While tiles compute, the rows of dy that follow come from memory, a piece with each tile.
        const T* next = g.data + count * g.strides[3];
        const long piece = count * g.strides[3] / std::max(1L, panels_ * (tile1 - tile0)) + 1;
        for (long panel = 0; panel < panels_; ++panel) {
          const Panel b = take_panel(s, g, panel, count);
          if (with_bias) sum_panel(b, count, panel, s.bias);
          T* sums = s.sums + (panel * tiles_ + tile0) * tile_elements();
          for (long tile = tile0; tile < tile1; ++tile, sums += tile_elements(), next += piece) {
            prefetch<Use::read>(next, piece);
            if (vectors_ == 2)
              add_tile<2>(base, s.offsets + tile * tile_rows, b, count, sums);
            else
              add_tile<1>(base, s.offsets + tile * tile_rows, b, count, sums);
          }
        }
      }
    }
  }

  /// Where each (tap, channel) pair lies relative to the cell of tap 0, for outputs at depth d.
  void set_offsets(const Scratch& s, const View<const T, 5>& x, long d, const Interval& depths) {
    long* to = s.offsets;
    for (long kd = 0; kd < p_.k[0]; ++kd) {
      const bool inside = kd >= depths.first && kd < depths.last;
      const T* plane = inside ? slab_.plane(x, d * p_.stride[0] - p_.below[0] + kd * p_.dilation[0]) : s.zeros;
      for (long kh = 0; kh < p_.k[1]; ++kh)
        for (long kw = 0; kw < p_.k[2]; ++kw)
          for (long c = 0; c < p_.ci; ++c)
            *to++ = (plane - slab_.data()) + kh * p_.dilation[1] * slab_.pitch() + kw * p_.dilation[2] * p_.ci + c;
    }
    for (long* end = s.offsets + tiles_ * tile_rows; to < end; ++to) *to = s.offsets[0];
  }

  /// Rows of dy as wide as a tile; steps from one row of outputs, and one output, to the next.
  struct Panel {
    const T* data;
    long pitch, step;
  };
  Panel take_panel(const Scratch& s, const View<const T, 5>& g, long panel, long rows) const {
    const long first = panel * panel_, width = std::min(panel_, p_.co - first);
    // Few pairs do not repay the copy; many would suffer from the gaps between the rows of a panel.
    constexpr long few = 128;
    if (width == panel_ && (p_.co == panel_ || pairs_ < few)) return {g.data + first, g.strides[3], g.strides[4]};
    T* to = s.panel;
    for (long r = 0; r < rows; ++r)
      for (long w = 0; w < p_.out[2]; ++w, to += panel_) {
        const T* from = g.data + r * g.strides[3] + w * g.strides[4] + first;
        std::copy_n(from, width, to);
        std::fill_n(to + width, panel_ - width, T{});
      }
    return {s.panel, p_.out[2] * panel_, panel_};
  }

  void sum_panel(const Panel& b, long rows, long panel, T* bias) const {
    const long first = panel * panel_, width = std::min(panel_, p_.co - first);
    for (int v = 0; v < vectors_; ++v) {
      V sum{};
      for (long r = 0; r < rows; ++r)
        for (long w = 0; w < p_.out[2]; ++w) sum += load(b.data + r * b.pitch + w * b.step + v * lanes);
      for (long i = v * lanes; i < std::min<long>(width, (v + 1) * lanes); ++i) bias[first + i] += sum[i - v * lanes];
    }
  }

  /// sums[i, o] += sum over outputs of x[output, offset[i]] * b[output, o], all of it in registers.
  /// Not inlined: around it, compilers run out of registers for the inner loop.
  template <int vectors>
  [[gnu::noinline]] void add_tile(const T* base, const long* offset, const Panel& b, long rows, T* sums) const {
    V sum[tile_rows][vectors] = {};
    const long step = p_.stride[2] * p_.ci, row_step = p_.stride[1] * slab_.pitch(), outputs = p_.out[2];
    for (long r = 0; r < rows; ++r) {
      const T* row = base + r * row_step;
      const T *x0 = row + offset[0], *x1 = row + offset[1], *x2 = row + offset[2];
      const T *x3 = row + offset[3], *x4 = row + offset[4], *x5 = row + offset[5];
      const T* g = b.data + r * b.pitch;
      const long g_step = b.step;
      long at = 0;
      for (long w = 0; w < outputs; ++w, at += step, g += g_step) {
        V gv[vectors];
        for (int v = 0; v < vectors; ++v) gv[v] = load(g + v * lanes);
        // One cell after the other, so that only one of them needs a register at a time.
        for (int v = 0; v < vectors; ++v) sum[0][v] += x0[at] * gv[v];
        for (int v = 0; v < vectors; ++v) sum[1][v] += x1[at] * gv[v];
        for (int v = 0; v < vectors; ++v) sum[2][v] += x2[at] * gv[v];
        for (int v = 0; v < vectors; ++v) sum[3][v] += x3[at] * gv[v];
        for (int v = 0; v < vectors; ++v) sum[4][v] += x4[at] * gv[v];
        for (int v = 0; v < vectors; ++v) sum[5][v] += x5[at] * gv[v];
      }
    }
    for (int i = 0; i < tile_rows; ++i)
      for (int v = 0; v < vectors; ++v) {
        T* to = sums + (i * vectors + v) * lanes;
        store(to, load(to) + sum[i][v]);
      }
  }

  /// Brings the tiles into the order of the weights.
  void put(const Scratch& s, const View<T, 5>& dw, Gradient mode) const {
    for (long o = 0; o < p_.co; ++o) {
      const T* from = s.sums + o / panel_ * tiles_ * tile_elements() + o % panel_;
      T* to = dw.data + o * pairs_;
      if (mode == Gradient::overwrite)
        for (long m = 0; m < pairs_; ++m) to[m] = from[m * panel_];
      else
        for (long m = 0; m < pairs_; ++m) to[m] += from[m * panel_];
    }
  }

  Conv p_;
  PaddedSlab<T> slab_;
  long pairs_ = 0, tiles_ = 0, vectors_ = 1, panel_ = 0, panels_ = 0; // (tap, channel) pairs; tiles of them; tile width
  long rows_ = 1;                                                     // output rows of one product
  bool idle_ = false;
};

} // namespace tessera::kernel
