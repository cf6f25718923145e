// Which matrix product each pass of a dense layer is: the products are done by plain loops over columns-first memory
// and compared with the definition.
#include "support/ranks.hpp"

#include <random>
#include <tessera/kernel/cublaslt.hpp>
#include <tessera/kernel/reference.hpp>

using namespace tessera;
using kernel::Product;

namespace {

/// As cublasLtMatmul: D = op(A) op(B) + beta D.
std::vector<double> multiply(const Product& p, const std::vector<double>& a, const std::vector<double>& b,
                             std::vector<double> d, double beta) {
  const auto at = [](const std::vector<double>& m, Product::Op op, long ld, long row, long column) {
    return op == Product::Op::transposed ? m.at(std::size_t(column + row * ld)) : m.at(std::size_t(row + column * ld));
  };
  for (long i = 0; i < p.m; ++i)
    for (long j = 0; j < p.n; ++j) {
      double& cell = d.at(std::size_t(i + j * p.ldd));
      double sum = beta == 0 ? 0 : beta * cell;
      for (long l = 0; l < p.k; ++l) sum += at(a, p.a, p.lda, i, l) * at(b, p.b, p.ldb, l, j);
      cell = sum;
    }
  return d;
}

std::vector<double> random(long count, unsigned seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<double> any(-1, 1);
  std::vector<double> v(std::size_t(count), 0.0);
  for (double& x : v) x = any(generator);
  return v;
}

} // namespace

TEST_CASE("cublaslt: the products are those of the definition") {
  const kernel::Dense p{.n = 3, .ci = 5, .co = 4};
  const auto x = random(p.n * p.ci, 1), w = random(p.co * p.ci, 2), dy = random(p.n * p.co, 3);
  const auto equal = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-14);
  };
  std::vector<double> y(std::size_t(p.n * p.co)), dx(x.size()), dw = random(p.co * p.ci, 4);
  const auto old = dw;
  kernel::reference::dense<double>(p, x.data(), w.data(), nullptr, y.data());
  equal(multiply(product_of(p, kernel::Pass::forward), w, x, std::vector<double>(y.size()), 0), y);
  kernel::reference::dense_backward_data<double>(p, dy.data(), w.data(), dx.data());
  equal(multiply(product_of(p, kernel::Pass::backward_data), w, dy, std::vector<double>(dx.size()), 0), dx);
  kernel::reference::dense_backward_weights<double>(p, x.data(), dy.data(), dw.data(), nullptr,
                                                    kernel::Gradient::accumulate);
  equal(multiply(product_of(p, kernel::Pass::backward_weights), x, dy, old, 1), dw);
}

TEST_CASE("plan policy: arithmetic from the environment; alignment of addresses") {
  using kernel::PlanPolicy;
  CHECK(kernel::policy_from_environment({}, nullptr).math == PlanPolicy::Math::full);
  CHECK(kernel::policy_from_environment({}, "tf32").math == PlanPolicy::Math::tf32);
  CHECK(kernel::policy_from_environment({.math = PlanPolicy::Math::tf32}, "full").math == PlanPolicy::Math::full);
  CHECK_THROWS_AS(kernel::policy_from_environment({}, "TF32"), usage_error);
  alignas(16) const char bytes[32] = {};
  CHECK(kernel::common_alignment({bytes}) == 16);
  CHECK(kernel::common_alignment({bytes, bytes + 8, nullptr}) == 8);
  CHECK(kernel::common_alignment({bytes + 12}) == 4);
  CHECK(kernel::common_alignment({nullptr}) == 16);
}
