// expect: fail_usage
// A window slides along d, h and w only: padding in another dim is refused where the stencil is a constant.
#include <tessera/layout/stencil.hpp>

#ifdef CONTROL
constexpr auto stencil = tessera::window(3).pad(tessera::Dim::d, 1, 1);
#else
constexpr auto stencil = tessera::window(3).pad(tessera::Dim::n, 1, 1);
#endif
static_assert(stencil.valid());
