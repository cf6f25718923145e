// expr/rows.hpp: readers, which give the values of an expression along one row of memory, and the loop over rows.
//
// A row is the longest run that is contiguous in every tensor: in channels-last order the channels of one cell, or all
// cells and channels along w. Nothing is stored between the nodes: each element goes through the whole expression at
// once.
//
// May know: base, layout, space, comm, tensor, move, expr/reach.hpp.
// Example: for_each_row(box, flat, [&](const Index<3>& start, long count) { reader.seek(start); put_row(out, count,
// reader); });
#pragma once

#include <cstring>
#include <tessera/expr/reach.hpp>

namespace tessera::detail {

/// The dim that is contiguous in memory.
template <int N> inline constexpr int fastest_dim = N == 5 ? 1 : N == 4 ? 0 : N - 1;

/// The dims from the slowest to the fastest in memory.
template <int N> constexpr std::array<int, N> memory_order() {
  std::array<int, N> order{};
  std::size_t used = 0;
  for (int k = 0; k < N; ++k)
    if (k != fastest_dim<N>) order[used++] = k;
  order[used] = fastest_dim<N>;
  return order;
}

/// The geometry of rows: with `flat` the channels of all cells along w are one row.
template <int N> struct Rows {
  Box<N> box;
  bool flat = false;

  long channels() const { return box.extent(fastest_dim<N>); }
  long length() const { return flat ? channels() * box.extent(N - 1) : channels(); }
  /// The elements of a row from one index of `dim` to the next; 0 if a row has one index of it.
  long step(int dim) const { return dim == fastest_dim<N> ? 1 : flat && dim == N - 1 ? channels() : 0; }
  /// Calls f(index of the first element) for each row.
  template <class F> void for_each(const F& f) const {
    if (box.empty()) return;
    Box<N> first = box;
    for (int k = 0; k < N; ++k)
      if (step(k) > 0) first.hi[k] = first.lo[k] + 1;
    for_each_index(first, f);
  }
};

/// True if cells along w follow each other in a block of these extents whose rows hold `channels` channels.
template <int N> constexpr bool continues(const Extents<N>& store, long channels) {
  return N >= 4 && store[fastest_dim<N>] == channels;
}

/// Where the elements of a block lie, by global index.
template <int N> struct Place {
  Index<N> origin, strides;
  explicit Place(const Box<N>& store) : origin(store.lo), strides(dense_strides(store.extents())) {}
  long operator()(const Index<N>& at) const {
    long o = 0;
    for (int k = 0; k < N; ++k) o += (at[k] - origin[k]) * strides[k];
    return o;
  }
};

template <class T, int N> struct LeafReader {
  const T* data;
  Place<N> place;
  const T* row = nullptr;

  template <class S>
  LeafReader(const Tensor<T, N, S>& t, const Index<N>& offset)
      : data(t.data()), place(shifted(t.store(), Index<N>{} - offset)) {}
  void seek(const Index<N>& at) { row = data + place(at); }
  T operator()(long i) const { return row[i]; }
};

/// A vector over channels, repeated along the row.
template <class T> struct VectorReader {
  const T* row;
  template <int N> void seek(const Index<N>&) {}
  T operator()(long i) const { return row[i]; }
};

template <class T> struct ScalarReader {
  T value;
  template <int N> void seek(const Index<N>&) {}
  T operator()(long) const { return value; }
};

template <class F, class... R> struct ApplyReader {
  F function;
  std::tuple<R...> args;
  template <int N> void seek(const Index<N>& at) {
    std::apply([&](R&... r) { (r.seek(at), ...); }, args);
  }
  auto operator()(long i) const {
    return std::apply([&](const R&... r) { return function(r(i)...); }, args);
  }
};

/// Zero where a shifted expression lies outside the global tensor. A shifted tensor needs none: its halo is zero there.
template <class R> struct EdgeReader {
  R inner;
  int dim;
  long offset, extent, step; ///< step: see Rows
  long first = 0, last = 0;  ///< the elements of the row that lie inside
  template <int N> void seek(const Index<N>& at) {
    const long cell = at[dim] + offset;
    if (step > 0) {
      first = -cell * step, last = (extent - cell) * step;
    } else {
      first = 0, last = cell >= 0 && cell < extent ? std::numeric_limits<long>::max() : 0;
    }
    inner.seek(at);
  }
  auto operator()(long i) const {
    const auto v = inner(i); // read in any case: it lies in the block, and a loop without jumps is fast
    return i >= first && i < last ? v : decltype(inner(i)){};
  }
};

/// Makes readers for the rows of one box.
template <int N> struct Binder {
  Rows<N> rows;
  Extents<N> extents; ///< of the global tensor
  std::vector<Buffer<std::byte>>& vectors;
  std::size_t vectors_used = 0;

  template <class T, int M, Layout L, class S> auto bind(const Ref<T, M, L, S>& e, const Path<N>& p) {
    return leaf(e.tensor(), p);
  }
  template <class T, int M, Layout L, class S> auto bind(const Owned<T, M, L, S>& e, const Path<N>& p) {
    return leaf(e.tensor(), p);
  }
  template <class T> auto bind(const Scalar<T>& e, const Path<N>&) { return ScalarReader<T>{e.value}; }
  template <class F, class... A> auto bind(const Apply<F, A...>& e, const Path<N>& p) {
    return std::apply(
        [&](const A&... a) {
          using Args = std::tuple<decltype(bind(a, p))...>;
          return ApplyReader<F, decltype(bind(a, p))...>{e.function, Args{bind(a, p)...}};
        },
        e.operands);
  }
  template <Dim D, class A> auto bind(const Shift<D, A>& e, Path<N> p) {
    constexpr int dim = dim_index(D, N);
    p.add(dim, e.by, e.mode);
    if constexpr (is_leaf<A>) {
      return bind(e.operand, p);
    } else {
      auto inner = bind(e.operand, p);
      // A shift with other padding, or to nowhere, never leaves the tensor: its edges lie where nothing is.
      const bool edges = e.by != 0 && e.mode == Padding::zeros;
      constexpr long far = std::numeric_limits<long>::max() / 4;
      EdgeReader<decltype(inner)> r{std::move(inner), dim, p.offset[dim], extents[dim], rows.step(dim)};
      if (!edges) r.offset = 0, r.extent = far, r.step = 0, r.dim = dim;
      return r;
    }
  }

private:
  template <class T, int M, class S> auto leaf(const Tensor<T, M, S>& t, const Path<N>& p) {
    static_assert(S::host_accessible, "tessera: expressions are evaluated on the host; copy the tensor there first");
    if constexpr (M == N)
      return LeafReader<T, N>(t, p.offset);
    else
      return VectorReader<T>{repeated(t, p)};
  }
  /// One row of the vector's values, in memory that is kept.
  template <class T, class S> const T* repeated(const Tensor<T, 1, S>& t, const Path<N>& p) {
    constexpr int c = fastest_dim<N>;
    const std::size_t bytes = std::size_t(rows.length()) * sizeof(T);
    if (vectors.size() == vectors_used) vectors.emplace_back();
    Buffer<std::byte>& buffer = vectors[vectors_used++];
    if (buffer.size() < bytes) buffer = Buffer<std::byte>(bytes);
    T* to = reinterpret_cast<T*>(buffer.data());
    const View<const T, 1> v = t.view();
    const long channels = rows.channels(), extent = extents[c];
    for (long i = 0; i < std::min(channels, rows.length()); ++i) {
      const long at = padded_source(rows.box.lo[c] + i + p.offset[c], extent, p.borders[c]);
      to[i] = at >= 0 ? v(at) : T{};
    }
    for (long i = channels; i < rows.length(); ++i) to[i] = to[i - channels];
    return to;
  }
};

/// Whether what is written is also read, each element at its own place.
enum class Target { fresh, read };

/// out[i] = reader(i).
template <class T, class R> void put_row(Target kind, T* out, long count, const R& reader) {
  const R r = reader;
  if (kind == Target::fresh) {
    T* __restrict to = out;
    for (long i = 0; i < count; ++i) to[i] = static_cast<T>(r(i));
    return;
  }
  // By way of a small local array the compiler sees that no write meets a later read, and uses vectors here as well.
  constexpr long most = 2048 / long(sizeof(T));
  T made[most];
  for (long done = 0; done < count; done += most) {
    const long now = std::min(most, count - done);
    for (long i = 0; i < now; ++i) made[i] = static_cast<T>(r(done + i));
    std::memcpy(out + done, made, std::size_t(now) * sizeof(T));
  }
}

} // namespace tessera::detail
