// layer/operand.hpp: DenseOperand, a box of a tensor as a vendor kernel wants it: dense sample by sample.
//
// Where the box lies so in memory already it is used in place. Where a split of h or w left a halo around it, it is
// copied to or from scratch memory that is kept; the copies are counted, so a test can assert that there are none.
//
// May know: base, space, tensor.
// Example: kernel(in.read(x, box_x), out.write(y, box_y));  out.commit(y, box_y);
#pragma once

#include <tessera/tensor/tensor.hpp>

namespace tessera {

template <class T, class Space = host> class DenseOperand {
public:
  /// The elements of `box`, for reading until the next call.
  View<const T, 5> read(const Tensor<T, 5, Space>& x, const Box<5>& box) {
    const View<const T, 5> v = x.view(box);
    if (dense_samples(v)) return v;
    const View<T, 5> dense = room(box);
    Blocks<Space>::copy(v, dense);
    ++copies_;
    return dense;
  }
  /// Where to write the elements of `box`; commit() afterwards puts them into the tensor.
  View<T, 5> write(Tensor<T, 5, Space>& x, const Box<5>& box) {
    const View<T, 5> v = x.view(box);
    return dense_samples(v) ? v : room(box);
  }
  void commit(Tensor<T, 5, Space>& x, const Box<5>& box) {
    const View<T, 5> v = x.view(box);
    if (dense_samples(v)) return;
    Blocks<Space>::copy(room(box), v);
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
