// comm/environment.hpp: Environment, which starts and ends the communication of a program, and run(), a main() that
// never hangs.
//
// With MPI the world is that of MPI, without it is this one rank. The build decides by defining TESSERA_WITH_MPI as 0
// or 1; when it does not, MPI is used if the compiler finds its header and that of Boost.MPI. The choice is part of the
// type Environment, so mixing both in one program is a link error.
//
// May know: base, comm.
// Example: int main(int argc, char** argv) { return tessera::run(argc, argv, [](tessera::Environment& env) { ... }); }
#pragma once

#include <algorithm>
#include <exception>
#include <optional>
#include <tessera/comm/communicator.hpp>
#include <thread>
#include <type_traits>

#if !defined(TESSERA_WITH_MPI)
#if __has_include(<mpi.h>) && __has_include(<boost/mpi/environment.hpp>)
#define TESSERA_WITH_MPI 1
#else
#define TESSERA_WITH_MPI 0
#endif
#endif

#if TESSERA_WITH_MPI
#include <tessera/comm/mpi.hpp>
#endif

namespace tessera {

namespace comm {

namespace detail {
/// Never empty.
inline std::string text_of(const std::exception_ptr& e) {
  try {
    std::rethrow_exception(e);
  } catch (const std::exception& known) {
    return *known.what() ? known.what() : "an exception without a text";
  } catch (...) { return "an exception that is no std::exception"; }
}
} // namespace detail

/// The warning for a program that a launcher started N times while it sees a world of one rank, so that N copies do the
/// same work. `get` is like std::getenv.
template <class Get> std::optional<std::string> launcher_mismatch(int world_size, Get get) {
  if (world_size != 1) return {};
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const char* value = get(name);
    if (!value) continue;
    char* end = nullptr;
    const long started = std::strtol(value, &end, 10);
    if (end == value || *end != '\0' || started <= 1) continue;
    return text(
        "the launcher started ", started, " processes (", name, "=", value,
        "), but each of them sees a world of one rank: they would all do the same work. The launcher does not "
        "belong to the MPI library that this program was built with, or the program was built without MPI. Use the "
        "mpirun of that library, or, with Slurm, srun --mpi=<its interface>, or build against the launcher's "
        "library");
  }
  return {};
}

/// Among processes that do not know each other: whether this is the launcher's first.
template <class Get> bool first_of_launcher(Get get) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = get(name)) return std::string_view(value) == "0";
  return true;
}

/// Lets ranks that have failed find out what the others do, without waiting for them for ever. Has its own group, so a
/// call matches nothing else that may be pending.
class Settlement {
public:
  explicit Settlement(const Communicator& world) : group_(world.split(0)) {}

  /// Collective over those that come. Returns what each rank gave ("" for success), or nothing if not all came within
  /// `seconds`; the program must end then, since the others can no longer settle. 0 seconds: waits without limit.
  std::optional<std::vector<std::string>> settle(const std::string& mine, double seconds) const {
    if (!all_here(seconds)) return {};
    std::vector<std::string> told;
    for (const auto& characters : group_.all_gather(std::span<const char>(mine)))
      told.emplace_back(characters.begin(), characters.end());
    return told;
  }

private:
  bool all_here(double seconds) const {
    auto pending = group_.endpoint().iall_reduce(landing_.get(), 1, Element::u8, Reduce::max);
    const auto start = std::chrono::steady_clock::now();
    while (!pending->test()) {
      if (seconds > 0 && std::chrono::steady_clock::now() - start > std::chrono::duration<double>(seconds))
        return false;
      std::this_thread::yield();
    }
    return true;
  }
  Communicator group_;
  std::unique_ptr<std::uint8_t> landing_ = std::make_unique<std::uint8_t>();
};

/// Who prints what, once every rank has told its error ("" for none): the lowest of those with the same text.
inline std::optional<std::string> report_of(int rank, const std::vector<std::string>& told) {
  const std::string& mine = told[static_cast<std::size_t>(rank)];
  const auto same = std::ranges::count(told, mine);
  if (mine.empty() || std::ranges::find(told, mine) - told.begin() != rank) return {};
  const auto ranks = static_cast<std::ptrdiff_t>(told.size());
  if (ranks == 1) return text(": ", mine);
  if (same == ranks) return text(" on all ", ranks, " ranks: ", mine);
  return text(" on rank ", rank, same > 1 ? text(" and ", same - 1, " more") : std::string(), " of ", ranks, ": ",
              mine);
}

/// The world of a program without MPI: this rank.
class SelfSession {
public:
  SelfSession(int&, char**&) {}
  std::shared_ptr<Endpoint> world() const { return world_; }

private:
  std::shared_ptr<Endpoint> world_ = std::make_shared<SelfEndpoint>();
};

} // namespace comm

/// Starts the communication of a program and ends it. Made once, in main, and outlives everything that communicates.
///
/// While it lives, a rank that dies of an uncaught exception prints it with its rank and ends all ranks. An exception
/// that leaves the Environment's scope on some ranks only does the same.
template <class Session> class BasicEnvironment {
public:
  /// Seconds that a rank which has failed waits for the others to fail too, before it ends them.
  static constexpr double patience = 5;

  BasicEnvironment(int& argc, char**& argv) : session_(argc, argv), world_(session_.world()), settlement_(world_) {
    const auto warning = comm::launcher_mismatch(world_.size(), [](const char* n) { return std::getenv(n); });
    if (warning && comm::first_of_launcher([](const char* n) { return std::getenv(n); }))
      std::fprintf(stderr, "tessera: warning: %s\n", warning->c_str());
    dying_world() = &world_;
    previous_ = std::set_terminate(die);
  }
  BasicEnvironment(const BasicEnvironment&) = delete;
  BasicEnvironment& operator=(const BasicEnvironment&) = delete;
  ~BasicEnvironment() {
    if (unwinding_ && world_.size() > 1 && !settlement_.settle("left by an exception", patience))
      world_.abort(text("rank ", world_.rank(), " ends with an exception while others go on"));
    std::set_terminate(previous_);
    dying_world() = nullptr;
  }

  /// All ranks of the program.
  const Communicator& world() const { return world_; }
  const comm::Settlement& settlement() const { return settlement_; }

private:
  static const Communicator*& dying_world() {
    static const Communicator* world = nullptr;
    return world;
  }
  [[noreturn]] static void die() {
    const auto e = std::current_exception();
    const std::string why = e ? comm::detail::text_of(e) : "terminated without an exception";
    if (const Communicator* world = dying_world()) world->abort(text("rank ", world->rank(), ": ", why));
    std::abort();
  }

  Session session_;
  Communicator world_;
  comm::Settlement settlement_;
  comm::detail::Unwinding unwinding_;
  std::terminate_handler previous_ = nullptr;
};

#if TESSERA_WITH_MPI
using Environment = BasicEnvironment<comm::MpiSession>;
#else
using Environment = BasicEnvironment<comm::SelfSession>;
#endif

/// A main: makes the Environment, calls `body(Environment&)` and returns the exit status: what `body` returns (0 if
/// that is void), or 1 if it threw on any rank. If all ranks throw, each different text is printed once; if some go on
/// after others have thrown, those print their errors and end all ranks.
template <class F> int run(int& argc, char**& argv, F&& body) {
  std::optional<Environment> env;
  int status = 0;
  std::string mine;
  try {
    env.emplace(argc, argv);
    if constexpr (std::is_void_v<std::invoke_result_t<F, Environment&>>)
      std::forward<F>(body)(*env);
    else
      status = std::forward<F>(body)(*env);
  } catch (...) { mine = comm::detail::text_of(std::current_exception()); }
  if (!env) {
    std::fprintf(stderr, "tessera: error: %s\n", mine.c_str());
    return 1;
  }
  const Communicator& world = env->world();
  const auto told = env->settlement().settle(mine, mine.empty() ? 0 : Environment::patience);
  if (!told) world.abort(text("error on rank ", world.rank(), " of ", world.size(), ": ", mine));
  if (const auto report = comm::report_of(world.rank(), *told))
    std::fprintf(stderr, "tessera: error%s\n", report->c_str());
  const bool failed = std::ranges::any_of(*told, [](const std::string& s) { return !s.empty(); });
  return failed ? 1 : status;
}

} // namespace tessera
