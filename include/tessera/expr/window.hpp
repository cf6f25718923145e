// expr/window.hpp: what convolutions and poolings of distributed tensors share: which outputs need no halo, the local
// problem of a box of outputs, and dense operands for kernels that take nothing else.
//
// May know: base, layout, space, comm, tensor, move, expr/evaluate.hpp.
// Example: WindowRun<float, 5> run(...);  run.forward(x, [&](const Box<5>& out) { ... });
#pragma once

#include <tessera/expr/evaluate.hpp>

namespace tessera::detail {

/// How a window node treats channels: a convolution reads all of them, a pooling those that it writes.
enum class Channels { all, own };

/// The geometry of one stencil between two maps on this rank, and its halo.
template <class T, class Space> class WindowRun {
public:
  WindowRun(const AnyGrid& grid, const Map<5>& in, const Stencil& s, const Map<5>& out, Channels channels)
      : in_(in), out_(out), stencil_(s), channels_(channels), box_(out.box(grid.rank())), owned_(in.box(grid.rank())),
        halo_(
            grid, in, [&](int r) { return needs(out.box(r)); }, s.borders<5>()) {
    interior_ = box_;
    if (box_.empty() || owned_.contains(needs(box_))) return;
    for (int k = 2; k < 5; ++k) {
      const auto waits = [&](long q) {
        Box<5> one = box_;
        one.lo[k] = q, one.hi[k] = q + 1;
        const Box<5> n = needs(one);
        return n.lo[k] < owned_.lo[k] || n.hi[k] > owned_.hi[k];
      };
      while (interior_.lo[k] < interior_.hi[k] && waits(interior_.lo[k])) ++interior_.lo[k];
      while (interior_.hi[k] > interior_.lo[k] && waits(interior_.hi[k] - 1)) --interior_.hi[k];
    }
    overlaps_ = !interior_.empty() && interior_ != box_;
  }

  bool serves(const Map<5>& in, const Stencil& s, const Map<5>& out) const {
    return in_ == in && stencil_ == s && out_ == out;
  }
  const Map<5>& in() const { return in_; }
  const Stencil& stencil() const { return stencil_; }
  /// The outputs of this rank, and the inputs they need.
  const Box<5>& out_box() const { return box_; }
  const Box<5>& need() const { return halo_.need(); }
  Traffic traffic() const { return halo_.traffic(); }

  /// The inputs of a box of outputs, clipped to the tensor where zeros are padded.
  Box<5> needs(const Box<5>& out) const {
    Box<5> b = needed_input(out, stencil_, in_.extents());
    if (channels_ == Channels::own) b.lo[1] = out.lo[1], b.hi[1] = out.hi[1];
    return b;
  }
  /// The padding that a kernel adds to `needs(out)` in spatial dim i.
  Interval padding(const Box<5>& out, int i) const {
    const Interval reads = stencil_[i].reads({out.lo[2 + i], out.hi[2 + i]});
    const Box<5> n = needs(out);
    return {n.lo[2 + i] - reads.lo, reads.hi - n.hi[2 + i]};
  }
  /// True if the rims are slabs along depth, whose samples are dense where those of the whole are.
  bool rims_are_slabs() const {
    for (int k = 3; k < 5; ++k)
      if (interior_.lo[k] != box_.lo[k] || interior_.hi[k] != box_.hi[k]) return false;
    return true;
  }

  /// Calls compute(box of outputs) for boxes that make up this rank's, the interior while the halo of x travels.
  template <class F> void forward(const Tensor<T, 5, Space>& x, bool overlap, const F& compute) {
    halo_.start(block_of(x));
    if (overlap && overlaps_) {
      compute(interior_);
      halo_.poke();
      halo_.finish();
      for_each_rim(box_, interior_, compute);
    } else {
      halo_.finish();
      if (!box_.empty()) compute(box_);
    }
  }
  /// dx = the adjoint of the halo applied to what compute() leaves in dx.view(need()). Nothing is left in the margins
  /// that counts.
  template <class F> void backward(Tensor<T, 5, Space>& dx, const F& compute) {
    halo_.reserve(dx);
    if (!need().contains(owned_) || box_.empty()) Blocks<Space>::fill(dx.view(), T{});
    if (!box_.empty()) compute();
    halo_.run_adjoint(dx);
  }

private:
  Map<5> in_, out_;
  Stencil stencil_;
  Channels channels_;
  Box<5> box_, owned_, interior_;
  bool overlaps_ = false;
  Halo<T, 5, Space> halo_;
};

/// A box of a tensor, dense sample by sample: in place if it lies so, else by way of memory that is kept.
template <class T, class Space> class DenseBox {
public:
  View<const T, 5> read(const View<const T, 5>& v) {
    if (dense_samples(v)) return v;
    Blocks<Space>::copy(v, room(v.extents));
    return room(v.extents);
  }
  /// Where to write; commit() then puts it into the tensor.
  View<T, 5> write(const View<T, 5>& v) { return dense_samples(v) ? v : room(v.extents); }
  void commit(const View<T, 5>& v) {
    if (!dense_samples(v)) Blocks<Space>::copy(room(v.extents), v);
  }

private:
  View<T, 5> room(const Extents<5>& e) {
    if (scratch_.size() < std::size_t(product(e))) scratch_ = Buffer<T, Space>(std::size_t(product(e)));
    return {scratch_.data(), e};
  }
  Buffer<T, Space> scratch_;
};

} // namespace tessera::detail
