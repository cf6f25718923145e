// layer/operand.hpp: DenseOperand, a box of a tensor as a vendor kernel wants it: dense sample by sample, or altogether.
//
// Where the box lies so in memory already it is used in place. Where a split of h or w left a halo around it, it is
// copied to or from scratch memory that is kept; the copies are counted, so a test can assert that there are none.
//
// May know: base, space, tensor.
// Example: kernel(in.read(x, box_x), out.write(y, box_y));  out.commit(y, box_y);
#pragma once

#include <tessera/tensor/tensor.hpp>

namespace tessera {

/// What must be dense in an operand.
enum class Density : int { each_sample, whole_batch };

/// True if a kernel can use `box` where it lies in the block `store`.
inline bool lies_dense(const Box<5>& box, const Box<5>& store, Density what) {
  const View<const char, 5> v(nullptr, box.extents(), dense_strides(store.extents()));
  return what == Density::each_sample ? dense_samples(v) : v.dense();
}

template <class T, class Space = host, Density What = Density::each_sample> class DenseOperand {
public:
  /// The elements of `box`, for reading until the next call.
  View<const T, 5> read(const Tensor<T, 5, Space>& x, const Box<5>& box) {
    const View<const T, 5> v = x.view(box);
    if (lies_dense(box, x.store(), What)) return v;
    const View<T, 5> dense = room(box);
    Blocks<Space>::copy(v, dense);
    ++copies_;
    return dense;
  }
  /// Where to write the elements of `box`; commit() afterwards puts them into the tensor.
  View<T, 5> write(Tensor<T, 5, Space>& x, const Box<5>& box) {
    return lies_dense(box, x.store(), What) ? x.view(box) : room(box);
  }
  void commit(Tensor<T, 5, Space>& x, const Box<5>& box) {
    if (lies_dense(box, x.store(), What)) return;
    Blocks<Space>::copy(room(box), x.view(box));
    ++copies_;
  }
  std::uint64_t copies() const { return copies_; }
  std::size_t bytes() const { return scratch_.bytes(); }

private:
  View<T, 5> room(const Box<5>& box) {
    if (scratch_.size() < std::size_t(box.volume())) scratch_ = Buffer<T, Space>(std::size_t(box.volume()));
    return {scratch_.data(), box.extents()};
  }
  Buffer<T, Space> scratch_;
  std::uint64_t copies_ = 0;
};

} // namespace tessera
