// unet3d/slices.hpp: pictures of a volume with a segmentation laid over it, written as PNG through gnuplot.
#pragma once

#include <cstdint>
#include <string>
#include <tessera/tensor/tensor.hpp>
#include <vector>

/// An image of red, green and blue bytes, row by row from the top.
struct Picture {
  long width = 0, height = 0;
  std::vector<std::uint8_t> rgb = std::vector<std::uint8_t>(std::size_t(3 * width * height));
};

/// One plane of a sample's first channel, `at` voxels along `dim` (0: d, 1: h, 2: w), row-major, on every rank: a small
/// all-reduce. Collective.
std::vector<float> plane_of(const tessera::Tensor<float, 5>& x, long sample, int dim, long at);
std::vector<float> plane_of(const tessera::Tensor<std::uint8_t, 5>& x, long sample, int dim, long at);

/// Where each of the three planes of a picture cuts the volume: the middle of the labels that are not 0, or of the
/// volume. Collective.
tessera::Index<3> middle_of(const tessera::Tensor<std::uint8_t, 5>& labels, long sample);

/// Three cuts through the volume (from above, from the front, from the side; up is up, left is left), one row for each
/// segmentation of `overlays`, every class in its own colour. Collective; complete on rank 0.
Picture overlay(const tessera::Tensor<float, 5>& image,
                const std::vector<const tessera::Tensor<std::uint8_t, 5>*>& overlays, long sample,
                const tessera::Index<3>& at);

/// Writes the picture as a PNG, `scale` pixels a voxel. False if gnuplot is not there or fails.
bool write_png(const std::string& path, const Picture& picture, int scale = 3);
