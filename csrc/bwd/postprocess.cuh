// Stage 3, its own kernel: dq_accum -> dq, one CTA per Q tile. Undoes the register order in which
// the MMA warpgroups left the tile, scales, rounds to 16 bits.
// Invariant: a Q tile that no KV tile contributed to is written as 0, and its dq_accum is not read.
#pragma once

#include "bwd/cta_q_tile.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

template <class Traits>
__global__ void __launch_bounds__(Traits::kNumMmaThreads)
    postprocess_kernel(__grid_constant__ BwdParams const params) {
  using Element = typename Traits::Element;
  constexpr int kFloats = Traits::kDqFloatsPerThread;
  constexpr int kPieces = Traits::kHeadDim / 8;  // 16-byte pieces of a row
  // Tuning: 8 elements of padding put the rows that a warp writes together into different banks.
  constexpr int kRowPitch = Traits::kHeadDim + 8;
  __shared__ alignas(16) Element staged[Traits::kBlockM * kRowPitch];

  CtaQTile const tile = cta_q_tile<Traits>(params);
  if (!Traits::kIsDense && tile.num_rows <= 0) {
    return;
  }
  int const thread = threadIdx.x;

  float values[kFloats];
  if (Traits::grid(params, tile.sequence).num_contributors(tile.m_block) > 0) {
    auto const* source = reinterpret_cast<float4 const*>(
                             params.dq_accum +
                             int64_t{blockIdx.x} * (Traits::kBlockM * Traits::kHeadDim) +
                             (thread / 128) * Traits::kDqFloatsPerWarpgroup) +
                         thread % 128;
    CUTE_UNROLL
    for (int i = 0; i < kFloats; i += 4) {
      *reinterpret_cast<float4*>(values + i) = source[(i / 4) * 128];
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < kFloats; ++i) {
      values[i] = 0.f;
    }
  }

  auto const coordinates =
      typename Traits::MmaDq{}.get_slice(thread).partition_C(
          make_identity_tensor(typename Traits::TileShapeDq{}));
  CUTE_UNROLL
  for (int i = 0; i < kFloats; ++i) {
    auto const coordinate = coordinates(i);
    staged[get<0>(coordinate) * kRowPitch + get<1>(coordinate)] =
        Element(values[i] * params.softmax_scale);
  }
  // Arrives and waits: all threads. Protects: the staged tile until it is complete.
  __syncthreads();

  Element* const dq =
      first_row_of<Traits>(tile, static_cast<Element*>(params.dq), params.dq_strides);
  for (int piece = thread; piece < Traits::kBlockM * kPieces; piece += Traits::kNumMmaThreads) {
    int const row_in_tile = piece / kPieces;
    int const column = (piece % kPieces) * 8;
    if (row_in_tile < tile.num_rows && column < params.head_dim) {
      *reinterpret_cast<uint4*>(dq + row_in_tile * params.dq_strides.row + column) =
          *reinterpret_cast<uint4 const*>(staged + row_in_tile * kRowPitch + column);
    }
  }
}

}  // namespace dash::bwd
