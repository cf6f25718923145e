// expect: place\(\.\.\.\) takes one placement per grid axis: a dim \(n, c, d, h, w\), rep or sum
// allow: 25 lines
#include <tessera/layout/layout.hpp>

using namespace tessera::names;
#ifdef CONTROL
constexpr auto layout = tessera::place(n, d);
#else
constexpr auto layout = tessera::place(n, 2);
#endif
static_assert(layout.axes <= 6);
