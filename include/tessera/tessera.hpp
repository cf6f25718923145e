// tessera.hpp: all of Tessera for the host: tensors, halos, redistributions, expressions, networks, training, files.
//
// What the build lacks is left out: TESSERA_WITH_ONEDNN, TESSERA_WITH_HDF5, TESSERA_WITH_NIFTI and (comm/environment.hpp)
// TESSERA_WITH_MPI are 0 or 1. Where the build does not define them, they follow from the headers that the compiler finds.
//
// May know: everything.
// Example: #include <tessera/tessera.hpp>
//          int main(int argc, char** argv) { return tessera::run(argc, argv, [](tessera::Environment& env) { ... }); }
#pragma once

#include <tessera/comm/environment.hpp>

#if !defined(TESSERA_WITH_ONEDNN)
#if __has_include(<oneapi/dnnl/dnnl.hpp>)
#define TESSERA_WITH_ONEDNN 1
#else
#define TESSERA_WITH_ONEDNN 0
#endif
#endif

#if !defined(TESSERA_WITH_HDF5)
#if TESSERA_WITH_MPI && __has_include(<hdf5.h>)
#define TESSERA_WITH_HDF5 1
#else
#define TESSERA_WITH_HDF5 0
#endif
#endif

#if !defined(TESSERA_WITH_NIFTI)
#if __has_include(<nifti1_io.h>)
#define TESSERA_WITH_NIFTI 1
#else
#define TESSERA_WITH_NIFTI 0
#endif
#endif

#include <tessera/backend/reference.hpp>
#include <tessera/check/layer.hpp>
#include <tessera/comm/agree.hpp>
#include <tessera/comm/threads.hpp>
#include <tessera/expr/reduce.hpp>
#include <tessera/io/resample.hpp>
#include <tessera/net/graph.hpp>
#include <tessera/net/memory.hpp>
#include <tessera/net/network.hpp>
#include <tessera/tensor/gather.hpp>
#include <tessera/train/trainer.hpp>

#if TESSERA_WITH_ONEDNN
#include <tessera/backend/cpu.hpp>
#include <tessera/expr/conv.hpp>
#endif

#if TESSERA_WITH_HDF5
#include <tessera/io/dataset.hpp>
#include <tessera/train/checkpoint.hpp>
#endif

#if TESSERA_WITH_NIFTI
#include <tessera/io/nifti.hpp>
#endif
