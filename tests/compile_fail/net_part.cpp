// expect(NUMBER): seq\(...\) takes layers such as conv\(8\), layers of your own, which have a stencil\(\), and sequences
// expect(FORGOT): seq\(...\) takes layers such as conv\(8\), layers of your own, which have a stencil\(\), and sequences
// allow: 25 lines
#include <tessera/net/sequence.hpp>
using namespace tessera;

struct NoStencil {};

#if defined(NUMBER)
inline constexpr auto net = seq(conv(2), 3);
#elif defined(FORGOT)
inline constexpr auto net = seq(NoStencil{});
#else
inline constexpr auto net = seq(conv(2), relu());
#endif
