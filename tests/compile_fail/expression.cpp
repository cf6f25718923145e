// expect(LAYOUTS): tensors of different layouts in one expression; assign one to a tensor of the other's layout first
// expect(TARGET): the expression has another layout than the tensor it is assigned to
// expect(RANK): the expression has another rank than the tensor it is assigned to
// expect(RANKS): tensors of these ranks do not go together
// expect(VECTOR): a vector that meets a larger tensor is replicated on every grid axis
// expect(NONLINEAR): not linear in a pending sum.*assign the sum to a tensor with rep or a split first
// expect(SUM_PLUS_ONE): not linear in a pending sum
// expect(SUM_TIMES_SUM): not linear in a pending sum
// expect(NORM_OF_SUM): not linear in a pending sum
// expect(MAX_OF_SUM): the extreme of a pending sum; assign it to a tensor with rep or a split first
// expect(SHIFT_OF_SUM): shift of a pending sum; assign it to a tensor with rep or a split first
// expect(NO_SUCH_DIM): shift along a dim that the tensor does not have
#include <tessera/expr/reduce.hpp>
using namespace tessera;
using namespace tessera::names;

using Split = DistTensor<double, 3, place(d, h)>;
using Other = DistTensor<double, 3, place(d, w)>;
using Addends = DistTensor<double, 3, place(d, sum)>;
using Cells = DistTensor<double, 5, place(n, d)>;

double use(Split& x, Other& y, Addends& s, Cells& u, const DistTensor<double, 1, place(c, rep)>& cut,
           const DistTensor<double, 1, place(rep, rep)>& bias) {
#if defined(LAYOUTS)
  x = x + y;
#elif defined(TARGET)
  x = 2 * y;
#elif defined(RANK)
  u = 2 * bias;
#elif defined(RANKS)
  x = x + bias;
#elif defined(VECTOR)
  u = u + cut;
#elif defined(NONLINEAR)
  s = exp(s);
#elif defined(SUM_PLUS_ONE)
  s = s + 1;
#elif defined(SUM_TIMES_SUM)
  s = s * s;
#elif defined(NORM_OF_SUM)
  return norm2(s);
#elif defined(MAX_OF_SUM)
  return max_of(s);
#elif defined(SHIFT_OF_SUM)
  s = shift<d>(s, 1);
#elif defined(NO_SUCH_DIM)
  x = shift<n>(x, 1);
#endif
  x = exp(x) + shift<h>(x, 1);
  y = 2 * y;
  s = 2 * s - s / 3;
  u = u + bias;
  return sum_of(s) + norm2(y) + sum_of(cut);
}
