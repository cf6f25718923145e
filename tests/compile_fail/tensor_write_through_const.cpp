// expect: read-only|assignment of read-only location|cannot assign
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
void write(DistTensor<float, 2, place(n)>& x) { x.view()(0, 0) = 1; }
#else
void write(const DistTensor<float, 2, place(n)>& x) { x.view()(0, 0) = 1; }
#endif
