// cosmoflow/universe.hpp: one universe: a Gaussian field, its displacements, and particle counts at four redshifts.
//
// A cube of width^3 cells is split into slabs: a rank of the communicator owns planes of constant x in real space and
// of constant k_y in Fourier space. The counts are bitwise the same on any number of ranks, by construction and not by
// rounding luck: whatever the slabs, the same one-plane transforms and loops run on the same whole planes, and ranks
// only pass planes around. (Different processors may choose other FFTW kernels; in double precision a count then
// differs for about one particle in 10^13.)
//
// May know: cosmology.hpp, tessera (layout, space, comm), FFTW.
// Example: Universe u(comm, 64);  u.draw_density(LinearPower(p), 4.0, seed, index);  u.displace();  u.count(p.omega_m);
#pragma once

#include "cosmology.hpp"

#include <complex>
#include <fftw3.h>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <tessera/comm/communicator.hpp>
#include <tessera/layout/partition.hpp>
#include <tessera/space/memory.hpp>
#include <vector>

namespace cosmology {

using Complex = std::complex<double>;
using tessera::Buffer;
using tessera::Communicator;
using tessera::Interval;
using tessera::Partition;

namespace detail {

/// FFTW's planner shares state between threads; only execution is safe.
inline std::mutex& planner_lock() {
  static std::mutex m;
  return m;
}
struct DestroyPlan {
  void operator()(fftw_plan p) const {
    const std::lock_guard lock(planner_lock());
    fftw_destroy_plan(p);
  }
};
using Plan = std::unique_ptr<std::remove_pointer_t<fftw_plan>, DestroyPlan>;

inline fftw_complex* raw(Complex* p) { return reinterpret_cast<fftw_complex*>(p); }
inline std::size_t to_size(long n) { return static_cast<std::size_t>(n); }

} // namespace detail

/// The 3D transform of a real cube of width^3 cells in slabs over the ranks; unnormalised in both directions.
///
/// Real space is handed over plane by plane, [y][z] for each x that this rank owns. The spectrum holds, for each k_y
/// that this rank owns, [k_x][k_z] with k_z <= width / 2.
class SlabFft {
public:
  SlabFft(Communicator comm, long width)
      : comm_(std::move(comm)), n_(width), k_(width / 2 + 1), slabs_(Partition::balanced(width, comm_.size())),
        mine_(slabs_[comm_.rank()]), plane_(detail::to_size(n_ * k_)), cells_(detail::to_size(n_ * n_)),
        by_y_(spectrum_size()), by_x_(comm_.size() > 1 ? spectrum_size() : 0) {
    const std::lock_guard lock(detail::planner_lock());
    // Estimated plans do not depend on timings, so every rank and every run gets the same ones.
    constexpr unsigned how = FFTW_ESTIMATE;
    const int n = static_cast<int>(n_), k = static_cast<int>(k_);
    auto* plane = detail::raw(plane_.data());
    to_real_.reset(fftw_plan_dft_c2r_2d(n, n, plane, cells_.data(), how));
    from_real_.reset(fftw_plan_dft_r2c_2d(n, n, cells_.data(), plane, how));
    auto lines = [&](int sign) {
      return fftw_plan_many_dft(1, &n, k, plane, nullptr, k, 1, plane, nullptr, k, 1, sign, how);
    };
    backward_x_.reset(lines(FFTW_BACKWARD));
    forward_x_.reset(lines(FFTW_FORWARD));
    if (!to_real_ || !from_real_ || !backward_x_ || !forward_x_)
      throw tessera::backend_error(tessera::text("FFTW: no plan for width ", width));
  }

  const Communicator& comm() const { return comm_; }
  const Partition& slabs() const { return slabs_; }
  Interval mine() const { return mine_; }
  std::size_t spectrum_size() const { return detail::to_size(n_ * mine_.size() * k_); }

  /// `fill(x, plane)` writes the cells of plane x; the transform of all of them lands in `out`. Collective.
  template <class Fill> void forward(Fill&& fill, Complex* out) {
    Complex* const blocks = by_x();
    for (long x = mine_.lo; x < mine_.hi; ++x) {
      fill(x, cells_.data());
      fftw_execute(from_real_.get());
      for (int r = 0; r < comm_.size(); ++r)
        std::copy_n(plane_.data() + slabs_[r].lo * k_, slabs_[r].size() * k_, blocks + row_by_x(r, x));
    }
    exchange(blocks, by_y_.data());
    for (long y = 0; y < mine_.size(); ++y) {
      for (long x = 0; x < n_; ++x) std::copy_n(by_y_.data() + (x * mine_.size() + y) * k_, k_, plane_.data() + x * k_);
      fftw_execute(forward_x_.get());
      std::copy_n(plane_.data(), n_ * k_, out + y * n_ * k_);
    }
  }

  /// `filter(k_x, k_y, row)` changes a copy of each row of k_z (indices 0..width-1, not signed), then
  /// `take(x, plane)` receives the cells of each plane. Collective.
  template <class Filter, class Take> void backward(const Complex* in, Filter&& filter, Take&& take) {
    for (long y = 0; y < mine_.size(); ++y) {
      std::copy_n(in + y * n_ * k_, n_ * k_, plane_.data());
      for (long x = 0; x < n_; ++x) filter(x, mine_.lo + y, plane_.data() + x * k_);
      fftw_execute(backward_x_.get());
      for (long x = 0; x < n_; ++x) std::copy_n(plane_.data() + x * k_, k_, by_y_.data() + (x * mine_.size() + y) * k_);
    }
    Complex* const blocks = by_x();
    exchange(by_y_.data(), blocks);
    for (long x = mine_.lo; x < mine_.hi; ++x) {
      for (int r = 0; r < comm_.size(); ++r)
        std::copy_n(blocks + row_by_x(r, x), slabs_[r].size() * k_, plane_.data() + slabs_[r].lo * k_);
      fftw_execute(to_real_.get());
      take(x, static_cast<const double*>(cells_.data()));
    }
  }

private:
  // In between, a slab lies either as [x][my k_y][k_z] or in blocks, one for each rank r, of [my x][k_y of r][k_z].
  // The part shared with rank r has the same place and size in both; on one rank the two are the same memory.
  Complex* by_x() { return comm_.size() > 1 ? by_x_.data() : by_y_.data(); }
  long block(int r) const { return mine_.size() * slabs_[r].lo * k_; }
  long row_by_x(int r, long x) const { return block(r) + (x - mine_.lo) * slabs_[r].size() * k_; }

  void exchange(const Complex* from, Complex* to) const {
    if (comm_.size() == 1) return;
    std::vector<tessera::Request> pending;
    for (int step = 0; step < comm_.size(); ++step) {
      const int r = (comm_.rank() + step) % comm_.size();
      const long count = mine_.size() * slabs_[r].size() * k_;
      if (step == 0)
        std::copy_n(from + block(r), count, to + block(r));
      else if (count > 0) {
        pending.push_back(comm_.irecv(r, tag, std::span(to + block(r), detail::to_size(count))));
        pending.push_back(comm_.isend(r, tag, std::span(from + block(r), detail::to_size(count))));
      }
    }
    for (auto& p : pending) p.wait();
  }

  static constexpr int tag = 101;
  Communicator comm_;
  long n_, k_;
  Partition slabs_;
  Interval mine_;
  Buffer<Complex> plane_;
  Buffer<double> cells_;
  Buffer<Complex> by_y_, by_x_;
  detail::Plan to_real_, from_real_, backward_x_, forward_x_;
};

/// One universe at a time, in slabs over the ranks of `comm`; the memory and the plans are reused for the next one.
/// All functions are collective. The order is: a density, its displacements, the counts.
class Universe {
public:
  static constexpr long smallest = 8, largest = 1024;

  /// usage_error unless `width` is even and within smallest..largest.
  static void check_width(long width) {
    TESSERA_REQUIRE(width >= smallest && width <= largest && width % 2 == 0, "universe: a width of ", width,
                    " cells; give an even number from ", smallest, " to ", largest);
  }
  /// Memory of one universe, over all ranks that share it.
  static double bytes(long width) {
    constexpr double per_cell = 8 /* spectrum */ + 16 /* exchange */ + 16 /* source */ + 24 /* displacements */ +
                                8 /* counts */ + 8 /* leaving particles */;
    return per_cell * static_cast<double>(width * width * width);
  }

  Universe(Communicator comm, long width)
      : fft_((check_width(width), std::move(comm)), width), n_(width), spectrum_(fft_.spectrum_size()) {
    const auto cells = detail::to_size(fft_.mine().size() * n_ * n_);
    for (auto& order : displacement_)
      for (auto& axis : order) axis = Buffer<float>(cells);
    trace_ = Buffer<double>(cells);
    source_ = Buffer<double>(cells);
    counts_ = Buffer<std::int16_t>(cells * redshifts.size());
    for (int r = 0; r < fft_.comm().size(); ++r)
      owner_.insert(owner_.end(), detail::to_size(fft_.slabs()[r].size()), r);
  }

  long width() const { return n_; }
  /// The planes of constant x that this rank owns.
  Interval planes() const { return fft_.mine(); }
  const Partition& slabs() const { return fft_.slabs(); }

  /// The linear overdensity today: white noise of (seed, index, global cell), coloured with `power`. `cell` in Mpc/h.
  void draw_density(const LinearPower& power, double cell, std::uint64_t seed, std::uint32_t index) {
    const PhiloxKey key = sequence(seed, index, Purpose::noise);
    set_density([&](long x, double* plane) {
      const auto pairs = static_cast<std::uint64_t>(n_ * n_ / 2);
      for (std::uint64_t i = 0; i < pairs; ++i) {
        const auto two = white_noise(key, static_cast<std::uint64_t>(x) * pairs + i);
        plane[2 * i] = two[0];
        plane[2 * i + 1] = two[1];
      }
    });
    // |k|^2 takes few values: (2 pi / L)^2 times a whole number.
    std::vector<double> amplitude(detail::to_size(3 * (n_ / 2) * (n_ / 2) + 1));
    const double unit = 2 * std::numbers::pi / (static_cast<double>(n_) * cell);
    for (std::size_t m = 1; m < amplitude.size(); ++m)
      amplitude[m] = std::sqrt(power(unit * std::sqrt(static_cast<double>(m))) / (cell * cell * cell));
    for (long y = 0; y < planes().size(); ++y)
      for (long x = 0; x < n_; ++x) {
        const long base = square(x) + square(planes().lo + y);
        Complex* row = spectrum_.data() + (y * n_ + x) * (n_ / 2 + 1);
        for (long z = 0; z <= n_ / 2; ++z) row[z] *= amplitude[detail::to_size(base + z * z)];
      }
  }

  /// A density given by `fill(x, plane)`, which writes the cells [y][z] of each own plane.
  template <class Fill> void set_density(Fill&& fill) {
    fft_.forward(std::forward<Fill>(fill), spectrum_.data());
    const double scale = 1 / static_cast<double>(n_ * n_ * n_);
    for (std::size_t i = 0; i < spectrum_.size(); ++i) spectrum_.data()[i] *= scale;
  }

  /// Hands the density to `take(x, plane)`. Before displace(), which uses up its memory.
  template <class Take> void density(Take&& take) {
    fft_.backward(
        spectrum_.data(), [](long, long, Complex*) {}, std::forward<Take>(take));
  }

  /// Second-order Lagrangian perturbation theory: a particle starts at the centre q of a cell and goes to
  /// q + D psi1 + D2 psi2 with psi1 = -grad phi1, lap phi1 = density; psi2 = grad phi2, lap phi2 = the sum over
  /// i < j of phi1,ii phi1,jj - phi1,ij^2. In units of one cell.
  void displace() {
    const double* given = trace_.data();
    hessian(0, 0, [this](long at, const double* p) { std::copy_n(p, n_ * n_, trace_.data() + at); });
    hessian(1, 1, [this, given](long at, const double* p) {
      for (long i = 0; i < n_ * n_; ++i) {
        source_.data()[at + i] = given[at + i] * p[i];
        trace_.data()[at + i] += p[i];
      }
    });
    hessian(2, 2, [this, given](long at, const double* p) {
      for (long i = 0; i < n_ * n_; ++i) source_.data()[at + i] += given[at + i] * p[i];
    });
    for (const auto& [a, b] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}})
      hessian(a, b, [this](long at, const double* p) {
        for (long i = 0; i < n_ * n_; ++i) source_.data()[at + i] -= p[i] * p[i];
      });
    for (int axis = 0; axis < 3; ++axis) gradient(axis, +1, displacement_[0][detail::to_size(axis)]);
    set_density([this](long x, double* plane) { std::copy_n(source_.data() + offset(x), n_ * n_, plane); });
    for (int axis = 0; axis < 3; ++axis) gradient(axis, -1, displacement_[1][detail::to_size(axis)]);
  }

  /// psi1 (order 1) or psi2 (order 2) along x, y or z (axis 0, 1, 2) on the own planes, in cells.
  std::span<const float> displacement(int order, int axis) const {
    const auto& b = displacement_[detail::to_size(order - 1)][detail::to_size(axis)];
    return {b.data(), b.size()};
  }

  /// Particles in each cell, nearest grid point, at the four redshifts: [own x][y][z][redshift].
  /// usage_error on every rank if a cell holds more than `most`.
  std::span<const std::int16_t> count(double omega_m, std::int16_t most = std::numeric_limits<std::int16_t>::max()) {
    std::fill_n(counts_.data(), counts_.size(), std::int16_t{0});
    bool full = false;
    for (std::size_t channel = 0; channel < redshifts.size(); ++channel)
      full |= deposit(channel, growth(omega_m, redshifts[channel]), second_growth(omega_m, redshifts[channel]), most);
    TESSERA_REQUIRE(fft_.comm().all_reduce(full ? 1 : 0, tessera::comm::Reduce::max) == 0,
                    "universe: a cell holds more than ", most, " particles; use a smaller width or larger cells");
    return {counts_.data(), counts_.size()};
  }

private:
  long offset(long x) const { return (x - planes().lo) * n_ * n_; }
  /// The signed wave number of index i; the Nyquist one counts as positive.
  long wave(long i) const { return i <= n_ / 2 ? i : i - n_; }
  long square(long i) const { return wave(i) * wave(i); }
  /// The same for odd derivatives, of which the Nyquist wave has none on this grid.
  double odd(long i) const { return i == n_ / 2 ? 0.0 : static_cast<double>(wave(i)); }

  /// The second derivative of the potential along axes a and b: filter k_a k_b / k^2.
  template <class Take> void hessian(int a, int b, Take&& take) {
    fft_.backward(
        spectrum_.data(),
        [this, a, b](long x, long y, Complex* row) {
          // Whatever does not run along z is one factor for the whole row.
          double factor = 1;
          for (int axis : {a, b})
            if (axis < 2) factor *= a == b ? static_cast<double>(wave(axis == 0 ? x : y)) : odd(axis == 0 ? x : y);
          const int powers_of_z = (a == 2 ? 1 : 0) + (b == 2 ? 1 : 0);
          over_k2(
              x, y,
              [=, this](long z) {
                const double kz = powers_of_z == 2 ? static_cast<double>(z * z) : powers_of_z == 1 ? odd(z) : 1.0;
                return factor * kz;
              },
              [row](long z, double f) {
                row[z] = {f * row[z].real(), f * row[z].imag()};
              });
        },
        [&](long x, const double* plane) { take(offset(x), plane); });
  }

  /// `sign` times minus the gradient of the potential whose Laplacian the spectrum is: filter i k_a / k^2, in cells.
  void gradient(int axis, int sign, Buffer<float>& out) {
    const double scale = sign * static_cast<double>(n_) / (2 * std::numbers::pi);
    fft_.backward(
        spectrum_.data(),
        [this, axis, scale](long x, long y, Complex* row) {
          const double factor = axis == 2 ? scale : scale * odd(axis == 0 ? x : y);
          over_k2(
              x, y, [=, this](long z) { return axis == 2 ? factor * odd(z) : factor; },
              [row](long z, double f) {
                row[z] = {-f * row[z].imag(), f * row[z].real()};
              });
        },
        [&](long x, const double* plane) {
          float* to = out.data() + offset(x);
          for (long i = 0; i < n_ * n_; ++i) to[i] = static_cast<float>(plane[i]);
        });
  }

  /// Calls `apply(z, weight(z) / k^2)` along a row; the mean of the field, k = 0, gets 0.
  template <class Weight, class Apply> void over_k2(long x, long y, Weight&& weight, Apply&& apply) const {
    const auto base = square(x) + square(y);
    apply(0, base == 0 ? 0.0 : weight(0) / static_cast<double>(base));
    for (long z = 1; z <= n_ / 2; ++z) apply(z, weight(z) / static_cast<double>(base + z * z));
  }

  long wrapped(double position) const {
    long i = static_cast<long>(std::floor(position));
    if (i < 0)
      i += n_;
    else if (i >= n_)
      i -= n_;
    if (i < 0 || i >= n_) [[unlikely]]
      i = (i % n_ + n_) % n_;
    return i;
  }

  /// Adds the particles of one redshift; true if a cell overflowed.
  bool deposit(std::size_t channel, double d1, double d2, std::int16_t most) {
    bool full = false;
    auto add = [&](long cell) {
      std::int16_t& c = counts_.data()[detail::to_size(cell) * redshifts.size() + channel];
      if (c == most)
        full = true;
      else
        ++c;
    };
    std::vector<std::vector<std::uint32_t>> leaving(detail::to_size(fft_.comm().size()));
    const auto &first = displacement_[0], &second = displacement_[1];
    long i = 0;
    for (long x = planes().lo; x < planes().hi; ++x)
      for (long y = 0; y < n_; ++y)
        for (long z = 0; z < n_; ++z, ++i) {
          auto moved = [&](long q, std::size_t axis) {
            return wrapped(static_cast<double>(q) + 0.5 + d1 * static_cast<double>(first[axis].data()[i]) +
                           d2 * static_cast<double>(second[axis].data()[i]));
          };
          const long to = moved(x, 0), in_plane = moved(y, 1) * n_ + moved(z, 2);
          if (to >= planes().lo && to < planes().hi)
            add(offset(to) + in_plane);
          else {
            const int r = owner_[detail::to_size(to)];
            leaving[detail::to_size(r)].push_back(
                static_cast<std::uint32_t>((to - fft_.slabs()[r].lo) * n_ * n_ + in_plane));
          }
        }
    for (const auto& arrived : deliver(leaving))
      for (const std::uint32_t cell : arrived) add(cell);
    return full;
  }

  /// Sends list r to rank r; returns what the others sent here.
  std::vector<std::vector<std::uint32_t>> deliver(const std::vector<std::vector<std::uint32_t>>& leaving) const {
    const auto& comm = fft_.comm();
    const auto ranks = leaving.size(), me = detail::to_size(comm.rank());
    std::vector<std::vector<std::uint32_t>> arrived(ranks);
    if (ranks == 1) return arrived;
    std::vector<std::uint64_t> sizes(ranks);
    for (std::size_t r = 0; r < ranks; ++r) sizes[r] = leaving[r].size();
    const auto all = comm.all_gather(std::span<const std::uint64_t>(sizes));
    std::vector<tessera::Request> pending;
    for (std::size_t r = 0; r < ranks; ++r) {
      const int peer = static_cast<int>(r);
      arrived[r].resize(static_cast<std::size_t>(all[r][me]));
      if (!arrived[r].empty()) pending.push_back(comm.irecv(peer, tag, std::span(arrived[r])));
      if (!leaving[r].empty()) pending.push_back(comm.isend(peer, tag, std::span(leaving[r])));
    }
    for (auto& p : pending) p.wait();
    return arrived;
  }

  static constexpr int tag = 102;
  SlabFft fft_;
  long n_;
  Buffer<Complex> spectrum_;
  Buffer<double> trace_, source_;
  std::array<std::array<Buffer<float>, 3>, 2> displacement_; // [order - 1][axis]
  Buffer<std::int16_t> counts_;
  std::vector<int> owner_; // of each plane
};

} // namespace cosmology
