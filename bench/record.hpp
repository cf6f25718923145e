// bench/record.hpp: one line of bench/results.jsonl.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace bench {

/// Prints {"bench", "case", "value", "unit", "note"} as a line of JSON on standard output.
inline void record(const std::string& name, const std::string& which, double value, const std::string& unit,
                   const std::string& note = "") {
  const nlohmann::ordered_json line{{"bench", name}, {"case", which}, {"value", value}, {"unit", unit}, {"note", note}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

} // namespace bench
