// train/checkpoint.hpp: saving a trainer and resuming it, on any grid: parameters, moments, step count, your own
// numbers.
//
// Arrays are stored in logical order (co,ci,kd,kh,kw) under the names of the parameters, so other programs can read
// them. Parameters are replicated, so rank 0 writes; the file is complete or the previous one stays.
//
// May know: base to tensor, layer, net, train, io.
// Example: save(trainer, "model.h5", {{"epoch", std::int64_t{3}}});   auto numbers = resume(trainer, "model.h5");
#pragma once

#include <tessera/io/checkpoint_file.hpp>
#include <tessera/train/trainer.hpp>

namespace tessera {

namespace detail {
inline std::vector<long> shape_of(const ParameterInfo& p) {
  if (p.bias) return {p.extents[0]};
  return {p.extents.v, p.extents.v + 5};
}
/// Logical row-major values of one parameter that is stored channels-last, and back.
template <class T> std::vector<T> to_logical(const ParameterInfo& p, const T* stored) {
  std::vector<T> v;
  v.reserve(p.count);
  const View<const T, 5> view(stored, p.extents);
  for_each_index(whole(p.extents), [&](const Index<5>& i) { v.push_back(view[i]); });
  return v;
}
template <class T> void from_logical(const ParameterInfo& p, const std::vector<T>& v, T* stored) {
  const View<T, 5> view(stored, p.extents);
  std::size_t k = 0;
  for_each_index(whole(p.extents), [&](const Index<5>& i) { view[i] = v[k++]; });
}
/// Calls f(array name, parameter, values) for the parameters, their moments and the running statistics of a trainer;
/// the values lie in the memory of its backend.
template <class Trainer, class F> void for_each_array(Trainer& t, F&& f) {
  using Optimizer = std::remove_cvref_t<decltype(t.optimizer())>;
  for (const ParameterInfo& p : t.model().plan().parameters()) {
    f(text("parameters/", p.name), p, t.model().parameters().data() + p.offset);
    for (std::size_t m = 0; m < Optimizer::moments.size(); ++m)
      f(text(Optimizer::moments[m], "/", p.name), p, t.moment(m).data() + p.offset);
  }
  for (const ParameterInfo& p : t.model().plan().states())
    f(text("state/", p.name), p, t.model().state().data() + p.offset);
}
} // namespace detail

/// Writes the trainer's state and `numbers` to `path`. Collective. If it fails every rank throws the same io_error and
/// the file that was there is untouched.
template <class Trainer>
void save(Trainer& trainer, const std::string& path, const std::map<std::string, io::Value>& numbers = {}) {
  using Space = typename Trainer::Net::Space;
  io::Checkpoint c;
  if (trainer.model().grid().rank() == 0) {
    c.scalars = numbers;
    c.scalars["optimizer"] = std::string(std::remove_cvref_t<decltype(trainer.optimizer())>::name);
    c.scalars["steps"] = static_cast<std::int64_t>(trainer.steps());
    detail::for_each_array(trainer, [&](const std::string& name, const ParameterInfo& p, auto* stored) {
      c.arrays[name] = {detail::shape_of(p), detail::to_logical(p, on_host<Space>(std::span(stored, p.count)).data())};
    });
  }
  io::save_checkpoint(trainer.model().grid().world(), path, c);
}

/// Loads what save() wrote into a trainer of the same network and optimizer, on whatever grid; returns the numbers.
/// Collective. Throws io_error, the same on every rank, naming what does not fit.
template <class Trainer> std::map<std::string, io::Value> resume(Trainer& trainer, const std::string& path) {
  using T = typename Trainer::T;
  io::Checkpoint c = io::load_checkpoint(trainer.model().grid().world(), path);
  std::map<std::string, std::vector<long>> expected;
  detail::for_each_array(
      trainer, [&](const std::string& name, const ParameterInfo& p, auto*) { expected[name] = detail::shape_of(p); });
  std::int64_t steps = 0;
  try {
    const std::string mine(std::remove_cvref_t<decltype(trainer.optimizer())>::name);
    if (const auto& theirs = c.template scalar<std::string>("optimizer"); theirs != mine)
      throw io_error(text("checkpoint: written by the optimizer ", theirs, ", this trainer uses ", mine,
                          "; resume with ", theirs));
    c.require(expected);
    steps = c.template scalar<std::int64_t>("steps");
  } catch (const io_error& e) { throw io_error(text(path, ": ", e.what())); }
  detail::for_each_array(trainer, [&](const std::string& name, const ParameterInfo& p, T* stored) {
    const auto values = on_host<typename Trainer::Net::Space>(std::span(stored, p.count));
    std::visit([&](const auto& v) { detail::from_logical(p, std::vector<T>(v.begin(), v.end()), values.data()); },
               c.arrays.at(name).values);
    values.store();
  });
  trainer.set_steps(static_cast<std::uint64_t>(steps));
  c.scalars.erase("optimizer");
  c.scalars.erase("steps");
  return c.scalars;
}

} // namespace tessera
