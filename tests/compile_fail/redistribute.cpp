// expect(TO_SUM): no move from this layout to that one: .*a `rep` axis cannot become a pending `sum`
// expect(OTHER_AXES): no move from this layout to that one: they must place the same number of
#include <tessera/move/redistribute.hpp>
using namespace tessera;
using namespace tessera::names;

#if defined(TO_SUM)
constexpr Layout from = place(rep), to = place(sum);
#elif defined(OTHER_AXES)
constexpr Layout from = place(rep), to = place(d, h);
#else
constexpr Layout from = place(sum), to = place(rep);
#endif

void use(const DistTensor<float, 3, from>& x, DistTensor<float, 3, to>& y) { y = x; }
