// Stage 3, its own kernel: dq_accum -> dq of the Q tiles that the main kernel's converter warps did
// not get to (convert_dq.cuh); all of them, if the schedule is unordered. Undoes the register order
// in which the MMA warpgroups left the tile, scales, rounds to 16 bits.
// Invariant: of a Q tile that no KV tile contributed to, dq_accum is not read (preprocess.cuh wrote
// its dq).
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/finished_tiles.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

// All threads of a CTA call it.
template <class Traits>
CUTE_DEVICE void convert_tile(BwdParams const& params, int index) {
  using Element = typename Traits::Element;
  using Side = QuerySide<Traits>;
  constexpr int kFloats = Traits::kDqFloatsPerThread;
  CtaTile const tile = tile_at<Side>(params, index);
  bool const has_rows = Traits::kIsDense || tile.num_rows > 0;
  if (!has_rows || Traits::grid(params, tile.sequence).num_contributors(tile.block) == 0) {
    return;
  }
  float const* const accum =
      params.dq_accum + int64_t{index} * (Traits::kBlockM * Traits::kHeadDim);
  auto const* const pieces = pieces_of_thread<kFloats>(accum, threadIdx.x);
  float values[kFloats];
  CUTE_UNROLL
  for (int i = 0; i < kFloats; i += 4) {
    *reinterpret_cast<float4*>(values + i) = pieces[(i / 4) * 128];
  }
  auto const coordinates =
      typename Traits::MmaDq{}.get_slice(threadIdx.x).partition_C(
          make_identity_tensor(typename Traits::TileShapeDq{}));
  auto const target = rows_of<Side>(tile, static_cast<Element*>(params.dq), params.dq_strides,
                                    params.head_dim);
  write_rows<Traits::kBlockM, Traits::kHeadDim, Traits::kNumMmaThreads>(
      values, params.softmax_scale, coordinates, target);
}

// As many CTAs as there are Q tiles, or fewer if most of them are expected to be converted.
template <class Traits>
__global__ void __launch_bounds__(Traits::kNumMmaThreads)
    postprocess_kernel(__grid_constant__ BwdParams const params) {
  int const num_tiles = num_tiles_of<QuerySide<Traits>>(params);
  // The last ones first: see index_of_cta.
  for (int slot = num_tiles - 1 - static_cast<int>(blockIdx.x); slot >= 0; slot -= gridDim.x) {
    int const index = params.has_converters ? params.finished[slot] : slot;
    if (index >= 0) {
      convert_tile<Traits>(params, index);
      // Arrives and waits: all threads. Protects: the staged tile until all of it is written.
      __syncthreads();
    }
  }
}

}  // namespace dash::bwd
