// Stage 1, its own kernel: o, dout, lse -> dpsum, lse_log2, one CTA per Q tile.
// Also resets the Q tile's turn counter, the tickets and the queue of finished tiles, writes dq of
// a Q tile that no KV tile contributes to, and zeroes dq_accum for an unordered schedule.
// Invariant: every element of the workspace that later stages read is written here or in stage 2,
// padding rows of a sequence's last tile included.
#pragma once

#include <bit>
#include <cmath>

#include "bwd/accumulator_tile.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/finished_tiles.cuh"
#include "bwd/traits.cuh"
#include "bwd/workspace.hpp"
#include "common/exp2.cuh"

namespace dash::bwd {

inline constexpr int kPreprocessThreads = 256;
// Tuning: as many as shall be resident, to keep enough bytes in flight. At other head dims a CTA
// holds more of them in registers.
template <class Traits>
inline constexpr int kPreprocessCtasPerSm =
    Traits::kHeadDim == 64 || Traits::kHeadDim == 128 ? 4 : 2;

// Tuning: past L1, where nothing is read twice: 3 us of 40 at 16,384 tokens by 2,048 hidden (H200).
CUTE_DEVICE uint4 load_past_l1(void const* source) {
  uint4 piece;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(source));
  return piece;
}

// Sum over 8 pairs of 16-bit elements.
template <class Element>
CUTE_DEVICE float dot8(uint4 const& a, uint4 const& b) {
  cutlass::NumericArrayConverter<float, Element, 8> to_float;
  auto const x = to_float(reinterpret_cast<cutlass::Array<Element, 8> const&>(a));
  auto const y = to_float(reinterpret_cast<cutlass::Array<Element, 8> const&>(b));
  float sum = 0.f;
  CUTE_UNROLL
  for (int i = 0; i < 8; ++i) {
    sum = fmaf(x[i], y[i], sum);
  }
  return sum;
}

// What the main kernel needs of a row. A row past seqlen_q, or one that sees no key, gets
// lse_log2 = +inf, so that exp2(s - lse_log2) is exactly 0 for every score.
struct RowTerms {
  float lse_log2;
  float dpsum;
};

// dpsum = rowsum(dout o o) - dlse: the gradient of lse with respect to a score is its probability,
// so it enters dS = P o (dP - dpsum) as a shift of dpsum.
CUTE_DEVICE RowTerms row_terms(float lse, float dlse, float rowsum) {
  return lse == -INFINITY ? RowTerms{INFINITY, 0.f} : RowTerms{lse * kLog2e, rowsum - dlse};
}

// Tile `index` of a tensor of tiles.
template <int kTileFloats>
CUTE_DEVICE void zero_floats(float* tiles, int index) {
  auto* const tile = reinterpret_cast<float4*>(tiles + int64_t{index} * kTileFloats);
  for (int i = threadIdx.x; i < kTileFloats / 4; i += kPreprocessThreads) {
    tile[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// One thread of each CTA.
CUTE_DEVICE void reset_queues(BwdParams const& params) {
  params.finished[blockIdx.x] = kNotYet;
  if (blockIdx.x == 0) {
    *params.ticket = 0;
    *params.num_finished = 0;
    *params.num_claimed = 0;
  }
}

template <class Element>
CUTE_DEVICE void zero_rows(RowsTarget<Element> const& target) {
  int const pieces = target.num_columns / 8;
  for (int i = threadIdx.x; i < target.num_rows * pieces; i += kPreprocessThreads) {
    int const row = i / pieces;
    *reinterpret_cast<uint4*>(target.data + row * target.row_stride + (i - row * pieces) * 8) =
        make_uint4(0, 0, 0, 0);
  }
}

template <class Traits>
__global__ void __launch_bounds__(kPreprocessThreads, kPreprocessCtasPerSm<Traits>)
    preprocess_kernel(__grid_constant__ BwdParams const params) {
  using Element = typename Traits::Element;
  // 16 bytes a lane; a power of two, so that a row's lanes can add up by halves.
  constexpr int kLanesPerRow = std::bit_ceil(static_cast<uint32_t>(Traits::kHeadDim / 8));
  constexpr int kRowsPerPass = kPreprocessThreads / kLanesPerRow;
  constexpr int kPasses = (Traits::kBlockM + kRowsPerPass - 1) / kRowsPerPass;
  if (threadIdx.x == 0) {
    reset_queues(params);
  }
  using Side = QuerySide<Traits>;
  CtaTile const tile = cta_tile<Side>(params);
  if (!Traits::kIsDense && tile.num_rows <= 0) {
    return;
  }
  int const lane = threadIdx.x % kLanesPerRow;
  auto const* o =
      first_row_of<Side>(tile, static_cast<Element const*>(params.o), params.o_strides) +
      lane * 8;
  auto const* dout =
      first_row_of<Side>(tile, static_cast<Element const*>(params.dout), params.do_strides) +
      lane * 8;
  bool const has_columns = lane * 8 < params.head_dim_v;
  int64_t const first_padded = int64_t{tile.index} * Traits::kBlockM;
  // Packed: (num_heads, total_q), bidb 0.
  int64_t const rows_of_a_head =
      Traits::is_packed(params) ? params.packed.total_q : params.grid.seqlen_q;
  int64_t const first_lse =
      (int64_t{tile.bidb} * params.num_heads + tile.bidh) * rows_of_a_head +
      tile.sequence.offset_q + int64_t{tile.block} * Traits::kBlockM;
  // Tuning: all loads of the CTA are issued before the first sum, to keep enough bytes in flight;
  // those of lse too, or the CTA ends with a second round trip to memory.
  uint4 o_piece[kPasses];
  uint4 do_piece[kPasses];
  float lse[kPasses];
  float dlse[kPasses];
  CUTE_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    int const row_in_tile = pass * kRowsPerPass + threadIdx.x / kLanesPerRow;
    bool const is_row = row_in_tile < Traits::kBlockM && row_in_tile < tile.num_rows;
    bool const is_valid = is_row && has_columns;
    bool const has_terms = is_row && lane == 0;
    o_piece[pass] =
        is_valid ? load_past_l1(o + row_in_tile * params.o_strides.row) : make_uint4(0, 0, 0, 0);
    do_piece[pass] =
        is_valid ? load_past_l1(dout + row_in_tile * params.do_strides.row)
                 : make_uint4(0, 0, 0, 0);
    lse[pass] = has_terms ? params.lse[first_lse + row_in_tile] : -INFINITY;
    dlse[pass] = has_terms && params.dlse != nullptr ? params.dlse[first_lse + row_in_tile] : 0.f;
  }
  CUTE_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    int const row_in_tile = pass * kRowsPerPass + threadIdx.x / kLanesPerRow;
    float rowsum = dot8<Element>(o_piece[pass], do_piece[pass]);
    CUTE_UNROLL
    for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) {
      rowsum += __shfl_xor_sync(0xffffffffu, rowsum, offset);
    }
    if (lane == 0 && row_in_tile < Traits::kBlockM) {
      RowTerms const terms = row_terms(lse[pass], dlse[pass], rowsum);
      params.lse_log2[first_padded + row_in_tile] = terms.lse_log2;
      params.dpsum[first_padded + row_in_tile] = terms.dpsum;
    }
  }

  if (threadIdx.x == 0) {
    params.dq_semaphore[int64_t{tile.index} * kSemaphoreStride] = 0;
  }
  if (Traits::grid(params, tile.sequence).num_contributors(tile.block) == 0) {
    zero_rows(rows_of<Side>(tile, static_cast<Element*>(params.dq), params.dq_strides,
                            params.head_dim));
    return;
  }
  if (!Traits::Policy::is_ordered(params.grid)) {
    zero_floats<Traits::kBlockM * Traits::kHeadDim>(params.dq_accum, tile.index);
  }
}

}  // namespace dash::bwd
