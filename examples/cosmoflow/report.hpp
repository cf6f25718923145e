// cosmoflow/report.hpp: what the program leaves behind: metrics.jsonl, predictions.csv and plots. Rank 0 only.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// The parameters under the names of the metrics.
inline constexpr std::array<const char*, 4> parameter_names{"Omega_m", "sigma_8", "n_s", "H_0"};

/// Unit targets (in [-1, 1]) of samples, true and predicted.
struct Predictions {
  std::vector<long> samples;
  std::vector<std::array<float, 4>> truth, predicted;

  /// The mean squared error of each parameter; guessing the mean scores 0.333.
  std::array<double, 4> mse() const {
    std::array<double, 4> e{};
    for (std::size_t i = 0; i < truth.size(); ++i)
      for (std::size_t p = 0; p < 4; ++p) {
        const double d = double(predicted[i][p]) - double(truth[i][p]);
        e[p] += d * d / double(truth.size());
      }
    return e;
  }
};

/// One line of metrics.jsonl after each epoch.
struct EpochRecord {
  int epoch = 0;
  double train_loss = 0;
  std::array<double, 4> validation_mse{};
  double rate = 0, seconds = 0, samples_per_second = 0;
  std::int64_t bytes_read = 0; ///< by all ranks, since the start

  std::string json() const;
};

/// The last line of metrics.jsonl.
struct FinalRecord {
  int ranks = 0;
  std::string grid;
  int width = 0, epochs = 0;
  std::array<double, 4> test_mse{};
  double seconds_per_step = 0, samples_per_second = 0;
  std::int64_t bytes_read = 0, halo_bytes_per_step = 0; ///< by all ranks together
  std::int64_t peak_rss_bytes = 0;                      ///< of the largest rank

  std::string json() const;
};

/// Appends a line. Throws io_error if the disk refuses.
void append_line(const std::filesystem::path& file, const std::string& line);

/// One line per sample: physical values, true and predicted, of each parameter. `universes`: the file each came from.
void write_predictions(const std::filesystem::path& file, const Predictions& p,
                       const std::vector<std::string>& universes);

/// loss.png from the epochs in metrics.jsonl, and predicted against true per parameter, through gnuplot. Returns the
/// files made; none if gnuplot is not there.
std::vector<std::string> make_plots(const std::filesystem::path& folder, const Predictions& p);
