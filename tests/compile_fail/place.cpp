// expect(SEVEN): place\(...\) takes at most six placements, one per grid axis
// expect(NUMBER): place\(...\) takes one placement per grid axis: a dim
// allow: 25 lines
#include <tessera/layout/layout.hpp>
using namespace tessera;
using namespace tessera::names;

#if defined(SEVEN)
constexpr Layout layout = place(n, d, h, w, rep, rep, rep);
#elif defined(NUMBER)
constexpr Layout layout = place(n, 2);
#else
constexpr Layout layout = place(n, d, h, w, rep, rep);
#endif
static_assert(layout.axes > 0);
