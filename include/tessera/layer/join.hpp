// layer/join.hpp: JoinLayer, the two layers with two operands: concat (channels side by side) and add.
//
// Both operands have one shape and layout. Where their block boundaries differ (a path whose sizes did not divide) the
// first is brought to those of the second by a planned, counted redistribution; where they agree nothing moves.
//
// May know: base to move, layer/layer.hpp.
// Example: JoinLayer<float, cpu> l(concat(-3), grid, x.map(), skip.map(), y.map());  l.join(pass, x, skip, y);
#pragma once

#include <optional>
#include <tessera/layer/layer.hpp>
#include <tessera/move/redistribute.hpp>

namespace tessera {

/// The map to which concat and add bring their first operand: its channels, in the blocks of the second.
inline Map<5> joined_map(const Map<5>& first, const Map<5>& second) {
  std::array<Partition, 5> parts = second.partitions();
  parts[1] = first.partition(1);
  return Map<5>(second.layout(), second.grid(), first.extents(), std::move(parts));
}

template <class T, class Backend> class JoinLayer final : public Layer<T, typename Backend::space> {
  using Space = typename Backend::space;
  using Field = Tensor<T, 5, Space>;

public:
  JoinLayer(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& first, const Map<5>& second, const Map<5>& out)
      : kind_(spec.kind), box_(first.box(grid.rank())), out_(out.box(grid.rank())), channels_(first.extents()[1]) {
    const Map<5> wanted = joined_map(first, second);
    if (wanted == first) return;
    there_.emplace(grid, first, wanted);
    back_.emplace(grid, wanted, first);
    moved_.emplace(grid, wanted);
  }
  Box<5> need() const override { return box_; }

  void join(Pass<T>& pass, Field& x, Field& other, Field& y) override {
    if (there_) there_->run(x, *moved_);
    const Field& first = there_ ? *moved_ : x;
    const View<const T, 5> a = first.view(), b = std::as_const(other).view();
    if (kind_ == LayerKind::concat) {
      Blocks<Space>::copy(a, y.view(part(0, channels_)));
      Blocks<Space>::copy(b, y.view(part(channels_, out_.hi[1])));
    } else {
      Blocks<Space>::copy(a, y.view());
      Blocks<Space>::add(b, y.view());
    }
    pass.poke();
  }
  void join_backward(Pass<T>& pass, const Field& dy, Field* dx, Field* dother) override {
    const bool parts = kind_ == LayerKind::concat;
    if (dother) Blocks<Space>::copy(parts ? dy.view(part(channels_, out_.hi[1])) : dy.view(), dother->view());
    if (dx) {
      Field& first = there_ ? *moved_ : *dx;
      Blocks<Space>::copy(parts ? dy.view(part(0, channels_)) : dy.view(), first.view());
      if (there_) back_->run(first, *dx);
    }
    pass.poke();
  }

  void forward(Pass<T>&, Field&, Field&) override { refuse(); }
  void backward(Pass<T>&, Field&, const Field&, Field&, Field*) override { refuse(); }

  LayerTraffic traffic() const override {
    return there_ ? LayerTraffic{there_->traffic(), back_->traffic(), 0} : LayerTraffic{};
  }
  std::size_t scratch_bytes() const override { return moved_ ? std::size_t(moved_->store().volume()) * sizeof(T) : 0; }

private:
  [[noreturn]] static void refuse() { throw usage_error("concat and add have two operands: call join()"); }
  /// The channels [lo, hi) of this rank's block of y.
  Box<5> part(long lo, long hi) const {
    Box<5> b = out_;
    b.lo[1] = lo, b.hi[1] = hi;
    return b;
  }

  LayerKind kind_;
  Box<5> box_, out_;
  long channels_; ///< of the first operand
  std::optional<Redistribution<T, 5, Space>> there_, back_;
  std::optional<Field> moved_;
};

} // namespace tessera
