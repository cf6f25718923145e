#include "slices.hpp"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

using namespace tessera;

namespace {

template <class T> std::vector<float> plane(const Tensor<T, 5>& x, long sample, int dim, long at) {
  const Extents<5> e = x.extents();
  TESSERA_REQUIRE(dim >= 0 && dim < 3 && at >= 0 && at < e[dim + 2] && sample >= 0 && sample < e[0], "plane ", at,
                  " along dim ", dim, " of sample ", sample, " of a tensor of ", e);
  const int rows = dim == 0 ? 3 : 2, columns = dim == 2 ? 3 : 4;
  std::vector<float> all(std::size_t(e[rows] * e[columns]));
  Box<5> part = whole(e);
  part.lo[0] = sample, part.hi[0] = sample + 1, part.hi[1] = 1;
  part.lo[dim + 2] = at, part.hi[dim + 2] = at + 1;
  part = intersect(part, x.box());
  if (!part.empty()) {
    const View<const T, 5> v = x.view();
    for_each_index(part, [&](const Index<5>& i) {
      all[std::size_t(i[rows] * e[columns] + i[columns])] = float(v[i - x.box().lo]);
    });
  }
  x.grid().over(x.layout().mask(Placement::Kind::split)).iall_reduce(std::span<float>(all)).wait();
  return all;
}

constexpr std::array<std::array<std::uint8_t, 3>, 9> colours{{{230, 60, 60},
                                                              {70, 160, 250},
                                                              {90, 200, 90},
                                                              {250, 180, 40},
                                                              {170, 90, 220},
                                                              {60, 210, 200},
                                                              {240, 120, 190},
                                                              {150, 190, 40},
                                                              {190, 130, 80}}};

} // namespace

std::vector<float> plane_of(const Tensor<float, 5>& x, long sample, int dim, long at) {
  return plane(x, sample, dim, at);
}
std::vector<float> plane_of(const Tensor<std::uint8_t, 5>& x, long sample, int dim, long at) {
  return plane(x, sample, dim, at);
}

Index<3> middle_of(const Tensor<std::uint8_t, 5>& labels, long sample) {
  double sums[4] = {0, 0, 0, 0};
  const auto v = labels.view();
  for_each_index(whole(v.extents), [&](const Index<5>& i) {
    const Index<5> at = i + labels.box().lo;
    if (at[0] != sample || v[i] == 0) return;
    for (int k = 0; k < 3; ++k) sums[k] += double(at[k + 2]);
    sums[3] += 1;
  });
  labels.grid().over(labels.layout().mask(Placement::Kind::split)).iall_reduce(std::span<double>(sums)).wait();
  Index<3> m;
  for (int k = 0; k < 3; ++k) m[k] = sums[3] > 0 ? std::lround(sums[k] / sums[3]) : labels.extents()[k + 2] / 2;
  return m;
}

Picture overlay(const Tensor<float, 5>& image, const std::vector<const Tensor<std::uint8_t, 5>*>& overlays, long sample,
                const Index<3>& at) {
  const Extents<5> e = image.extents();
  // From above: h up, w across. From the front: d up, w across. From the side: d up, h across.
  const long widths[3] = {e[4], e[4], e[3]}, heights[3] = {e[3], e[2], e[2]};
  const long row = *std::max_element(heights, heights + 3);
  Picture p{widths[0] + widths[1] + widths[2], row * long(overlays.size())};
  long left = 0;
  for (int dim = 0; dim < 3; left += widths[dim], ++dim) {
    const std::vector<float> grey = plane_of(image, sample, dim, at[dim]);
    const auto [low, high] = std::minmax_element(grey.begin(), grey.end());
    const float range = *high > *low ? *high - *low : 1;
    for (std::size_t o = 0; o < overlays.size(); ++o) {
      const std::vector<float> classes = plane_of(*overlays[o], sample, dim, at[dim]);
      for (long y = 0; y < heights[dim]; ++y)
        for (long x = 0; x < widths[dim]; ++x) {
          const auto k = std::size_t((heights[dim] - 1 - y) * widths[dim] + x); // up is up
          const float shade = (grey[k] - *low) / range * 255;
          std::uint8_t* to = &p.rgb[std::size_t(3 * ((long(o) * row + y) * p.width + left + x))];
          for (std::size_t j = 0; j < 3; ++j) {
            const auto label = std::size_t(classes[k]);
            to[j] = std::uint8_t(label == 0 ? shade
                                            : 0.55F * shade + 0.45F * float(colours[(label - 1) % colours.size()][j]));
          }
        }
    }
  }
  return p;
}

bool write_png(const std::string& path, const Picture& picture, int scale) {
  if (picture.width < 1 || picture.height < 1) return false;
  std::FILE* pipe = ::popen("gnuplot 2>/dev/null", "w");
  if (!pipe) return false;
  std::fprintf(pipe, "$p << E\n");
  for (long y = 0; y < picture.height; ++y)
    for (long x = 0; x < picture.width; ++x) {
      const std::uint8_t* c = &picture.rgb[std::size_t(3 * (y * picture.width + x))];
      std::fprintf(pipe, "%ld %ld %d %d %d\n", x, picture.height - 1 - y, c[0], c[1], c[2]);
    }
  std::fprintf(pipe,
               "E\nset terminal pngcairo size %ld,%ld\nset output '%s'\nunset border\nunset tics\nunset key\n"
               "set lmargin 0\nset rmargin 0\nset tmargin 0\nset bmargin 0\nset xrange [-0.5:%ld-0.5]\n"
               "set yrange [-0.5:%ld-0.5]\nplot $p with rgbimage\n",
               picture.width * scale, picture.height * scale, path.c_str(), picture.width, picture.height);
  return ::pclose(pipe) == 0;
}
