// Which tile of which head an index of the workspace stands for: a Q tile of a query head, or a KV
// tile of a KV head. With packed sequences some indices stand for none: first_padded_tile leaves
// gaps. The kernels before and after the main one have a CTA for each.
#pragma once

#include "bwd/traits.cuh"
#include "common/sequence.hpp"

namespace dash::bwd {

// What is counted: Q tiles of query heads.
template <class Traits_>
struct QuerySide {
  using Traits = Traits_;
  static constexpr int kBlock = Traits::kBlockM;

  CUTE_HOST_DEVICE static int num_heads(BwdParams const& params) { return params.num_heads; }
  CUTE_HOST_DEVICE static int seqlen(schedule::TileGrid const& grid) { return grid.seqlen_q; }
  CUTE_HOST_DEVICE static int total(PackedSequences const& packed) { return packed.total_q; }
  CUTE_DEVICE static SequenceRows rows(PackedSequences const& packed, int bidb) {
    return query_rows(packed, bidb);
  }
  CUTE_DEVICE static SequenceRows rows(Sequence const& sequence) {
    return {sequence.offset_q, sequence.seqlen_q};
  }
};

// What is counted: KV tiles of KV heads.
template <class Traits_>
struct KeySide {
  using Traits = Traits_;
  static constexpr int kBlock = Traits::kBlockN;

  CUTE_HOST_DEVICE static int num_heads(BwdParams const& params) { return params.num_heads_k; }
  CUTE_HOST_DEVICE static int seqlen(schedule::TileGrid const& grid) { return grid.seqlen_k; }
  CUTE_HOST_DEVICE static int total(PackedSequences const& packed) { return packed.total_k; }
  CUTE_DEVICE static SequenceRows rows(PackedSequences const& packed, int bidb) {
    return key_rows(packed, bidb);
  }
  CUTE_DEVICE static SequenceRows rows(Sequence const& sequence) {
    return {sequence.offset_k, sequence.seqlen_k};
  }
};

// Tiles of one head in the workspace: those of a (batch, seqlen) problem's one sequence, or of all
// packed ones.
template <class Side>
CUTE_HOST_DEVICE int tiles_of_a_head(BwdParams const& params) {
  using Traits = typename Side::Traits;
  return Traits::is_packed(params)
             ? num_padded_tiles(Side::total(params.packed), params.grid.batch, Side::kBlock)
             : schedule::ceil_div(Side::seqlen(params.grid), Side::kBlock);
}

template <class Side>
CUTE_HOST_DEVICE int num_tiles_of(BwdParams const& params) {
  int const batch = Side::Traits::is_packed(params) ? 1 : params.grid.batch;
  return batch * Side::num_heads(params) * tiles_of_a_head<Side>(params);
}

struct CtaTile {
  int index;     // of all tiles in the workspace
  int block;     // of its sequence
  int num_rows;  // valid ones, of the tile's; 0 or less: none
  int bidh;      // query head or KV head
  int bidb;      // packed: 0
  Sequence sequence;
};

// The last sequence whose tiles start at or before `tile`; 0 if none does. Whole warps call it: a
// round asks 32 places at once.
template <class Side>
CUTE_DEVICE int sequence_of_tile(BwdParams const& params, int tile) {
  int const lane = threadIdx.x % 32;
  int low = 0;
  int high = params.grid.batch;
  while (high - low > 1) {
    int const stride = (high - low - 1) / 32 + 1;
    int const bidb = low + lane * stride;
    // Starts ascend with bidb, so that the lanes for which this holds are the first ones.
    bool const starts_before =
        bidb < high && first_padded_tile(Side::rows(params.packed, bidb).offset, bidb,
                                         Side::kBlock) <= tile;
    int const count = __popc(__ballot_sync(0xffffffffu, starts_before));
    low += max(count - 1, 0) * stride;
    high = min(high, low + stride);
  }
  return low;
}

// Whole warps call it.
template <class Side>
CUTE_DEVICE CtaTile tile_at(BwdParams const& params, int index) {
  int const tiles = tiles_of_a_head<Side>(params);
  int const list = index / tiles;
  int const tile = index - list * tiles;
  if (Side::Traits::is_packed(params)) {
    int const bidb = sequence_of_tile<Side>(params, tile);
    Sequence const sequence = sequence_of(params.packed, bidb);
    SequenceRows const rows = Side::rows(sequence);
    int const block = tile - first_padded_tile(rows.offset, bidb, Side::kBlock);
    int const num_rows = block < 0 ? 0 : rows.length - block * Side::kBlock;
    return {index, block, num_rows, list, 0, sequence};
  }
  Sequence const sequence = {params.grid.seqlen_q, params.grid.seqlen_k, 0, 0};
  int const bidb = list / Side::num_heads(params);
  return {index, tile, Side::rows(sequence).length - tile * Side::kBlock,
          list - bidb * Side::num_heads(params), bidb, sequence};
}

// Tuning: the last tiles first. What the kernel before this one wrote last may still lie in L2, and
// so may what this one leaves there for the beginning of the next: 2 us of the postprocess kernel's
// 49 at 16,384 tokens by 2,048 hidden (H200).
CUTE_DEVICE int index_of_cta() { return gridDim.x - 1 - blockIdx.x; }

template <class Side>
CUTE_DEVICE CtaTile cta_tile(BwdParams const& params) {
  return tile_at<Side>(params, index_of_cta());
}

// Row 0 of the tile in a tensor like q and o, or like k and v.
template <class Side, class Element>
CUTE_DEVICE Element* first_row_of(CtaTile const& tile, Element* tensor, Strides const& strides) {
  int64_t const row =
      int64_t{Side::rows(tile.sequence).offset} + int64_t{tile.block} * Side::kBlock;
  return tensor + tile.bidb * strides.batch + tile.bidh * strides.head + row * strides.row;
}

}  // namespace dash::bwd
