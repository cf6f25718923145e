// kernel/span.hpp: for_each_span, the longest stretches of memory that several channels-last views have in common.
//
// Dense blocks are one stretch; where a view lies inside a larger block, stretches end with its rows, planes or cells.
//
// May know: base, kernel/check.hpp.
// Example: for_each_span([](long count, const float* x, float* y) { ... }, x, y);
#pragma once

#include <tessera/kernel/check.hpp>

namespace tessera::kernel {

/// Calls f(count, pointers...) for stretches of `count` elements that lie without gaps in every view; `count` is a
/// multiple of the channels. The views have equal extents and contiguous channels.
template <class F, class First, class... Rest>
void for_each_span(const F& f, const View<First, 5>& first, const View<Rest, 5>&... rest) {
  const Extents<5>& e = first.extents;
  (check_extents("an operand", rest.extents, e), ...);
  TESSERA_REQUIRE(e[1] == 1 || (first.strides[1] == 1 && ((rest.strides[1] == 1) && ...)),
                  "channels must be contiguous, the first operand has strides ", first.strides);
  if (first.empty()) return;
  constexpr int order[] = {4, 3, 2, 0}; // of what follows channels in memory
  const auto continues = [&](int k, long count) {
    return e[k] == 1 || (first.strides[k] == count && ((rest.strides[k] == count) && ...));
  };
  long count = e[1];
  int inside = 0;
  while (inside < 4 && continues(order[inside], count)) count *= e[order[inside++]];
  Box<5> starts = whole(e);
  starts.hi[1] = 1;
  for (int i = 0; i < inside; ++i) starts.hi[order[i]] = 1;
  for_each_index(starts, [&](const Index<5>& i) { f(count, &first[i], &rest[i]...); });
}

} // namespace tessera::kernel
