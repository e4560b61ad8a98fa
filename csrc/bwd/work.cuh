// What the load lane publishes of a work tile: which one, and where its sequence lies. In
// (batch, seqlen) kernels all sequences are alike, and only the tile is written and read.
#pragma once

#include "common/sequence.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct Work {
  schedule::WorkTile tile;  // n_block < 0: no work is left. Packed: bidb is 0, offsets say where
  Sequence sequence;
  int first_q_tile;  // index of query head 0's first Q tile in the workspace, in tiles
};

}  // namespace dash::bwd
