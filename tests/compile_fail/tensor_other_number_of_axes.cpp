// expect: the Layout places another number of axes than the Grid has; give place\(\.\.\.\) one argument per grid axis
// allow: 25 lines
#include <tessera/move/redistribute.hpp>

using namespace tessera;
using namespace tessera::names;

#ifdef CONTROL
using X = DistTensor<float, 5, place(n, d, rep)>;
#else
using X = DistTensor<float, 5, place(n, d)>;
#endif
X make(const Grid<3>& grid) { return X(grid, {{8, 4, 64, 64, 64}}); }
