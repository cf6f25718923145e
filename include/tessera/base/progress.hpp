// base/progress.hpp: Progress, one line that says how far a long piece of work is, how fast, and how long it still
// takes.
//
// On a terminal the line is redrawn in place, at most ten times a second. Elsewhere (a log, a batch system) a new line
// appears at every tenth of the work, and after 30 s without one. Only one rank should own a loud one.
//
// May know: the standard library.
// Example: Progress p(epochs * steps, "steps");  p.update(done, "loss 0.031");  p.finish();
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace tessera {

class Progress {
public:
  /// `automatic` is `live` on a terminal and `lines` elsewhere.
  enum class Style { automatic, live, lines, silent };
  using Clock = std::chrono::steady_clock;

  /// `total` pieces of work called `unit`, counted from now; `out` must outlive this object.
  Progress(long total, std::string unit, Style style = Style::automatic, std::FILE* out = stderr)
      : total_(total), unit_(std::move(unit)), style_(style), out_(out), start_(Clock::now()), shown_(start_) {
    if (style_ == Style::automatic) style_ = ::isatty(::fileno(out_)) ? Style::live : Style::lines;
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Leaves a redrawn line where it is, so that what comes next (an error, perhaps) begins on its own line.
  ~Progress() { end_line(); }

  /// `done` pieces in all are finished; `extra` is appended as it is. `now` is for tests.
  void update(long done, std::string_view extra = {}, Clock::time_point now = Clock::now()) {
    if (style_ == Style::silent || !due(done, now)) return;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string text = line(done, total_, unit_, seconds, extra);
    if (style_ == Style::live) {
      const auto length = text.size();
      if (length < width_) text.append(width_ - length, ' '); // covers what the longer line before left behind
      width_ = length;
      std::fprintf(out_, "\r%s", text.c_str());
      open_ = true;
    } else
      std::fprintf(out_, "%s\n", text.c_str());
    std::fflush(out_);
    shown_ = now;
    tenth_ = tenth(done);
    last_ = done;
  }

  /// Ends a redrawn line. Further updates begin a new one.
  void finish() { end_line(); }

  /// "universes 12/64 (18 %)  3.41/s  elapsed 0:03  left 0:15  extra". Time left only while some is left and known.
  static std::string line(long done, long total, std::string_view unit, double seconds, std::string_view extra) {
    std::string s(unit);
    s += " " + std::to_string(done) + "/" + std::to_string(total);
    if (total > 0) s += " (" + std::to_string(100 * done / total) + " %)";
    if (done > 0 && seconds > 0) {
      const double rate = static_cast<double>(done) / seconds;
      char text[32];
      // Slow work reads better as time per piece.
      if (rate >= 1)
        std::snprintf(text, sizeof text, "  %.3g/s", rate);
      else
        std::snprintf(text, sizeof text, "  %.3g s each", 1 / rate);
      s += text;
    }
    s += "  elapsed " + clock(seconds);
    if (done > 0 && done < total)
      s += "  left " + clock(seconds / static_cast<double>(done) * static_cast<double>(total - done));
    if (!extra.empty()) s.append("  ").append(extra);
    return s;
  }

  /// "0:07", "12:34", "1:02:03"
  static std::string clock(double seconds) {
    const long s = static_cast<long>(std::max(0.0, seconds) + 0.5);
    char text[32];
    if (s < 3600)
      std::snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
    else
      std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return text;
  }

private:
  long tenth(long done) const { return total_ > 0 ? 10 * done / total_ : 0; }
  bool due(long done, Clock::time_point now) const {
    if (done == total_ && last_ != total_) return true;
    if (style_ == Style::live) return now - shown_ >= std::chrono::milliseconds(100) || last_ < 0;
    return tenth(done) > tenth_ || now - shown_ >= std::chrono::seconds(30);
  }
  void end_line() {
    if (!std::exchange(open_, false)) return;
    std::fputc('\n', out_);
    std::fflush(out_);
    width_ = 0;
  }

  long total_;
  std::string unit_;
  Style style_;
  std::FILE* out_;
  Clock::time_point start_, shown_;
  std::size_t width_ = 0; // of the line on the terminal
  long tenth_ = 0, last_ = -1;
  bool open_ = false;
};

} // namespace tessera
