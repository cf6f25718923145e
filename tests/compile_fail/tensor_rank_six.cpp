// expect: DistTensor has rank 1 to 5
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
using X = DistTensor<float, 5, place(n, d)>;
#else
using X = DistTensor<float, 6, place(n, d)>;
#endif
X x;
