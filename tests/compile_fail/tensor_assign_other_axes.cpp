// expect: they must place the same number of grid axes
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
constexpr Layout target = place(n, rep);
#else
constexpr Layout target = place(n);
#endif
void assign(DistTensor<float, 5, target>& z, const DistTensor<float, 5, place(d, rep)>& y) { z = y; }
