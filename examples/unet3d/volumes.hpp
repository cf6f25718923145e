// unet3d/volumes.hpp: real heads from Debian packages as training data: which files, the grid that the network sees,
// and each rank's own box of image and labels.
//
// No rank holds a whole volume: a rank reads the box that its part of the grid is made of and resamples that. The data
// are one subject per atlas: good for showing that a network learns, never for a clinical claim.
#pragma once

#include <cstdint>
#include <string>
#include <tessera/io/nifti.hpp>
#include <tessera/io/resample.hpp>
#include <vector>

/// What the labels mean.
enum class Target {
  brain,  ///< 0 outside, 1 brain
  regions ///< 0 outside, 1 to 9: groups of the AAL atlas
};
/// 2 or 10.
int class_count(Target target);
/// The names of the classes, from 0.
std::vector<std::string> class_names(Target target);

/// The files of one head. Image and labels may lie on different grids.
struct Subject {
  std::string name;
  std::string image;
  std::string brain;   ///< what is not 0 is brain
  std::string regions; ///< AAL labels, or empty
};
/// Colin 27 (package mricron-data) and another human (insighttoolkit5-examples).
Subject colin();
Subject itk_head();
/// Throws io_error on every rank that names the package to install if a file is not there. Collective.
void require_files(const tessera::Communicator& comm, const Subject& subject);

/// Which part of the head, for honest splits of one subject.
enum class Half {
  both,
  left,           ///< x < 0
  right_mirrored, ///< x > 0, seen in a mirror: looks like another left half
};

struct GridWish {
  double resolution = 2; ///< mm between voxels
  double margin = 8;     ///< mm around the brain
  long multiple = 8;     ///< extents are multiples of it: 2^poolings of the network
  Half half = Half::both;
};
/// The voxels for the network: the box of the brain and a margin, in the subject's canonical axes. Collective.
tessera::io::VoxelGrid head_grid(const tessera::Communicator& comm, const Subject& subject, const GridWish& wish);

/// Fills this rank's box of one sample of x (n,1,d,h,w) and t (n,1,d,h,w); their extents are those of `grid`. The image
/// is resampled trilinearly and scaled so that what is brighter than its mean (the head, without the air) has mean 0
/// and deviation 1; labels take the nearest voxel. Collective.
void load_sample(const Subject& subject, Target target, const tessera::io::VoxelGrid& grid,
                 tessera::Tensor<float, 5>& x, tessera::Tensor<std::uint8_t, 5>& t, long sample);

/// The class of each AAL label 0 to 116, from the text file beside the atlas.
std::vector<std::uint8_t> region_groups(const std::string& atlas);
