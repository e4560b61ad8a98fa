// Stage 2d where query groups are cut into parts: dk and dv of a part's work tile from the
// accumulators to dkv_parts, fp32, in register order. Run by the MMA warpgroups; uses no shared
// memory. add_dkv_parts.cuh adds the parts.
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/traits.cuh"
#include "bwd/work.cuh"
#include "common/sequence.hpp"

namespace dash::bwd {

// Index of a work tile's KV tile in dkv_parts, in pairs of tiles.
template <class Traits>
CUTE_DEVICE int64_t dkv_part_index(BwdParams const& params, Work const& work) {
  schedule::TileGrid const grid = Traits::grid(params);
  if constexpr (!Traits::kIsDense) {
    if (Traits::is_packed(params)) {
      int const tiles = num_padded_tiles(params.packed.total_k, grid.batch, Traits::kBlockN);
      return int64_t{work.tile.bidh} * tiles + work.first_kv_tile + work.tile.n_block;
    }
  }
  return (int64_t{work.tile.bidb} * grid.num_heads + work.tile.bidh) * grid.num_n_blocks() +
         work.tile.n_block;
}

template <class Traits, class AccDkv>
CUTE_DEVICE void store_dkv_part(BwdParams const& params, Work const& work, AccDkv const& tdKrdK,
                                AccDkv const& tdVrdV) {
  constexpr int kFloats = Traits::kDkvFloatsPerThread;
  static_assert(decltype(size(tdKrdK))::value == kFloats);
  float* const tile =
      params.dkv_parts + dkv_part_index<Traits>(params, work) * (2 * Traits::kDkvFloats);
  auto const store = [](float* target, AccDkv const& accumulator) {
    auto* const pieces = pieces_of_thread<kFloats>(target, threadIdx.x - 128);
    CUTE_UNROLL
    for (int i = 0; i < kFloats; i += 4) {
      pieces[(i / 4) * 128] = make_float4(accumulator(i), accumulator(i + 1), accumulator(i + 2),
                                          accumulator(i + 3));
    }
  };
  store(tile, tdKrdK);
  store(tile + Traits::kDkvFloats, tdVrdV);
}

}  // namespace dash::bwd
