// expect(RANK_SIX): DistTensor has rank 1 to 5
// expect(NO_DEPTH): this Layout splits a dim that a tensor of this rank does not have; rank 5 is n,c,d,h,w
// expect(TWO_AXES): the Layout places another number of axes than the Grid has
// expect(FROM_NUMBER): this cannot be assigned to a DistTensor; assign a DistTensor of the same
// expect(ANOTHER_ELEMENT): this cannot be assigned to a DistTensor; assign a DistTensor of the same
#include <tessera/tensor/dist_tensor.hpp>
using namespace tessera;
using namespace tessera::names;

#if defined(RANK_SIX)
template class tessera::DistTensor<float, 6, place(n)>;
#elif defined(NO_DEPTH)
DistTensor<float, 2, place(n, d)> matrix;
#endif

void use(const Grid<1>& grid) {
#if defined(TWO_AXES)
  DistTensor<float, 5, place(n, d)> x(grid, {1, 4, 8, 8, 8});
#else
  DistTensor<float, 5, place(d)> x(grid, {1, 4, 8, 8, 8});
#endif
#if defined(FROM_NUMBER)
  x = 1.0f;
#elif defined(ANOTHER_ELEMENT)
  DistTensor<double, 5, place(d)> y(grid, {1, 4, 8, 8, 8});
  x = y;
#else
  DistTensor<float, 5, place(d)> y(grid, {1, 4, 8, 8, 8});
  x = y;
#endif
}
