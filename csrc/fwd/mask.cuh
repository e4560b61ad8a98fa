// Masks one 64 x BLK_N accumulator tile of scores, in registers of an MMA warpgroup.
// Invariant: a masked score is exactly -inf, so its probability is exactly 0 whatever the LSE.
#pragma once

#include "common/layout.cuh"
#include "common/softmax.cuh"
#include "fwd/traits.cuh"

namespace dash::fwd {

// KV tiles 0 .. n - 1 that every row of the Q tile sees whole.
template <class Traits>
CUTE_DEVICE int num_unmasked_n_blocks(schedule::TileGrid const& grid, int m_block) {
  int const keys_all_rows_see = m_block * Traits::kBlockM + grid.diagonal() + 1;
  return schedule::max_int(keys_all_rows_see, 0) / Traits::kBlockN;
}

// `first_row` is the query row of the warpgroup's row 0, in rows of the sequence.
template <class Traits, class TensorS>
CUTE_DEVICE void mask_scores(schedule::TileGrid const& grid, int first_row, int n_block,
                             TensorS& tSrS) {
  int const thread = threadIdx.x % 128;
  int const first_column = n_block * Traits::kBlockN + accumulator_column(thread, 0);
  int last_visible[2];  // in columns counted from the thread's first
  CUTE_UNROLL
  for (int row = 0; row < 2; ++row) {
    int last_key = grid.seqlen_k - 1;
    if constexpr (Traits::kMask == MaskKind::kCausal) {
      int const query = first_row + accumulator_row(thread, 2 * row);
      last_key = schedule::min_int(last_key, query + grid.diagonal());
    }
    last_visible[row] = last_key - first_column;
  }
  CUTE_UNROLL
  for (int i = 0; i < decltype(size(tSrS))::value; ++i) {
    int const column = 8 * (i / 4) + i % 2;
    if (column > last_visible[accumulator_row_index(i)]) {
      tSrS(i) = -INFINITY;
    }
  }
}

}  // namespace dash::fwd
