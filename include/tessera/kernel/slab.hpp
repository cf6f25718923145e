// kernel/slab.hpp: PaddedSlab, the cells that a block of output rows sees, copied into a small dense block with the
// padding written out, so that every tap of every output is a fixed distance away and no border needs care.
//
// The slab holds some rows of as many planes as a window spans in depth; walking along depth, each plane is copied
// once.
//
// May know: base, kernel/check.hpp, workspace.hpp.
// Example: PaddedSlab<float> s(p, rows, bytes);  s.place(carver);  s.begin(n, h, rows);  const float* q = s.plane(x,
// d);
#pragma once

#include <algorithm>
#include <tessera/base/view.hpp>
#include <tessera/kernel/check.hpp>
#include <tessera/kernel/workspace.hpp>

namespace tessera::kernel {

template <class T> class PaddedSlab {
public:
  PaddedSlab() = default;
  /// Blocks are multiples of `rows` output rows, as many as fit into `bytes`, at least one multiple.
  PaddedSlab(const Conv& p, long rows, long bytes) : p_(p) {
    for (int i = 0; i < 3; ++i) span_[i] = span(p.k[i], p.dilation[i]);
    pitch_ = ((p.out[2] - 1) * p.stride[2] + span_[2]) * p.ci;
    block_ = rows;
    while (block_ < p.out[1] && rows_of(2 * block_) * span_[0] * pitch_ * long(sizeof(T)) <= bytes) block_ *= 2;
    block_ = std::min(block_, p.out[1]);
    plane_ = rows_of(block_) * pitch_;
  }
  /// Output rows of a block; elements from a row to the next, and of a plane.
  long block() const { return block_; }
  long pitch() const { return pitch_; }
  long plane_elements() const { return plane_; }

  /// Takes its memory, for one call of a kernel.
  void place(Carver& carver) {
    data_ = carver.take<T>(span_[0] * plane_);
    held_ = carver.take<long>(span_[0]);
  }
  T* data() const { return data_; }
  /// Turns to the output rows h to h+rows-1 of sample n.
  void begin(long n, long h, long rows) {
    n_ = n, first_row_ = h * p_.stride[1] - p_.below[1], count_ = rows_of(rows);
    std::fill_n(held_, span_[0], -1L);
  }
  /// The rows at depth `cell` of x (inside it). Stays valid for as many further depths as a window spans.
  const T* plane(const View<const T, 5>& x, long cell) {
    const long slot = cell % span_[0];
    T* to = data_ + slot * plane_;
    if (held_[slot] != cell) fill(x, cell, to);
    held_[slot] = cell;
    return to;
  }

private:
  /// Rows of x that `rows` rows of outputs see.
  long rows_of(long rows) const { return (rows - 1) * p_.stride[1] + span_[1]; }

  void fill(const View<const T, 5>& x, long cell, T* to) const {
    const long width = pitch_ / p_.ci, left = std::min(p_.below[2], width);
    const long inside = std::min(p_.in[2], width - left);
    for (long r = 0; r < count_; ++r, to += pitch_) {
      const long row = first_row_ + r;
      if (row < 0 || row >= p_.in[1]) {
        std::fill_n(to, pitch_, T{});
        continue;
      }
      const T* from = x.data + n_ * x.strides[0] + cell * x.strides[2] + row * x.strides[3];
      std::fill_n(to, left * p_.ci, T{});
      T* q = to + left * p_.ci;
      if (x.strides[4] == p_.ci || inside == 1)
        std::copy_n(from, inside * p_.ci, q);
      else
        for (long w = 0; w < inside; ++w) std::copy_n(from + w * x.strides[4], p_.ci, q + w * p_.ci);
      std::fill_n(q + inside * p_.ci, (width - left - inside) * p_.ci, T{});
    }
  }

  Conv p_;
  Triple span_{};
  long pitch_ = 0, block_ = 0, plane_ = 0;
  T* data_ = nullptr;
  long* held_ = nullptr; // the depth in each slot
  long n_ = 0, first_row_ = 0, count_ = 0;
};

} // namespace tessera::kernel
