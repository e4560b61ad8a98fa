// Masks one 64 x BLK_N accumulator tile of scores, in registers of an MMA warpgroup; and which KV
// tiles of a Q tile need it.
// Invariant: a masked score is exactly -inf, so its probability is exactly 0 whatever the LSE.
#pragma once

#include "common/layout.cuh"
#include "common/softmax.cuh"
#include "common/tanh.cuh"
#include "fwd/traits.cuh"

namespace dash::fwd {

// Query i sees keys i + first .. i + last, as far as there are such keys.
struct VisibleKeys {
  int first;
  int last;
};

// Of a mask that is known at run time. Every limit that the mask does not have is one that no query
// reaches.
CUTE_DEVICE VisibleKeys visible_keys(schedule::TileGrid const& grid) {
  return {.first = grid.mask == MaskKind::kWindow ? grid.first_key_offset() : -grid.seqlen_q,
          .last = grid.mask == MaskKind::kFull ? grid.seqlen_k : grid.last_key_offset()};
}

// KV tiles that every row of a Q tile sees whole: begin .. end - 1. The last KV tile may end beyond
// seqlen_k and counts as one of them all the same.
// Correctness: of rows up to the sequence's end, so that a limit which hides nothing makes no tile
// a masked one. Those find their references in another way, and every kernel that may serve a
// sequence must give it the same bits.
struct UnmaskedTiles {
  int begin;
  int end;

  CUTE_DEVICE bool contains(int n_block) const { return begin <= n_block && n_block < end; }
};

template <class Traits>
CUTE_DEVICE UnmaskedTiles unmasked_tiles(schedule::TileGrid const& grid, int m_block) {
  int const first_row = m_block * Traits::kBlockM;
  VisibleKeys visible{.first = 0, .last = grid.diagonal()};
  int begin = 0;
  if constexpr (Traits::kIsGeneral) {
    visible = visible_keys(grid);
    int const last_row =
        schedule::min_int(first_row + Traits::kBlockM, grid.seqlen_q) - 1;
    int const first_key = last_row + visible.first;
    begin = schedule::ceil_div(schedule::max_int(first_key, 0), Traits::kBlockN);
  }
  int const keys_all_rows_see = first_row + visible.last + 1;
  return {.begin = begin, .end = schedule::max_int(keys_all_rows_see, 0) / Traits::kBlockN};
}

// The last KV tile that some row of a warpgroup's 64 sees, 0 if none does: rows past the sequence's
// end see none. `first_row` is the query row of the warpgroup's row 0, in rows of the sequence.
template <class Traits>
CUTE_DEVICE int last_seen_tile(schedule::TileGrid const& grid, int first_row) {
  int last_key = grid.seqlen_k - 1;
  if constexpr (Traits::kIsGeneral || Traits::kMask == MaskKind::kCausal) {
    int const last =
        Traits::kIsGeneral ? visible_keys(grid).last : grid.diagonal();
    last_key = schedule::min_int(last_key, first_row + Traits::kRowsPerWarpgroup - 1 + last);
  }
  return first_row < grid.seqlen_q ? schedule::max_int(last_key, 0) / Traits::kBlockN : 0;
}

// `first_row` as above.
template <class Traits, class TensorS>
CUTE_DEVICE void mask_scores(schedule::TileGrid const& grid, int first_row, int n_block,
                             TensorS& tSrS) {
  int const thread = threadIdx.x % 128;
  int const first_column = n_block * Traits::kBlockN + accumulator_column(thread, 0);
  int first_visible[2];  // in columns counted from the thread's first
  int last_visible[2];
  CUTE_UNROLL
  for (int row = 0; row < 2; ++row) {
    int const query = first_row + accumulator_row(thread, 2 * row);
    int last_key = grid.seqlen_k - 1;
    int first_key = 0;
    if constexpr (Traits::kIsGeneral) {
      VisibleKeys const visible = visible_keys(grid);
      first_key = query + visible.first;
      last_key = schedule::min_int(last_key, query + visible.last);
    } else if constexpr (Traits::kMask == MaskKind::kCausal) {
      last_key = schedule::min_int(last_key, query + grid.diagonal());
    }
    first_visible[row] = first_key - first_column;
    last_visible[row] = last_key - first_column;
  }
  CUTE_UNROLL
  for (int i = 0; i < decltype(size(tSrS))::value; ++i) {
    int const column = 8 * (i / 4) + i % 2;
    int const row = accumulator_row_index(i);
    bool const is_before = Traits::kIsGeneral && column < first_visible[row];
    if (is_before || column > last_visible[row]) {
      tSrS(i) = -INFINITY;
    }
  }
}

// Softcap: from scores to their tanh, which the softmax scales by softcap. Before the mask.
template <class Traits, class TensorS>
CUTE_DEVICE void cap_scores(FwdKernelArgs<Traits> const& args, TensorS& tSrS) {
  if constexpr (Traits::kIsGeneral) {
    if (args.params.softcap > 0.f) {
      CUTE_UNROLL
      for (int i = 0; i < decltype(size(tSrS))::value; ++i) {
        tSrS(i) = tanh_of_scaled(tSrS(i) * args.tanh_scale);
      }
    }
  }
}

}  // namespace dash::fwd
