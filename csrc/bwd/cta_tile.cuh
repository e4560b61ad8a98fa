// Which tile of which head a CTA of the kernels before and after the main one stands for: a Q tile
// of a query head, or a KV tile of a KV head. With packed sequences some CTAs stand for none:
// first_padded_tile leaves gaps.
#pragma once

#include "bwd/traits.cuh"
#include "common/sequence.hpp"

namespace dash::bwd {

struct CtaTile {
  int index;     // of all tiles of the grid
  int block;     // of its sequence
  int num_rows;  // valid ones, of the tile's; 0 or less: none
  int bidh;      // query head or KV head
  int bidb;      // packed: 0
  Sequence sequence;
};

template <class Traits, TilesOf kOf>
inline constexpr int kBlockOf = kOf == TilesOf::kQueries ? Traits::kBlockM : Traits::kBlockN;

// Tiles of one head in the workspace: those of a (batch, seqlen) problem's one sequence, or of all
// packed ones.
template <class Traits, TilesOf kOf>
CUTE_HOST_DEVICE int tiles_of_a_head(BwdParams const& params) {
  if (Traits::is_packed(params)) {
    int const total =
        kOf == TilesOf::kQueries ? params.packed.total_q : params.packed.total_k;
    return num_padded_tiles(total, params.grid.batch, kBlockOf<Traits, kOf>);
  }
  return kOf == TilesOf::kQueries ? Traits::grid(params).num_m_blocks()
                                  : Traits::grid(params).num_n_blocks();
}

template <class Traits, TilesOf kOf>
CUTE_HOST_DEVICE int num_cta_tiles(BwdParams const& params) {
  int const num_heads = kOf == TilesOf::kQueries ? params.num_heads : params.num_heads_k;
  int const batch = Traits::is_packed(params) ? 1 : params.grid.batch;
  return batch * num_heads * tiles_of_a_head<Traits, kOf>(params);
}

// The last sequence whose tiles start at or before `tile`; 0 if none does. Whole warps call it: a
// round asks 32 places at once.
template <class Traits, TilesOf kOf>
CUTE_DEVICE int sequence_of_tile(BwdParams const& params, int tile) {
  int const lane = threadIdx.x % 32;
  int low = 0;
  int high = params.grid.batch;
  auto const first_tile = [&](int bidb) {
    SequenceRows const rows = kOf == TilesOf::kQueries ? query_rows(params.packed, bidb)
                                                       : key_rows(params.packed, bidb);
    return first_padded_tile(rows.offset, bidb, kBlockOf<Traits, kOf>);
  };
  while (high - low > 1) {
    int const stride = (high - low - 1) / 32 + 1;
    int const bidb = low + lane * stride;
    // Starts ascend with bidb, so that the lanes for which this holds are the first ones.
    bool const starts_before = bidb < high && first_tile(bidb) <= tile;
    int const count = __popc(__ballot_sync(0xffffffffu, starts_before));
    low += max(count - 1, 0) * stride;
    high = min(high, low + stride);
  }
  return low;
}

template <class Traits, TilesOf kOf>
CUTE_DEVICE CtaTile cta_tile(BwdParams const& params) {
  constexpr int kBlock = kBlockOf<Traits, kOf>;
  // Tuning: the last tiles first. What the kernel before this one wrote last may still lie in L2,
  // and so may what this one leaves there for the beginning of the next: 2 us of the postprocess
  // kernel's 49 at 16,384 tokens by 2,048 hidden (H200).
  int const index = gridDim.x - 1 - blockIdx.x;
  int const tiles = tiles_of_a_head<Traits, kOf>(params);
  int const tile = index % tiles;
  int const list = index / tiles;
  auto const rows_after = [](Sequence const& sequence, int block) {
    int const length = kOf == TilesOf::kQueries ? sequence.seqlen_q : sequence.seqlen_k;
    return length - block * kBlock;
  };
  if (Traits::is_packed(params)) {
    int const bidb = sequence_of_tile<Traits, kOf>(params, tile);
    Sequence const sequence = sequence_of(params.packed, bidb);
    int const offset = kOf == TilesOf::kQueries ? sequence.offset_q : sequence.offset_k;
    int const block = tile - first_padded_tile(offset, bidb, kBlock);
    return {index, block, block < 0 ? 0 : rows_after(sequence, block), list, 0, sequence};
  }
  Sequence const sequence = {params.grid.seqlen_q, params.grid.seqlen_k, 0, 0};
  int const num_heads = kOf == TilesOf::kQueries ? params.num_heads : params.num_heads_k;
  return {index, tile, rows_after(sequence, tile), list % num_heads, list / num_heads, sequence};
}

// Row 0 of the tile in a tensor like q and o, or like k and v.
template <class Traits, TilesOf kOf, class Element>
CUTE_DEVICE Element* first_row_of(CtaTile const& tile, Element* tensor, Strides const& strides) {
  int const offset =
      kOf == TilesOf::kQueries ? tile.sequence.offset_q : tile.sequence.offset_k;
  int64_t const row = int64_t{offset} + int64_t{tile.block} * kBlockOf<Traits, kOf>;
  return tensor + tile.bidb * strides.batch + tile.bidh * strides.head + row * strides.row;
}

}  // namespace dash::bwd
