// kernel/conv_depthwise.hpp: depthwise convolutions, one input and one output channel a group, all passes.
//
// Such a convolution has one multiply-add for each element it loads, so vectors run along the channels, which lie
// together, and the sums of eight cells at a time stay in registers. The weights, stored channel by channel, are turned
// round once a call.
//
// May know: base, kernel/problem.hpp, check.hpp, pointwise.hpp, simd.hpp, workspace.hpp.
// Example: if (ConvDepthwise<float>::fits(p)) ConvDepthwise<float>(p).forward(x, w, bias, y);
#pragma once

#include <tessera/kernel/pointwise.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

/// Takes views of any strides in n,d,h,w; channels contiguous. Weights (c, 1, k) of any strides.
template <class T> class ConvDepthwise {
public:
  explicit ConvDepthwise(const Conv& p) : p_(p) {
    check_problem(p_);
    TESSERA_REQUIRE(fits(p_), p_.str(), ": not depthwise; it needs as many groups as input and output channels");
    for (int i = 0; i < 3; ++i) {
      for (long q = 0; q < p_.out[i]; ++q) forward_[i].push_back(taps(p_, i, q));
      reads_[i].resize(std::size_t(p_.in[i]));
      for (long q = 0; q < p_.out[i]; ++q)
        for (long k = forward_[i][std::size_t(q)].first; k < forward_[i][std::size_t(q)].last; ++k)
          reads_[i][std::size_t(cell(i, q, k))].push_back({q, k});
    }
  }
  static bool fits(const Conv& p) { return p.groups > 1 && p.groups == p.ci && p.groups == p.co; }
  const Conv& problem() const { return p_; }

  /// y = act(bias + w * x). `bias` may be null.
  void forward(const View<const T, 5>& x, const View<const T, 5>& w, const T* bias, const View<T, 5>& y) {
    check(x, w.extents, View<const T, 5>(y));
    const T* const turned = turn(w);
    with_activation<T>(p_.act, p_.slope, [&](const auto& act) {
      for_each_row(y.extents, [&](long n, long od, long oh) {
        const Interval kd = forward_[0][std::size_t(od)], kh = forward_[1][std::size_t(oh)];
        const Triple step{
            {p_.dilation[0] * x.strides[2], p_.dilation[1] * x.strides[3], p_.dilation[2] * x.strides[4]}};
        const long next = p_.stride[2] * x.strides[4]; // from one output to the next
        for_each_tile(
            p_.out[2], [&](long q) { return forward_[2][std::size_t(q)].size() == p_.k[2]; },
            [&]<int Many>(Tile<Many>, long ow) {
              const Interval kw = forward_[2][std::size_t(ow)];
              const T* const from = at(x, n, {{cell(0, od, 0), cell(1, oh, 0), cell(2, ow, 0)}});
              T* const to = at(y, n, {{od, oh, ow}});
              for_each_vector([&]<class V>(V, long c) {
                V sums[Many];
                for (V& sum : sums) sum = bias ? take<V>(bias + c) : V{};
                for (long d = kd.first; d < kd.last; ++d)
                  for (long h = kh.first; h < kh.last; ++h) {
                    const T* px = from + d * step[0] + h * step[1] + c;
                    const T* pw = turned + (d * p_.k[1] + h) * p_.k[2] * p_.ci + c;
                    for (long k = kw.first; k < kw.last; ++k) {
                      const V weight = take<V>(pw + k * p_.ci);
                      for (int j = 0; j < Many; ++j) sums[j] += take<V>(px + k * step[2] + j * next) * weight;
                    }
                  }
                for (int j = 0; j < Many; ++j) give(to + j * y.strides[4] + c, V(act.value(sums[j])));
              });
            });
      });
    });
  }

  /// dx = the adjoint applied to dy. Writes the whole of dx.
  void backward_data(const View<const T, 5>& dy, const View<const T, 5>& w, const View<T, 5>& dx) {
    check(View<const T, 5>(dx), w.extents, dy);
    const T* const turned = turn(w);
    for_each_row(dx.extents, [&](long n, long id, long ih) {
      // At stride 1 the cells away from the borders are read alike, each by the outputs after those of the one before.
      const auto alike = [&](long i) { return p_.stride[2] == 1 && long(reads_[2][std::size_t(i)].size()) == p_.k[2]; };
      for_each_tile(p_.in[2], alike, [&]<int Many>(Tile<Many>, long iw) {
        T* const to = at(dx, n, {{id, ih, iw}});
        for_each_vector([&]<class V>(V, long c) {
          V sums[Many]{};
          for (const Read& d : reads_[0][std::size_t(id)])
            for (const Read& h : reads_[1][std::size_t(ih)]) {
              const T* py = dy.data + n * dy.strides[0] + d.q * dy.strides[2] + h.q * dy.strides[3] + c;
              const T* pw = turned + (d.k * p_.k[1] + h.k) * p_.k[2] * p_.ci + c;
              for (const Read& r : reads_[2][std::size_t(iw)]) {
                const V weight = take<V>(pw + r.k * p_.ci);
                for (int j = 0; j < Many; ++j) sums[j] += take<V>(py + (r.q + j) * dy.strides[4]) * weight;
              }
            }
          for (int j = 0; j < Many; ++j) give(to + j * dx.strides[4] + c, sums[j]);
        });
      });
    });
  }

  /// dw and db (null: not wanted) = or += the gradients of <dy, conv(x)>.
  void backward_weights(const View<const T, 5>& x, const View<const T, 5>& dy, const View<T, 5>& dw, T* db,
                        Gradient mode) {
    check(x, dw.extents, dy);
    T* const sums = workspace_for(product(p_.k) * p_.ci);
    std::fill_n(sums, product(p_.k) * p_.ci, T{});
    for (long n = 0; n < p_.n; ++n)
      for (long d = 0; d < p_.out[0]; ++d)
        for (long h = 0; h < p_.out[1]; ++h) add_row(x, dy, n, d, h, sums);
    for_each_index(whole(dw.extents), [&](const Index<5>& i) {
      const T sum = sums[((i[2] * p_.k[1] + i[3]) * p_.k[2] + i[4]) * p_.ci + i[0]];
      dw[i] = mode == Gradient::overwrite ? sum : dw[i] + sum;
    });
    if (db) sum_channels<T>(dy, db, mode);
  }

private:
  struct Read { // output q reads the cell at tap k
    long q, k;
  };

  template <class V> static V take(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class V> static void give(T* p, const V& v) { std::memcpy(p, &v, sizeof v); }
  /// Calls f(V{}, c) for vectors of channels and for the single channels that are left.
  template <class F> void for_each_vector(const F& f) const {
    long c = 0;
    for (; c + simd_lanes<T> <= p_.ci; c += simd_lanes<T>) f(Simd<T>{}, c);
    for (; c < p_.ci; ++c) f(T{}, c);
  }
  template <class F> static void for_each_row(const Extents<5>& e, const F& f) {
    for (long n = 0; n < e[0]; ++n)
      for (long d = 0; d < e[2]; ++d)
        for (long h = 0; h < e[3]; ++h) f(n, d, h);
  }
  /// Cells of a row that are computed together, so that each weight is loaded once and sums do not wait for each other.
  template <int Many> struct Tile {};
  /// Calls f(Tile<8 or 1>{}, first cell) for a row of `count` cells; the cells of a larger tile are all alike.
  template <class Alike, class F> static void for_each_tile(long count, const Alike& alike, const F& f) {
    for (long i = 0; i < count;) {
      long many = 0;
      while (many < 8 && i + many < count && alike(i + many)) ++many;
      if (many == 8)
        f(Tile<8>{}, i);
      else
        f(Tile<1>{}, i);
      i += many == 8 ? 8 : 1;
    }
  }
  /// The block's cell that output q sees at tap k.
  long cell(int i, long q, long k) const { return q * p_.stride[i] - p_.below[i] + k * p_.dilation[i]; }
  template <class U> static U* at(const View<U, 5>& v, long n, const Triple& i) {
    return v.data + n * v.strides[0] + i[0] * v.strides[2] + i[1] * v.strides[3] + i[2] * v.strides[4];
  }
  static T* workspace_for(long count) { return reinterpret_cast<T*>(workspace(std::size_t(count) * sizeof(T))); }
  /// The weights as (k, c).
  const T* turn(const View<const T, 5>& w) const {
    T* const to = workspace_for(product(p_.k) * p_.ci);
    for_each_index(whole(w.extents),
                   [&](const Index<5>& i) { to[((i[2] * p_.k[1] + i[3]) * p_.k[2] + i[4]) * p_.ci + i[0]] = w[i]; });
    return to;
  }
  /// What one row of outputs adds to the gradient of every tap.
  void add_row(const View<const T, 5>& x, const View<const T, 5>& dy, long n, long d, long h, T* sums) const {
    const Interval kd = forward_[0][std::size_t(d)], kh = forward_[1][std::size_t(h)];
    for (long i = kd.first; i < kd.last; ++i)
      for (long j = kh.first; j < kh.last; ++j)
        for (long k = 0; k < p_.k[2]; ++k) {
          // The outputs whose tap k lies in the row.
          const Interval q = taps_inside(k * p_.dilation[2] - p_.below[2], p_.out[2], p_.stride[2], 0, p_.in[2]);
          const T* const px = at(x, n, {{cell(0, d, i), cell(1, h, j), cell(2, 0, k)}});
          const T* const py = at(dy, n, {{d, h, 0}});
          T* const to = sums + ((i * p_.k[1] + j) * p_.k[2] + k) * p_.ci;
          const long step = p_.stride[2] * x.strides[4];
          for_each_vector([&]<class V>(V, long c) {
            V sum{};
            for (long w = q.first; w < q.last; ++w)
              sum += take<V>(px + w * step + c) * take<V>(py + w * dy.strides[4] + c);
            give(to + c, V(take<V>(to + c) + sum));
          });
        }
  }
  void check(const View<const T, 5>& x, const Extents<5>& w, const View<const T, 5>& y) const {
    check_extents("x", x.extents, x_extents(p_));
    check_extents("the weights", w, w_extents(p_));
    check_extents("y", y.extents, y_extents(p_));
    TESSERA_REQUIRE(x.strides[1] == 1 && y.strides[1] == 1, p_.str(), ": the channels of x and y must be contiguous");
  }

  Conv p_;
  std::vector<Interval> forward_[3];        // the taps of each output that fall into the block
  std::vector<std::vector<Read>> reads_[3]; // who reads each cell
};

} // namespace tessera::kernel
