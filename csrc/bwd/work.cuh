// What the load lane publishes: of a work tile which one, and where its sequence lies; of a Q tile
// which pairs are visible. In (batch, seqlen) kernels all sequences are alike: of a work tile only
// the tile and its sweep are written and read, and every role works out the rest.
// Tuning: published rather than worked out again, because the policies of all masks, with lengths
// that are not kernel arguments, spill in the MMA warps.
#pragma once

#include "common/sequence.hpp"
#include "schedule/sweep.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct Work {
  schedule::WorkTile tile;  // n_block < 0: no work is left. Packed: bidb is 0, offsets say where
  schedule::Sweep sweep;
  Sequence sequence;
  int first_q_tile;   // index of query head 0's first Q tile in the workspace, in tiles
  int num_steps;      // Q tiles of each query head
  int first_kv_tile;  // packed: index of the sequence's first KV tile in a list's dkv_parts
};

// Row r of S^T (a key) and column c (a query) are visible to each other iff
// c + first <= r < min(c + diagonal, num_keys), all relative to the tile. Kernels that know their
// mask don't read what it leaves out.
struct TileMask {
  int diagonal;
  int num_keys;
  bool is_needed;  // some pair is hidden
  int first;
};

template <class Traits>
DASH_HOST_DEVICE TileMask tile_mask(schedule::TileGrid const& grid, int m_block, int n_block) {
  int const num_keys = grid.seqlen_k - n_block * Traits::kBlockN;
  int const distance = m_block * Traits::kBlockM - n_block * Traits::kBlockN;
  if constexpr (Traits::kIsGeneral) {
    constexpr int kNoLimit = 1 << 30;
    int const diagonal =
        grid.mask == MaskKind::kFull ? kNoLimit : distance + grid.last_key_offset() + 1;
    int const first =
        grid.mask == MaskKind::kWindow ? distance + grid.first_key_offset() : -kNoLimit;
    bool const is_needed = num_keys < Traits::kBlockN || diagonal < Traits::kBlockN ||
                           first + Traits::kBlockM > 1;
    return {diagonal, num_keys, is_needed, first};
  } else if constexpr (Traits::kIsCausal) {
    int const diagonal = distance + grid.diagonal() + 1;
    return {diagonal, num_keys, num_keys < Traits::kBlockN || diagonal < Traits::kBlockN, 0};
  } else {
    return {0, num_keys, num_keys < Traits::kBlockN, 0};
  }
}

}  // namespace dash::bwd
