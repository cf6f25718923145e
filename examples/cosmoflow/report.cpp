#include "report.hpp"
#include "cosmology.hpp"
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tessera/base/error.hpp>

namespace {
nlohmann::json per_parameter(const std::array<double, 4>& v) {
  nlohmann::json j;
  for (std::size_t p = 0; p < 4; ++p) j[parameter_names[p]] = v[p];
  return j;
}

/// The records of a metrics file whose event is `event`; none if there is no file.
std::vector<nlohmann::json> records(const std::filesystem::path& file, std::string_view event) {
  std::vector<nlohmann::json> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_discarded() && j.value("event", "") == event) all.push_back(std::move(j));
  }
  return all;
}

/// The physical value of a unit target: mean * (1 + 0.1 u), as the data set is defined.
double physical(std::size_t parameter, double unit) { return cosmology::mean.values()[parameter] * (1 + 0.1 * unit); }

/// Runs gnuplot on `script`. False if it is not there or fails.
bool gnuplot(const std::string& script) {
  std::FILE* pipe = ::popen("gnuplot 2>/dev/null", "w");
  if (!pipe) return false;
  std::fputs(script.c_str(), pipe);
  return ::pclose(pipe) == 0;
}

} // namespace

std::string EpochRecord::json() const {
  return nlohmann::json{{"event", "epoch"},
                        {"epoch", epoch},
                        {"train_loss", train_loss},
                        {"validation_mse", per_parameter(validation_mse)},
                        {"rate", rate},
                        {"seconds", seconds},
                        {"samples_per_second", samples_per_second},
                        {"bytes_read", bytes_read}}
      .dump();
}

std::string FinalRecord::json() const {
  return nlohmann::json{{"event", "final"},
                        {"ranks", ranks},
                        {"grid", grid},
                        {"width", width},
                        {"epochs", epochs},
                        {"test_mse", per_parameter(test_mse)},
                        {"seconds_per_step", seconds_per_step},
                        {"samples_per_second", samples_per_second},
                        {"bytes_read", bytes_read},
                        {"halo_bytes_per_step", halo_bytes_per_step},
                        {"peak_rss_bytes", peak_rss_bytes}}
      .dump();
}

void append_line(const std::filesystem::path& file, const std::string& line) {
  std::ofstream out(file, std::ios::app);
  out << line << '\n' << std::flush;
  if (!out) throw tessera::io_error(tessera::text("cannot write ", file.string(), "; check space and permissions"));
}

void write_predictions(const std::filesystem::path& file, const Predictions& p,
                       const std::vector<std::string>& universes) {
  std::ofstream out(file);
  out << "sample,universe";
  for (const char* n : parameter_names) out << ',' << n << "_true," << n << "_predicted";
  out << '\n';
  for (std::size_t i = 0; i < p.samples.size(); ++i) {
    out << p.samples[i] << ',' << universes[i];
    for (std::size_t k = 0; k < 4; ++k)
      out << ',' << physical(k, double(p.truth[i][k])) << ',' << physical(k, double(p.predicted[i][k]));
    out << '\n';
  }
  out.flush();
  if (!out) throw tessera::io_error(tessera::text("cannot write ", file.string(), "; check space and permissions"));
}

std::vector<std::string> make_plots(const std::filesystem::path& folder, const Predictions& p) {
  std::vector<std::string> made;
  const std::string style = "set terminal pngcairo size 800,600 font 'sans,12'\nset grid\n";
  const auto history = records(folder / "metrics.jsonl", "epoch");
  if (!history.empty()) {
    std::string data = "$h << E\n";
    for (const auto& r : history) {
      data += std::to_string(r.at("epoch").get<int>()) + ' ' + std::to_string(r.at("train_loss").get<double>());
      for (const char* n : parameter_names) data += ' ' + std::to_string(r.at("validation_mse").at(n).get<double>());
      data += '\n';
    }
    std::string plot =
        "set output '" + (folder / "loss.png").string() +
        "'\nset logscale y\nset xlabel 'epoch'\nset ylabel 'mean squared error (unit targets)'\n"
        "set key outside right\nplot 1./3 title 'guessing' dt 2 lc 'gray', $h using 1:2 with linespoints "
        "title 'training'";
    for (std::size_t k = 0; k < 4; ++k)
      plot += ", $h using 1:" + std::to_string(k + 3) + " with linespoints title 'validation " + parameter_names[k] +
              "' noenhanced";
    if (gnuplot(style + data + "E\n" + plot + "\n")) made.push_back((folder / "loss.png").string());
  }
  for (std::size_t k = 0; k < 4 && !p.samples.empty(); ++k) {
    std::string data = "$p << E\n";
    for (std::size_t i = 0; i < p.samples.size(); ++i)
      data += std::to_string(physical(k, double(p.truth[i][k]))) + ' ' +
              std::to_string(physical(k, double(p.predicted[i][k]))) + '\n';
    const auto file = folder / (std::string("predicted_") + parameter_names[k] + ".png");
    const std::string name = parameter_names[k];
    if (gnuplot(style + data + "E\nset output '" + file.string() + "'\nset xlabel 'true " + name +
                "' noenhanced\nset ylabel 'predicted " + name + "' noenhanced\nset size square\nset key off\n" +
                "plot x with lines lc 'gray', $p with points pt 7 ps 0.7\n"))
      made.push_back(file.string());
  }
  return made;
}
