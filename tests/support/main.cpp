// support/main.cpp: the main of every test binary: starts MPI where there is one, runs the test cases on every rank,
// and makes one verdict of all ranks'. Each wait is limited to 60 s, unless TESSERA_TIMEOUT says otherwise.
//
// The last line on rank 0 is for programs:
//   tessera-tests: <binary> ranks=<N> cases=<passed>/<total> asserts=<sum over ranks> failed=<cases that failed
//   anywhere>
#define DOCTEST_CONFIG_IMPLEMENT
#include "ranks.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

namespace {

using namespace tessera;

const Environment* the_environment = nullptr;

/// What this rank has seen.
struct Tally {
  std::vector<std::string> failed;
  std::int64_t cases = 0, asserts = 0;
} tally;

struct Listener final : doctest::IReporter {
  explicit Listener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& s) override { tally.asserts = s.numAsserts; }
  void test_case_start(const doctest::TestCaseData& t) override {
    ++tally.cases;
    name_ = text(t.m_file.c_str(), ":", t.m_line, " ", t.m_name);
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& s) override {
    if (!s.testCaseSuccess) tally.failed.push_back(name_);
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

private:
  std::string name_;
};
REGISTER_LISTENER("tally", 1, Listener);

/// Collective. Every rank obtains the cases that failed on any.
std::set<std::string> failed_anywhere(const Communicator& world) {
  std::string mine;
  for (const auto& name : tally.failed) mine += name + '\n';
  std::set<std::string> all;
  for (const auto& part : world.all_gather(std::span<const char>(mine)))
    for (auto first = part.begin(); first != part.end();) {
      const auto end = std::find(first, part.end(), '\n');
      all.emplace(first, end);
      first = end + 1;
    }
  return all;
}

int run_tests(const Environment& env, int argc, char** argv) {
  the_environment = &env;
  const Communicator& world = env.world();
  doctest::Context context(argc, argv);
  if (world.size() > 1) context.setOption("no-colors", true);
  if (world.rank() != 0) context.setOption("minimal", true);
  const int own = context.run();
  if (context.shouldExit()) return own; // a query such as --list-test-cases

  const auto failed = failed_anywhere(world);
  const auto total = world.all_reduce(tally.cases, comm::Reduce::max);
  const auto asserts = world.all_reduce(tally.asserts);
  if (world.rank() == 0) {
    const auto missed = static_cast<std::int64_t>(failed.size());
    std::printf("tessera-tests: %s ranks=%d cases=%lld/%lld asserts=%lld failed=%lld\n",
                std::filesystem::path(argv[0]).filename().c_str(), world.size(), static_cast<long long>(total - missed),
                static_cast<long long>(total), static_cast<long long>(asserts), static_cast<long long>(missed));
  }
  return own != 0 || !failed.empty() ? 1 : 0;
}

} // namespace

const Environment& tessera::test::environment() { return *the_environment; }

int main(int argc, char** argv) {
  setenv("TESSERA_TIMEOUT", "60", /*overwrite=*/0);
  return run(argc, argv, [&](Environment& env) { return run_tests(env, argc, argv); });
}
