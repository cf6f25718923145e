// kernel/device/instances.cuh: every kernel of the library, for one element type. For nvcc, with
// --expt-relaxed-constexpr.
//
// May know: base, space, kernel.
// Example: template struct tessera::kernel::device::Instances<float>;   // in the one .cu file of a program
#pragma once

#include <tessera/kernel/device/convolution.hpp>
#include <tessera/kernel/device/loss.hpp>
#include <tessera/kernel/device/normalisation.hpp>
#include <tessera/kernel/device/pooling.hpp>
#include <tessera/kernel/device/resample.hpp>
#include <tessera/space/cuda_launch.cuh>
#include <tuple>

namespace tessera::kernel::device {

/// The functions that launch F, in a table, so that they are compiled even where a compiler would rather inline them.
template <class... F> inline constexpr std::tuple launches{&cuda_device::launch<F>...};

template <class T> struct Instances {
  static constexpr auto all =
      launches<CopyRuns<T>, AddRuns<T>, FillRuns<T>, Activate<T>, TimesSlope<T>, FillChannels<T>, AddChannels<T>,
               Apply<T, NamedFunction>, ApplyBackward<T, NamedFunction>, Softmax<T>, SoftmaxBackward<T>, Dropout<T>,
               Sgd<T>, Adam<T>, PoolForward<T>, PoolBackward<T>, UpsampleForward<T>, UpsampleBackward<T>,
               VolumeMaxima<T>, VolumeMaximaBackward<T>, Spread<T>, SetValues<T>, ConvForward<T>, ConvBackwardData<T>,
               ConvBackwardWeights<T>, DenseForward<T>, DenseBackwardData<T>, DenseBackwardWeights<T>,
               SliceSums<Elements<T>>, SliceSums<SquaredDeviations<T>>, SliceSums<GradientAndDeviation<T>>, RowSums<T>,
               RowSums<double>, Normalise<T>, NormalisationBackward<T>>;
};

/// A pointwise function of the user's own, a type whose value(v) and derivative(v) are TESSERA_HD.
template <class F, class T> struct FunctionInstances {
  static constexpr auto all = launches<Apply<T, F>, ApplyBackward<T, F>>;
};

/// A loss of the user's own that runs on the device.
template <class Loss, class T> struct LossInstances {
  static constexpr auto all = launches<SliceSums<LossValues<Loss, T>>, LossGradient<Loss, T>>;
};

} // namespace tessera::kernel::device
