// comm/agree.hpp: one rank's failure becomes the same exception on every rank.
//
// For what can fail on one rank alone: a file, a disk, memory. When nothing failed it costs one all-reduce of one
// number.
//
// May know: base, comm/communicator.hpp.
// Example: agree(comm, [&] { file.open(path); });   // a rank without the file makes every rank throw the same io_error
#pragma once

#include <concepts>
#include <exception>
#include <tessera/comm/communicator.hpp>

namespace tessera {

/// Collective. Returns if `my_error` is empty on every rank. Otherwise every rank throws E with the text of the lowest
/// rank that has one, and names that rank.
template <class E = io_error> void agree(const Communicator& comm, const std::string& my_error) {
  const int lowest = comm.all_reduce(my_error.empty() ? comm.size() : comm.rank(), comm::Reduce::min);
  if (lowest == comm.size()) return;
  std::string told = my_error;
  std::uint64_t length = told.size();
  comm.broadcast(std::span(&length, 1), lowest);
  told.resize(length);
  comm.broadcast(std::span(told.data(), told.size()), lowest);
  throw E(text(told, " (on rank ", lowest, " of ", comm.size(), ")"));
}

/// Collective. Calls `f()`, which must not communicate; what it throws becomes E on every rank, as above.
template <class E = io_error, std::invocable F> void agree(const Communicator& comm, F&& f) {
  std::string my_error;
  try {
    std::forward<F>(f)();
  } catch (const std::exception& e) {
    my_error = e.what();
    if (my_error.empty()) my_error = "an exception without a text";
  }
  agree<E>(comm, my_error);
}

} // namespace tessera
