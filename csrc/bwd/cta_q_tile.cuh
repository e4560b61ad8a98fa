// Which Q tile of which query head a CTA of the preprocess and postprocess grids stands for. With
// packed sequences some CTAs stand for none: first_padded_tile leaves gaps.
#pragma once

#include "bwd/traits.cuh"

namespace dash::bwd {

struct CtaQTile {
  int m_block;
  int num_rows;  // valid ones, of the tile's; 0 or less: none
  int bidh;      // query head
  int bidb;      // packed: 0
  Sequence sequence;
};

// Q tiles of one query head in the workspace: those of a (batch, seqlen) problem's one sequence, or
// of all packed ones.
template <class Traits>
CUTE_HOST_DEVICE int q_tiles_of_a_head(BwdParams const& params) {
  return Traits::is_packed(params)
             ? num_padded_tiles(params.packed.total_q, params.grid.batch, Traits::kBlockM)
             : Traits::grid(params).num_m_blocks();
}

// The last sequence whose tiles start at or before `tile`; 0 if none does. Whole warps call it: a
// round asks 32 places at once.
template <class Traits>
CUTE_DEVICE int sequence_of_q_tile(BwdParams const& params, int tile) {
  int const lane = threadIdx.x % 32;
  int low = 0;
  int high = params.grid.batch;
  while (high - low > 1) {
    int const stride = (high - low - 1) / 32 + 1;
    int const bidb = low + lane * stride;
    // Starts ascend with bidb, so that the lanes for which this holds are the first ones.
    bool const starts_before =
        bidb < high && first_padded_tile(query_rows(params.packed, bidb).offset, bidb,
                                         Traits::kBlockM) <= tile;
    int const count = __popc(__ballot_sync(0xffffffffu, starts_before));
    low += max(count - 1, 0) * stride;
    high = min(high, low + stride);
  }
  return low;
}

template <class Traits>
CUTE_DEVICE CtaQTile cta_q_tile(BwdParams const& params) {
  int const tiles = q_tiles_of_a_head<Traits>(params);
  int const tile = blockIdx.x % tiles;
  int const list = blockIdx.x / tiles;
  if (Traits::is_packed(params)) {
    int const bidb = sequence_of_q_tile<Traits>(params, tile);
    Sequence const sequence = sequence_of(params.packed, bidb);
    int const m_block = tile - first_padded_tile(sequence.offset_q, bidb, Traits::kBlockM);
    int const num_rows = m_block < 0 ? 0 : sequence.seqlen_q - m_block * Traits::kBlockM;
    return {m_block, num_rows, list, 0, sequence};
  }
  Sequence const sequence = {params.grid.seqlen_q, params.grid.seqlen_k, 0, 0};
  return {tile, sequence.seqlen_q - tile * Traits::kBlockM, list % params.num_heads,
          list / params.num_heads, sequence};
}

// Row 0 of the tile in a tensor like q or o.
template <class Traits, class Element>
CUTE_DEVICE Element* first_row_of(CtaQTile const& tile, Element* tensor, Strides const& strides) {
  int64_t const row = int64_t{tile.sequence.offset_q} + int64_t{tile.m_block} * Traits::kBlockM;
  return tensor + tile.bidb * strides.batch + tile.bidh * strides.head + row * strides.row;
}

}  // namespace dash::bwd
