// expect: a `rep` axis cannot become a pending `sum`; split it or keep it rep
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
constexpr Layout target = place(n, rep);
#else
constexpr Layout target = place(n, sum);
#endif
void assign(DistTensor<float, 5, target>& z, const DistTensor<float, 5, place(d, rep)>& y) { z = y; }
