// expect(LAYOUT): a model needs static constexpr members input \(Input\), layout \(place\(...\)\) and net \(seq\(...\)\)
// expect(GRID): the model's layout places another number of axes than the grid has; give place\(...\) one placement per grid axis
// expect(PERIODIC): periodic padding is wider than the input; use at most one period
// expect(REFLECT): reflecting padding is not narrower than the input; use at most size - 1, or Padding::replicate
// expect(UNKNOWN): a user layer without its type; name it in seq\(...\)
#include <tessera/backend/reference.hpp>
#include <tessera/net/network.hpp>
using namespace tessera;
using namespace tessera::names;

struct Model {
  static constexpr Input input = {.c = 1, .d = 8, .h = 8, .w = 8};
#if !defined(LAYOUT)
  static constexpr Layout layout = place(n, d);
#endif
#if defined(PERIODIC)
  static constexpr auto net = seq(conv(2, window(3).pad(9).periodic()));
#elif defined(REFLECT)
  static constexpr auto net = seq(conv(2, window(3).pad(8).padded_with(Padding::reflect)));
#elif defined(UNKNOWN)
  static constexpr auto net = seq(LayerSpec{.kind = LayerKind::user});
#else
  static constexpr auto net = seq(conv(2), relu());
#endif
};

#if defined(GRID)
using GridOfModel = Grid<3>;
#else
using GridOfModel = Grid<2>;
#endif
long use(const GridOfModel& grid) { return Network<Model, float, reference>(grid).parameter_count; }
