// io/augment.hpp: Symmetry, one of the 48 symmetries of the cube, and augment(), which applies it to a volume that is
// split over ranks.
//
// A symmetry acts on the global volume: with a split volume a flip along the split dim needs the part of another rank.
// Each rank obtains exactly the elements it needs: its box, mapped back through the symmetry, cut with every owner's
// box.
//
// May know: base, comm, kernel (the counter-based generator).
// Example: const Symmetry s = Symmetry::draw(seed, epoch, sample);  augment(space, boxes, s, extents, mine, rotated);
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <tessera/base/copy.hpp>
#include <tessera/base/view.hpp>
#include <tessera/comm/communicator.hpp>
#include <tessera/io/shuffle.hpp>
#include <vector>

namespace tessera::io {

/// The result at index i is the source at index j with j[perm[k]] = flip[k] ? extent - 1 - i[k] : i[k], for the dims
/// k = d,h,w. The result's extent k is the source's extent perm[k].
struct Symmetry {
  std::array<int, 3> perm{0, 1, 2};
  std::array<bool, 3> flip{};
  friend bool operator==(const Symmetry&, const Symmetry&) = default;

  /// Number 0 to 47; 0 is the identity, 0 to 7 only flip.
  static constexpr Symmetry number(int n) {
    constexpr std::array<std::array<int, 3>, 6> perms{
        {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}};
    return {perms[static_cast<std::size_t>(n / 8)], {(n & 1) != 0, (n & 2) != 0, (n & 4) != 0}};
  }
  /// The symmetry of a sample in an epoch: all 48 for cubes, the 8 flips for other extents.
  static Symmetry draw(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample, const Extents<3>& extents) {
    const bool cube = extents[0] == extents[1] && extents[1] == extents[2];
    return number(static_cast<int>(random_below(cube ? 48 : 8, seed, Stream::symmetry, epoch, sample)));
  }

  constexpr Extents<3> result_extents(const Extents<3>& source) const {
    return {{source[perm[0]], source[perm[1]], source[perm[2]]}};
  }
  /// The source index of result index i; `source` are the source's extents.
  constexpr Index<3> apply(const Index<3>& i, const Extents<3>& source) const {
    Index<3> j;
    for (std::size_t k = 0; k < 3; ++k) {
      const int to = perm[k], at = static_cast<int>(k);
      j[to] = flip[k] ? source[to] - 1 - i[at] : i[at];
    }
    return j;
  }
  /// The source box of a result box.
  constexpr Box<3> apply(const Box<3>& b, const Extents<3>& source) const {
    Box<3> s;
    for (std::size_t k = 0; k < 3; ++k) {
      const int to = perm[k], at = static_cast<int>(k);
      s.lo[to] = flip[k] ? source[to] - b.hi[at] : b.lo[at];
      s.hi[to] = flip[k] ? source[to] - b.lo[at] : b.hi[at];
    }
    return s;
  }
  /// The symmetry that undoes this one.
  constexpr Symmetry inverse() const {
    Symmetry s;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto to = static_cast<std::size_t>(perm[k]);
      s.perm[to] = static_cast<int>(k);
      s.flip[to] = flip[k];
    }
    return s;
  }
  /// First `a`, then `b`, as one symmetry.
  friend constexpr Symmetry then(const Symmetry& a, const Symmetry& b) {
    Symmetry s;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto mid = static_cast<std::size_t>(b.perm[k]);
      s.perm[k] = a.perm[mid];
      s.flip[k] = a.flip[mid] != b.flip[k];
    }
    return s;
  }
  /// The source block seen in the order of the result.
  template <class T> constexpr View<T, 4> view(const View<T, 4>& source) const {
    View<T, 4> v = source;
    for (std::size_t k = 0; k < 3; ++k) {
      const int from = perm[k] + 1, to = static_cast<int>(k) + 1;
      v.extents[to] = source.extents[from];
      v.strides[to] = flip[k] ? -source.strides[from] : source.strides[from];
      if (flip[k] && source.extents[from] > 0) v.data += (source.extents[from] - 1) * source.strides[from];
    }
    return v;
  }
};

namespace detail {
constexpr int augment_tag = 7201;

constexpr Box<3> spatial(const Box<4>& b) { return {{{b.lo[1], b.lo[2], b.lo[3]}}, {{b.hi[1], b.hi[2], b.hi[3]}}}; }
constexpr Box<4> with_channels(const Box<3>& b, long lo, long hi) {
  return {{{lo, b.lo[0], b.lo[1], b.lo[2]}}, {{hi, b.hi[0], b.hi[1], b.hi[2]}}};
}
/// What of the result box `want` comes from the source box `have`, as a box of the source.
constexpr Box<4> needed(const Symmetry& s, const Extents<3>& extents, const Box<4>& want, const Box<4>& have) {
  return intersect(with_channels(s.apply(spatial(want), extents), want.lo[0], want.hi[0]), have);
}

/// to = from, with the channels of a voxel, `bytes` together, moved as one.
template <std::size_t bytes, class T> void copy_whole_voxels(const View<const T, 4>& from, const View<T, 4>& to) {
  const auto places = [](const auto& v) {
    return View<std::remove_pointer_t<decltype(v.data)>, 3>(v.data, {{v.extents[1], v.extents[2], v.extents[3]}},
                                                            {{v.strides[1], v.strides[2], v.strides[3]}});
  };
  for_each_run(places(from), places(to), [](const T* a, long sa, T* b, long sb, long count) {
    for (long i = 0; i < count; ++i) std::memcpy(b + i * sb, a + i * sa, bytes);
  });
}
/// copy_block(), faster where the channels of a voxel are together and fill a machine word: a symmetry breaks up all
/// longer runs.
template <class T> void copy_voxels(const View<const T, 4>& from, const View<T, 4>& to) {
  const bool together = from.extents[0] == 1 || (from.strides[0] == 1 && to.strides[0] == 1);
  switch (together ? static_cast<std::size_t>(from.extents[0]) * sizeof(T) : 0) {
  case 2: return copy_whole_voxels<2>(from, to);
  case 4: return copy_whole_voxels<4>(from, to);
  case 8: return copy_whole_voxels<8>(from, to);
  case 16: return copy_whole_voxels<16>(from, to);
  default: return copy_block(from, to);
  }
}
} // namespace detail

/// Applies a symmetry to a volume that the ranks of `space` hold in pieces: boxes[r] (c,d,h,w) is what rank r holds of
/// the source and what it is to hold of the result. `extents` are the global d,h,w and do not change under the
/// symmetry. Collective; moves nothing that is not needed. `source` and `target` have the extents of this rank's box.
template <class T>
void augment(const Communicator& space, std::span<const Box<4>> boxes, const Symmetry& symmetry,
             const Extents<3>& extents, const View<const T, 4>& source, const View<T, 4>& target) {
  const int me = space.rank();
  TESSERA_REQUIRE(boxes.size() == static_cast<std::size_t>(space.size()), "augment: ", boxes.size(), " boxes for ",
                  space.size(), " ranks");
  TESSERA_REQUIRE(symmetry.result_extents(extents) == extents, "augment: a permutation of dims changes the extents ",
                  extents, "; use symmetries that only flip");
  const Box<4>& mine = boxes[static_cast<std::size_t>(me)];
  TESSERA_REQUIRE(source.extents == mine.extents() && target.extents == mine.extents(), "augment: the box is ",
                  mine.extents(), ", the source ", source.extents, ", the target ", target.extents);
  const Symmetry back = symmetry.inverse();
  const Index<4> zero{};
  // A source part lands where the inverse symmetry puts it.
  const auto landing = [&](const Box<4>& part) {
    const Box<3> to = back.apply(detail::spatial(part), extents);
    return target.box(shifted(detail::with_channels(to, part.lo[0], part.hi[0]), zero - mine.lo));
  };
  // In the order of the result, so the receiver copies runs.
  const auto seen = [&](const Box<4>& part) { return symmetry.view(source.box(shifted(part, zero - mine.lo))); };

  std::vector<std::vector<T>> in(boxes.size()), out(boxes.size());
  std::vector<Request> receives, sends;
  for (std::size_t r = 0; r < boxes.size(); ++r)
    if (const auto part = detail::needed(symmetry, extents, mine, boxes[r]);
        static_cast<int>(r) != me && !part.empty()) {
      in[r].resize(static_cast<std::size_t>(part.volume()));
      receives.push_back(space.irecv(static_cast<int>(r), detail::augment_tag, std::span(in[r])));
    }
  for (std::size_t r = 0; r < boxes.size(); ++r)
    if (const auto part = detail::needed(symmetry, extents, boxes[r], mine);
        static_cast<int>(r) != me && !part.empty()) {
      const View<const T, 4> from = seen(part);
      out[r].resize(static_cast<std::size_t>(part.volume()));
      detail::copy_voxels<T>(from, View<T, 4>(out[r].data(), from.extents));
      sends.push_back(space.isend(static_cast<int>(r), detail::augment_tag, std::span<const T>(out[r])));
    }
  if (const auto part = detail::needed(symmetry, extents, mine, mine); !part.empty())
    detail::copy_voxels<T>(seen(part), landing(part));
  for (auto& r : receives) r.wait();
  for (std::size_t r = 0; r < boxes.size(); ++r)
    if (!in[r].empty()) {
      const View<T, 4> to = landing(detail::needed(symmetry, extents, mine, boxes[r]));
      detail::copy_voxels<T>(View<const T, 4>(in[r].data(), to.extents), to);
    }
  for (auto& s : sends) s.wait();
}

} // namespace tessera::io
