// expect: a reduction needs float, double, a 4- or 8-byte integer, or bytes
#include <tessera/comm/communicator.hpp>

#if defined(CONTROL)
using Number = long;
#else
using Number = short;
#endif

Number use(const tessera::Communicator& c, Number x) { return c.all_reduce(x); }
