// Sweep: the order in which a work tile visits its Q tiles, as four numbers that a policy works out
// once for a work tile. Tuning: a step then asks no policy and divides by nothing. The kernel asks
// where its load lane is short of time: a policy's one division a step had cost 1 to 4 %.
// Invariant: the first `rotated` steps go on from `first`, in one direction, from the last Q tile
// of all back to the one `rotated` before its successor; the others go up from `rest`.
#pragma once

#include <limits>

#include "schedule/tile_grid.hpp"

namespace dash::schedule {

struct Sweep {
  int first;
  int direction;  // 1 or -1
  int rotated;
  int rest;
};

DASH_HOST_DEVICE constexpr Sweep sweep_up(int first) {
  return {.first = first, .direction = 1, .rotated = std::numeric_limits<int>::max(), .rest = 0};
}
DASH_HOST_DEVICE constexpr Sweep sweep_down(int first) {
  return {.first = first, .direction = -1, .rotated = std::numeric_limits<int>::max(), .rest = 0};
}
// Up from `first`, round all Q tiles.
DASH_HOST_DEVICE constexpr Sweep sweep_round(int first, int num_m_blocks) {
  return {.first = first, .direction = 1, .rotated = num_m_blocks, .rest = 0};
}

DASH_HOST_DEVICE constexpr int m_block_of(Sweep const& sweep, int num_m_blocks, int step) {
  if (step >= sweep.rotated) {
    return sweep.rest + step - sweep.rotated;
  }
  int const m_block = sweep.first + sweep.direction * step;
  return m_block < num_m_blocks ? m_block : m_block - sweep.rotated;
}

}  // namespace dash::schedule
