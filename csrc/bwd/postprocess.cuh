// Stage 3, its own kernel: dq_accum -> dq, one CTA per Q tile. Undoes the register order in which
// the MMA warpgroups left the tile, scales, rounds to 16 bits.
// Invariant: a Q tile that no KV tile contributed to is written as 0, and its dq_accum is not read.
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

template <class Traits>
__global__ void __launch_bounds__(Traits::kNumMmaThreads)
    postprocess_kernel(__grid_constant__ BwdParams const params) {
  using Element = typename Traits::Element;
  constexpr int kFloats = Traits::kDqFloatsPerThread;
  constexpr TilesOf kOf = TilesOf::kQueries;
  CtaTile const tile = cta_tile<Traits, kOf>(params);
  if (!Traits::kIsDense && tile.num_rows <= 0) {
    return;
  }
  float values[kFloats];
  if (Traits::grid(params, tile.sequence).num_contributors(tile.block) > 0) {
    float const* const accum =
        params.dq_accum + int64_t{tile.index} * (Traits::kBlockM * Traits::kHeadDim);
    auto const* const pieces = pieces_of_thread<kFloats>(accum, threadIdx.x);
    CUTE_UNROLL
    for (int i = 0; i < kFloats; i += 4) {
      *reinterpret_cast<float4*>(values + i) = pieces[(i / 4) * 128];
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < kFloats; ++i) {
      values[i] = 0.f;
    }
  }
  auto const coordinates =
      typename Traits::MmaDq{}.get_slice(threadIdx.x).partition_C(
          make_identity_tensor(typename Traits::TileShapeDq{}));
  RowsTarget<Element> const target = {
      first_row_of<Traits, kOf>(tile, static_cast<Element*>(params.dq), params.dq_strides),
      params.dq_strides.row, tile.num_rows, params.head_dim};
  write_rows<Traits::kBlockM, Traits::kHeadDim, Traits::kNumMmaThreads>(
      values, params.softmax_scale, coordinates, target);
}

}  // namespace dash::bwd
