// expect(NUMBER): seq\(...\) takes layers such as conv\(8\), layers of your own, which have a stencil\(\), and sequences
// expect(FORGOT): seq\(...\) takes layers such as conv\(8\), layers of your own, which have a stencil\(\), and sequences
// expect(HALF): pointwise\(F\{\}\) takes a type with const functions value\(v\) and derivative\(v\)
// allow: 25 lines
#include <tessera/net/sequence.hpp>
using namespace tessera;

struct NoStencil {};

struct ValueOnly {
  template <class V> V value(V v) const { return v; }
};

#if defined(NUMBER)
inline constexpr auto net = seq(conv(2), 3);
#elif defined(FORGOT)
inline constexpr auto net = seq(NoStencil{});
#elif defined(HALF)
inline constexpr auto net = seq(pointwise(ValueOnly{}));
#else
inline constexpr auto net = seq(conv(2), relu());
#endif
