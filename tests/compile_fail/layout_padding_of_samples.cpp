// expect: fail_usage
// allow: 25 lines
// Padding in a dim along which no window slides: refused where the stencil is a constant; at run time the text says
// more.
#include <tessera/layout/stencil.hpp>

#ifdef CONTROL
constexpr auto stencil = tessera::window(3).pad(tessera::Dim::d, 1, 1);
#else
constexpr auto stencil = tessera::window(3).pad(tessera::Dim::n, 1, 1);
#endif
static_assert(stencil.valid());
