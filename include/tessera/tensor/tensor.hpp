// tensor/tensor.hpp: Tensor, a distributed tensor whose layout is a run-time value. DistTensor adds the compile-time
// one.
//
// Each rank holds the box that the map gives it, inside a dense channels-last block that may reach further: the halo.
// All boxes are in global indices; a block may reach below 0 or past the extent where padding wraps around.
// Copies are deep. Nothing here communicates.
//
// May know: base, layout, space, comm, tensor/grid.hpp.
// Example: Tensor<float, 5> x(grid, Map<5>(place(n, d), grid.shape(), {1, 4, 8, 8, 8}));  x.view()(0, 0, 0, 0, 0) = 1;
#pragma once

#include <tessera/space/blocks.hpp>
#include <tessera/space/host_access.hpp>
#include <tessera/tensor/grid.hpp>
#include <utility>

namespace tessera {

/// What rows above keep with a tensor between uses: exchange plans, second buffers. It belongs to the object, not to
/// its value: neither copied, moved nor swapped.
struct Kept {
  virtual ~Kept() = default;
};

template <class T, int N, class Space = host> class Tensor {
public:
  using value_type = T;
  using space = Space;
  static constexpr int rank = N;

  Tensor() = default;
  Tensor(AnyGrid grid, Map<N> map) : grid_(std::move(grid)), map_(std::move(map)) {
    require_same_grid();
    box_ = store_ = map_.box(grid_.rank());
    allocate();
  }
  /// A tensor in memory that somebody else owns and that outlives it: `memory` holds `store.volume()` elements.
  /// `store` contains this rank's box.
  Tensor(AnyGrid grid, Map<N> map, const Box<N>& store, T* memory)
      : grid_(std::move(grid)), map_(std::move(map)), store_(store), data_(memory) {
    require_same_grid();
    box_ = map_.box(grid_.rank());
    TESSERA_REQUIRE(store_.contains(box_), "Tensor: a block ", store_, " was given for a rank that holds ", box_,
                    "; the block must contain it");
  }

  Tensor(const Tensor& o) : grid_(o.grid_), map_(o.map_), box_(o.box_), store_(o.store_) {
    allocate();
    Blocks<Space>::copy(o.view(store_), view(store_));
  }
  /// What was moved from is as if default-constructed.
  Tensor(Tensor&& o) noexcept : Tensor() { swap(o); }
  Tensor& operator=(Tensor o) noexcept {
    swap(o);
    return *this;
  }
  void swap(Tensor& o) noexcept {
    std::swap(grid_, o.grid_);
    std::swap(map_, o.map_);
    std::swap(box_, o.box_);
    swap_block(o);
  }
  /// Exchanges the memory of two tensors of one map.
  void swap_block(Tensor& o) noexcept {
    std::swap(store_, o.store_);
    std::swap(own_, o.own_);
    std::swap(data_, o.data_);
  }

  const AnyGrid& grid() const { return grid_; }
  const Map<N>& map() const { return map_; }
  const Layout& layout() const { return map_.layout(); }
  /// Global extents, logical order.
  const Extents<N>& extents() const { return map_.extents(); }
  /// What this rank holds, in global indices.
  const Box<N>& box() const { return box_; }
  /// The block in memory: box() and the halo around it.
  const Box<N>& store() const { return store_; }

  /// What this rank holds; index 0 is box().lo.
  View<T, N> view() { return view(box_); }
  View<const T, N> view() const { return view(box_); }
  /// Any part of the block, given in global indices.
  View<T, N> view(const Box<N>& b) {
    return View<T, N>(data_, store_.extents()).box(shifted(b, Index<N>{} - store_.lo));
  }
  View<const T, N> view(const Box<N>& b) const {
    return View<const T, N>(data_, store_.extents()).box(shifted(b, Index<N>{} - store_.lo));
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  /// False if the block is memory that somebody else owns.
  bool owns_block() const { return data_ == own_.data(); }
  /// The place for what rows above keep.
  std::unique_ptr<Kept>& kept() const { return kept_; }

  /// Makes room for a halo: afterwards store() contains `need`. Keeps what this rank holds; the halo is zero until it
  /// is exchanged. Grows only, so a second call with the same box costs nothing.
  void reserve(const Box<N>& need) {
    if (store_.contains(need)) return;
    Tensor grown(grid_, map_, hull(store_, need));
    Blocks<Space>::copy(std::as_const(*this).view(box_), grown.view(box_));
    swap_block(grown);
  }

private:
  Tensor(AnyGrid grid, Map<N> map, const Box<N>& store)
      : grid_(std::move(grid)), map_(std::move(map)), box_(map_.box(grid_.rank())), store_(store) {
    allocate();
  }
  void require_same_grid() const {
    TESSERA_REQUIRE(map_.grid() == grid_.shape(), "Tensor: its map was made for a grid ", map_.grid().str(),
                    " but the grid is ", grid_.shape().str(), "; make the map with grid.shape()");
  }
  void allocate() {
    own_ = Buffer<T, Space>(std::size_t(store_.volume()));
    data_ = own_.data();
  }

  AnyGrid grid_;
  Map<N> map_;
  Box<N> box_{};
  // The halo is no part of the value: an exchange may grow and fill the block of a const tensor.
  mutable Box<N> store_{};
  mutable Buffer<T, Space> own_;
  mutable T* data_ = nullptr;
  mutable std::unique_ptr<Kept> kept_; // last, so first to go: what it has in flight ends before the block does
};

/// Throws usage_error unless both tensors lie on the ranks in the same way.
template <class T, int N, class A, class B>
void require_equal_maps(const Tensor<T, N, A>& from, const Tensor<T, N, B>& to) {
  TESSERA_REQUIRE(from.map() == to.map(), "copy between memory spaces: from ", from.layout().str(), " ", from.extents(),
                  " to ", to.layout().str(), " ", to.extents(),
                  ", or with other block boundaries; make both with one map, and redistribute in one space");
}

namespace detail {
/// What a rank holds, dense in pinned host memory: the way between the host and other spaces.
template <class T, class Space> using OnTheWay = Buffer<T, typename Space::pinned>;
} // namespace detail

/// to = from, what each rank holds, between the host and another memory space. Local; waits for the copy.
template <class T, int N, class Space>
requires(!Space::host_accessible) void copy(const Tensor<T, N, Space>& from, Tensor<T, N, host>& to) {
  require_equal_maps(from, to);
  detail::OnTheWay<T, Space> on_host(std::size_t(from.box().volume()));
  const View<const T, N> v = from.view();
  Buffer<T, Space> packed;
  const T* dense = v.data;
  if (!v.dense()) {
    packed = Buffer<T, Space>(on_host.size());
    Blocks<Space>::copy(v, View<T, N>(packed.data(), v.extents));
    dense = packed.data();
  }
  read_back<Space>(on_host.data(), dense, on_host.size());
  Blocks<host>::copy(View<const T, N>(on_host.data(), v.extents), to.view());
}
template <class T, int N, class Space>
requires(!Space::host_accessible) void copy(const Tensor<T, N, host>& from, Tensor<T, N, Space>& to) {
  require_equal_maps(from, to);
  detail::OnTheWay<T, Space> on_host(std::size_t(from.box().volume()));
  Blocks<host>::copy(from.view(), View<T, N>(on_host.data(), from.box().extents()));
  const View<T, N> v = to.view();
  Buffer<T, Space> packed;
  T* dense = v.data;
  if (!v.dense()) {
    packed = Buffer<T, Space>(on_host.size());
    dense = packed.data();
  }
  write_from_host<Space>(dense, std::as_const(on_host).data(), on_host.size());
  if (packed.size()) Blocks<Space>::copy(View<const T, N>(dense, v.extents), v);
}
/// The same tensor in host memory; a copy. Local.
template <class T, int N, class Space> Tensor<T, N, host> host_copy(const Tensor<T, N, Space>& x) {
  Tensor<T, N, host> y(x.grid(), x.map());
  copy(x, y);
  return y;
}

/// Sets every element that this rank holds to f(global index). f runs on the host.
template <class T, int N, class Space, class F> void fill(Tensor<T, N, Space>& x, F&& f) {
  if constexpr (!Space::host_accessible) {
    Tensor<T, N, host> y(x.grid(), x.map());
    fill(y, f);
    copy(y, x);
  } else {
    const View<T, N> v = x.view();
    for_each_index(whole(x.box().extents()), [&](const Index<N>& i) { v[i] = static_cast<T>(f(i + x.box().lo)); });
  }
}

} // namespace tessera
