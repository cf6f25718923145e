// space/host_access.hpp: what the host reads and writes of a space's memory, by name: copies where it must be copies,
// nothing at all where the host may touch the memory itself.
//
// Every function here waits for the copy, so what the host sees is what the stream has computed so far.
//
// May know: base, space/memory.hpp.
// Example: const auto gamma = on_host<Space>(pass.weights);  use(gamma[c]);
#pragma once

#include <span>
#include <tessera/space/memory.hpp>
#include <vector>

namespace tessera {

/// `count` elements of the space, to host memory.
template <class Space, class T> void read_back(T* to_host, const T* from, std::size_t count) {
  if (count == 0) return;
  const auto stream = Space::stream();
  Space::copy_to_host(to_host, from, count * sizeof(T), stream);
  stream.synchronize();
}
template <class Space, class T> std::vector<std::remove_const_t<T>> read_back(std::span<T> from) {
  std::vector<std::remove_const_t<T>> v(from.size());
  read_back<Space>(v.data(), static_cast<const std::remove_const_t<T>*>(from.data()), v.size());
  return v;
}
/// `count` elements of host memory, to the space.
template <class Space, class T> void write_from_host(T* to, const T* from_host, std::size_t count) {
  if (count == 0) return;
  const auto stream = Space::stream();
  Space::copy_from_host(to, from_host, count * sizeof(T), stream);
  stream.synchronize();
}

/// A small array of a space as the host sees it: the array itself where it may, else a copy; store() writes a copy
/// back.
template <class T, class Space> class OnHost {
  using Value = std::remove_const_t<T>;

public:
  explicit OnHost(std::span<T> at) : at_(at) {
    if constexpr (!Space::host_accessible) copy_ = read_back<Space>(at);
  }
  std::span<T> span() const {
    if constexpr (Space::host_accessible)
      return at_;
    else
      return copy_;
  }
  T& operator[](std::size_t i) const { return span()[i]; }
  T* data() const { return span().data(); }
  std::size_t size() const { return at_.size(); }
  /// What was changed here is changed there.
  void store() const requires(!std::is_const_v<T>) {
    if constexpr (!Space::host_accessible) write_from_host<Space, Value>(at_.data(), copy_.data(), copy_.size());
  }

private:
  std::span<T> at_;
  mutable std::vector<Value> copy_;
};
template <class Space, class T> OnHost<T, Space> on_host(std::span<T> s) { return OnHost<T, Space>(s); }

} // namespace tessera
