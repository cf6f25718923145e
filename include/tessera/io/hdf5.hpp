// io/hdf5.hpp: HDF5 files, reading and writing.
//
// May know: base.
// Example: Hdf5Reader f("u.h5");  for (const auto& name : f.datasets()) std::puts(f.info(name).shape().c_str());
#pragma once

#include <tessera/io/hdf5_reader.hpp>
#include <tessera/io/hdf5_writer.hpp>
