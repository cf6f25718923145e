// expect: place\(\.\.\.\) takes at most six placements, one per grid axis; use a grid of fewer axes
// allow: 25 lines
#include <tessera/layout/layout.hpp>

using namespace tessera::names;
#ifdef CONTROL
constexpr auto layout = tessera::place(n, c, d, h, w, rep);
#else
constexpr auto layout = tessera::place(n, c, d, h, w, rep, rep);
#endif
static_assert(layout.axes <= 6);
