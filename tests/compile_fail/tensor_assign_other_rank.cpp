// expect: this cannot be assigned to a DistTensor; assign a DistTensor of the same element type, rank and memory space
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
constexpr int rank = 5;
#else
constexpr int rank = 4;
#endif
void assign(DistTensor<float, 5, place(d)>& z, const DistTensor<float, rank, place(h)>& y) { z = y; }
