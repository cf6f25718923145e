// layer/global_pool.hpp: GlobalPoolLayer, the average or the maximum of whole volumes: one number a sample and channel.
//
// Each rank reduces its piece; the ranks that hold pieces of the same samples combine those, and all of them hold the
// result: the grid axes that split the volume replicate from here on. Averages are summed in double. The maximum goes
// to the first cell of the global volume that holds it, whoever holds that cell. Nothing moves on the way back.
//
// May know: base to move, kernel (through Backend), layer/layer.hpp.
// Example: GlobalPoolLayer<float, cpu> l(global_max_pool(), grid, x.map());  l.forward(pass, x, y);
#pragma once

#include <tessera/layer/layer.hpp>

namespace tessera {

template <class T, class Backend> class GlobalPoolLayer final : public Layer<T, typename Backend::space> {
  using Field = Tensor<T, 5, typename Backend::space>;

public:
  GlobalPoolLayer(const LayerSpec& spec, const AnyGrid& grid, const Map<5>& in)
      : kind_(spec.pool), box_(in.box(grid.rank())), ranks_(grid.over(axes_of_volume(in.layout()))) {
    for (int i = 0; i < 3; ++i) origin_[i] = box_.lo[2 + i], global_[i] = in.extents()[2 + i];
    const auto count = std::size_t(box_.extent(0) * box_.extent(1));
    sums_.resize(count);
    if (kind_ == kernel::Pool::max) best_.resize(count), where_.resize(count);
  }

  Box<5> need() const override { return box_; }

  void forward(Pass<T>& pass, Field& x, Field& y) override {
    const View<const T, 5> v = std::as_const(x).view(box_);
    if (kind_ == kernel::Pool::average)
      average(v);
    else
      maximum(v);
    Backend::set_values(sums_.data(), y.view());
    pass.poke();
  }

  void backward(Pass<T>& pass, Field&, const Field&, Field& dy, Field* dx) override {
    if (!dx) return;
    const View<const T, 5> g = std::as_const(dy).view();
    if (kind_ == kernel::Pool::average)
      Backend::spread(g, 1.0 / double(product(global_)), dx->view(box_));
    else
      Backend::volume_maxima_backward(g, where_.data(), origin_, global_, dx->view(box_));
    pass.poke();
  }

private:
  static unsigned axes_of_volume(const Layout& l) {
    unsigned mask = 0;
    for (int a = 0; a < l.axes; ++a)
      if (l[a].splits(Dim::d) || l[a].splits(Dim::h) || l[a].splits(Dim::w)) mask |= 1U << a;
    return mask;
  }
  template <class U> void combine(std::vector<U>& v, comm::Reduce how) const {
    if (ranks_.size() > 1 && !v.empty()) ranks_.iall_reduce(std::span<U>(v), how).wait();
  }
  void average(const View<const T, 5>& v) {
    Box<5> sample = whole(v.extents);
    for (long n = 0; n < v.extents[0]; ++n) {
      sample.lo[0] = n, sample.hi[0] = n + 1;
      Backend::channel_sums(v.box(sample), sums_.data() + n * v.extents[1]);
    }
    combine(sums_, comm::Reduce::sum);
    for (double& s : sums_) s /= double(product(global_));
  }
  void maximum(const View<const T, 5>& v) {
    Backend::volume_maxima(v, origin_, global_, best_.data(), where_.data());
    const std::vector<T> mine = best_;
    combine(best_, comm::Reduce::max);
    for (std::size_t k = 0; k < mine.size(); ++k)
      if (mine[k] != best_[k]) where_[k] = std::numeric_limits<std::int64_t>::max();
    combine(where_, comm::Reduce::min);
    std::copy(best_.begin(), best_.end(), sums_.begin());
  }

  kernel::Pool kind_;
  Box<5> box_;
  Communicator ranks_;
  Index<3> origin_{}, global_{};
  std::vector<double> sums_;
  std::vector<T> best_;
  std::vector<std::int64_t> where_; ///< numbers of the cells that hold the maxima
};

} // namespace tessera
