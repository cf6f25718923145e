// expect(NUMBER): constraints not satisfied
// expect-clang(NUMBER): no matching function for call to 'seq'
// expect(FORGOT): NetworkPart
// expect-clang(FORGOT): NetworkPart
// allow: 30 lines
#include <tessera/net/sequence.hpp>
using namespace tessera;

struct NoStencil {};

#if defined(NUMBER)
constexpr auto net = seq(conv(2), 3);
#elif defined(FORGOT)
constexpr auto net = seq(NoStencil{});
#else
constexpr auto net = seq(conv(2), relu());
#endif
