// expect: this Layout splits a dim that a tensor of this rank does not have; rank 5 is n,c,d,h,w, rank 4 c,d,h,w
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
DistTensor<float, 3, place(d, h)> x;
#else
DistTensor<float, 3, place(n, d)> x;
#endif
