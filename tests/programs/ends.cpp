// A program that ends in the way its argument says; ends.sh runs it and looks at what it prints and returns.
#include <new>
#include <stdexcept>
#include <string>
#include <tessera/comm/agree.hpp>
#include <tessera/comm/environment.hpp>
#include <vector>

using namespace tessera;

namespace {

/// What escapes from here has no handler: std::terminate is called.
void no_way_out(const std::string& text) noexcept {
  struct Thrower {
    static void raise(const std::string& t) { throw io_error(t); }
  };
  Thrower::raise(text);
}

int body(Environment& env, const std::string& way) {
  const Communicator& c = env.world();
  const bool last = c.rank() == c.size() - 1;
  if (way == "all") throw usage_error("the same on all");
  if (way == "each") throw io_error(text("this is ", c.rank()));
  if (way == "agree")
    agree(c, [&] {
      if (last) throw io_error("no such file");
    });
  if (way == "one" && last) throw io_error("only here");
  if (way == "terminate" && last) no_way_out("uncaught");
  if (way == "pending" && last) {
    int never = 0;
    const Request r = c.irecv(0, 3, std::span(&never, 1));
    throw io_error("with a receive pending");
  }
  if (way == "reducing") { // large enough to go in two rounds; the first cannot end, for rank 0 does not take part
    std::vector<float> array(1 << 20, 1.F);
    Request r;
    if (c.rank() > 0) r = c.iall_reduce(std::span(array));
    if (last) throw io_error("with a reduction pending");
    c.barrier();
  }
  if (way == "late" && last) return 0;
  c.barrier();
  return way == "seven" ? 7 : 0;
}

} // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  if (way != "scope") return run(argc, argv, [&](Environment& env) { return body(env, way); });
  // Without run(): the exception leaves the scope of the Environment on one rank only.
  try {
    Environment env(argc, argv);
    body(env, "one");
  } catch (const error& e) {
    std::fprintf(stderr, "main caught: %s\n", e.what());
    return 1;
  }
  return 0;
}
