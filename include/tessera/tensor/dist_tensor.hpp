// tensor/dist_tensor.hpp: DistTensor, a distributed tensor whose layout is part of its type.
//
// Assignment between two DistTensors of one layout copies; between two layouts it redistributes
// (move/redistribute.hpp); from an expression it evaluates (expr/evaluate.hpp).
//
// May know: base, layout, space, comm, tensor.
// Example: DistTensor<float, 5, place(n, d, h, w)> x(grid, {8, 4, 64, 64, 64});
#pragma once

#include <tessera/tensor/tensor.hpp>

namespace tessera {

namespace detail {
/// Assignment from another layout or an expression: headers above this row specialise it.
template <class To, class From> struct Assign {
  static_assert(sizeof(To) == 0,
                "tessera: this cannot be assigned to a DistTensor; assign a DistTensor of the same "
                "element type, rank and memory space (include tessera/move/redistribute.hpp for another "
                "layout) or an expression");
  static void run(To&, const From&);
};
} // namespace detail

/// T: element; N: rank, 1 to 5 (5: n,c,d,h,w; 4: c,d,h,w; 3: d,h,w; 2: n,c; 1: c); L: one placement per grid axis;
/// Space: where the elements are.
template <class T, int N, Layout L, class Space = host> class DistTensor : public Tensor<T, N, Space> {
  static_assert(N >= 1 && N <= 5, "tessera: DistTensor has rank 1 to 5");
  static_assert(L.fits_rank(N), "tessera: this Layout splits a dim that a tensor of this rank does not have; rank 5 is "
                                "n,c,d,h,w, rank 4 c,d,h,w, rank 3 d,h,w, rank 2 n,c, rank 1 c");
  using Base = Tensor<T, N, Space>;

public:
  static constexpr Layout layout_value = L;

  DistTensor() = default;
  /// Zero everywhere, in balanced blocks. `extents` are global, in logical order.
  template <int R>
  DistTensor(const Grid<R>& grid, const Extents<N>& extents) : Base(grid, Map<N>(L, grid.shape(), extents)) {
    static_assert(R == L.axes, "tessera: the Layout places another number of axes than the Grid has; give place(...) "
                               "one argument per grid axis");
  }
  /// With block boundaries given: one Partition per dim.
  template <int R>
  DistTensor(const Grid<R>& grid, const Extents<N>& extents, std::array<Partition, N> parts)
      : Base(grid, Map<N>(L, grid.shape(), extents, std::move(parts))) {
    static_assert(R == L.axes, "tessera: the Layout places another number of axes than the Grid has; give place(...) "
                               "one argument per grid axis");
  }
  explicit DistTensor(Base base) : Base(std::move(base)) {
    TESSERA_REQUIRE(this->layout() == L, "DistTensor ", L.str(), " made from a tensor of ", this->layout().str());
  }
  DistTensor(const DistTensor&) = default;
  DistTensor(DistTensor&&) noexcept = default;
  DistTensor& operator=(const DistTensor&) = default;
  DistTensor& operator=(DistTensor&&) noexcept = default;

  /// From another layout: redistributes into this tensor's own boundaries. From an expression: evaluates it.
  /// A default-constructed target takes the source's grid and extents.
  template <class From>
  requires(!std::is_base_of_v<DistTensor, std::remove_cvref_t<From>>) DistTensor& operator=(From&& from) {
    detail::Assign<DistTensor, std::remove_cvref_t<From>>::run(*this, from);
    return *this;
  }
};

template <class X> inline constexpr bool is_dist_tensor = false;
template <class T, int N, Layout L, class S> inline constexpr bool is_dist_tensor<DistTensor<T, N, L, S>> = true;

} // namespace tessera
