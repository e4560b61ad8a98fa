// sequence_grid: one sequence of a packed problem as a problem of its own, as policies see it.
// Invariant: but for section, it is the grid of the same sequence alone, so its order is the same.
#pragma once

#include "schedule/tile_grid.hpp"

namespace dash::schedule {

// `grid` holds what the sequences of a packed problem have in common; its batch and lengths are the
// number of sequences and the greatest lengths.
DASH_HOST_DEVICE constexpr TileGrid sequence_grid(TileGrid const& grid, int seqlen_q,
                                                  int seqlen_k) {
  TileGrid sequence = grid;
  sequence.seqlen_q = seqlen_q;
  sequence.seqlen_k = seqlen_k;
  sequence.batch = 1;
  sequence.section = min_int(grid.section, grid.num_heads);
  return sequence;
}

}  // namespace dash::schedule
