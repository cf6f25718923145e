// base/progress.hpp: what the line says, and when it appears.
#include <doctest/doctest.h>
#include <memory>
#include <tessera/base/progress.hpp>

using tessera::Progress;
using namespace std::chrono_literals;

namespace {

/// A file in memory and what was written to it.
class Sink {
public:
  Sink() : file_(std::tmpfile()) {}
  ~Sink() { std::fclose(file_); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  std::FILE* file() { return file_; }
  std::string text() {
    std::string s(static_cast<std::size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    s.resize(std::fread(s.data(), 1, s.size(), file_));
    return s;
  }
  long lines() {
    const std::string s = text();
    return std::count(s.begin(), s.end(), '\n');
  }

private:
  std::FILE* file_;
};

} // namespace

TEST_CASE("progress: the line") {
  CHECK(Progress::line(12, 64, "universes", 3, "") == "universes 12/64 (18 %)  4/s  elapsed 0:03  left 0:13");
  CHECK(Progress::line(1, 10, "epochs", 90, "loss 0.031") ==
        "epochs 1/10 (10 %)  90 s each  elapsed 1:30  left 13:30  loss 0.031");
  CHECK(Progress::line(0, 5, "steps", 0, "") == "steps 0/5 (0 %)  elapsed 0:00");
  CHECK(Progress::line(5, 5, "steps", 2, "") == "steps 5/5 (100 %)  2.5/s  elapsed 0:02");
  CHECK(Progress::line(0, 0, "steps", 1, "") == "steps 0/0  elapsed 0:01");
  CHECK(Progress::clock(59.6) == "1:00");
  CHECK(Progress::clock(3599) == "59:59");
  CHECK(Progress::clock(3723) == "1:02:03");
}

TEST_CASE("progress: a log gets a line at each tenth, and after 30 s of silence") {
  Sink sink;
  Progress p(1000, "steps", Progress::Style::lines, sink.file());
  const auto start = Progress::Clock::now();
  for (long i = 1; i <= 1000; ++i) p.update(i, "", start + i * 1ms);
  CHECK(sink.lines() == 10);
  p.finish();
  CHECK(sink.lines() == 10);

  Sink slow;
  Progress q(1000, "steps", Progress::Style::lines, slow.file());
  const auto begin = Progress::Clock::now();
  for (long i = 1; i <= 50; ++i) q.update(i, "", begin + i * 4s);
  CHECK(slow.lines() >= 5); // 200 s
  CHECK(slow.lines() <= 6);
}

TEST_CASE("progress: a terminal gets one line, redrawn ten times a second at most and ended once") {
  Sink sink;
  {
    Progress p(100, "steps", Progress::Style::live, sink.file());
    const auto start = Progress::Clock::now();
    for (long i = 1; i <= 100; ++i) p.update(i, i < 50 ? "a long text" : "", start + i * 10ms);
    CHECK(sink.lines() == 0);
  }
  const std::string text = sink.text();
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  const auto redrawn = std::count(text.begin(), text.end(), '\r');
  CHECK(redrawn >= 9);
  CHECK(redrawn <= 13);
  CHECK(text.find("steps 100/100") != text.npos);
  CHECK(text.find("a long text") != text.npos);
}

TEST_CASE("progress: silence, and a file that is no terminal") {
  Sink sink;
  Progress p(2, "steps", Progress::Style::silent, sink.file());
  p.update(1);
  p.update(2);
  p.finish();
  CHECK(sink.text().empty());
  Progress q(2, "steps", Progress::Style::automatic, sink.file());
  q.update(2);
  CHECK(sink.lines() == 1);
}
