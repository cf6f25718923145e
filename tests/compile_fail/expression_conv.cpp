// expect(SPLIT_WEIGHTS): the weights of a convolution are a DistTensor \(co,ci,d,h,w\), replicated on every grid axis
// expect(EXPRESSION): a convolution takes a DistTensor of rank 5 .*; assign an expression or a sum to such a tensor
// first expect(PENDING): a convolution takes a DistTensor of rank 5 .* without a pending sum expect(ELEMENTS): a
// convolution takes tensors of one element type expect(BIAS): the bias of a convolution is a DistTensor \(co\),
// replicated on every grid axis expect(GRADIENT): dy and x have one layout; assign dy to a tensor of x's layout first
// expect(POOL): a pooling takes a DistTensor of rank 5
// expect(REDUCED): a reduction of a convolution or a pooling; assign it to a tensor first
#include <tessera/expr/conv.hpp>
#include <tessera/expr/pool.hpp>
#include <tessera/expr/reduce.hpp>
using namespace tessera;
using namespace tessera::names;

using X = DistTensor<float, 5, place(n, d)>;
using Weights = DistTensor<float, 5, place(rep, rep)>;

void use(X& x, X& y, Weights& f, DistTensor<float, 1, place(rep, rep)>& b) {
  constexpr Stencil s = window(3).same();
#if defined(SPLIT_WEIGHTS)
  y = conv<s>(x, x);
#elif defined(EXPRESSION)
  y = conv<s>(2 * x, f);
#elif defined(PENDING)
  DistTensor<float, 5, place(n, sum)> addends;
  addends = conv<s>(addends, f);
#elif defined(ELEMENTS)
  DistTensor<double, 5, place(rep, rep)> g;
  y = conv<s>(x, g);
#elif defined(BIAS)
  y = conv<s>(x, f, f);
#elif defined(GRADIENT)
  DistTensor<float, 5, place(n, h)> other;
  y = conv_backward_data<s>(other, f, x);
#elif defined(POOL)
  y = max_pool<s>(2 * x);
#elif defined(REDUCED)
  sum_of(conv<s>(x, f));
#endif
  y = relu(conv<s>(x, f, b) + b);
  x = conv_backward_data<s>(y, f, x);
  f = conv_backward_weights<s>(x, y);
  y = max_pool<s>(x);
}
