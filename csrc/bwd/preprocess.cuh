// Stage 1, its own kernel: o, dout, lse -> dpsum, lse_log2, one CTA per Q tile.
// Also zeroes the Q tile's turn counter, the ticket and, for an unordered schedule, its dq_accum.
// Invariant: every element of the workspace that later stages read is written here or in stage 2,
// padding rows of a sequence's last tile included.
#pragma once

#include <bit>
#include <cmath>

#include "bwd/cta_q_tile.cuh"
#include "bwd/traits.cuh"
#include "bwd/workspace.hpp"
#include "common/exp2.cuh"

namespace dash::bwd {

inline constexpr int kPreprocessThreads = 256;

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
CUTE_DEVICE RowTerms row_terms(BwdParams const& params, int64_t lse_index, float rowsum) {
  float const lse = params.lse[lse_index];
  if (lse == -INFINITY) {
    return {INFINITY, 0.f};
  }
  float const dlse = params.dlse == nullptr ? 0.f : params.dlse[lse_index];
  return {lse * kLog2e, rowsum - dlse};
}

template <class Traits>
__global__ void __launch_bounds__(kPreprocessThreads)
    preprocess_kernel(__grid_constant__ BwdParams const params) {
  using Element = typename Traits::Element;
  // 16 bytes a lane; a power of two, so that a row's lanes can add up by halves.
  constexpr int kLanesPerRow = std::bit_ceil(static_cast<uint32_t>(Traits::kHeadDim / 8));
  constexpr int kRowsPerPass = kPreprocessThreads / kLanesPerRow;
  constexpr int kPasses = (Traits::kBlockM + kRowsPerPass - 1) / kRowsPerPass;
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    *params.ticket = 0;
  }
  CtaQTile const tile = cta_q_tile<Traits>(params);
  if (!Traits::kIsDense && tile.num_rows <= 0) {
    return;
  }
  int const lane = threadIdx.x % kLanesPerRow;
  auto const* o =
      first_row_of<Traits>(tile, static_cast<Element const*>(params.o), params.o_strides) +
      lane * 8;
  auto const* dout =
      first_row_of<Traits>(tile, static_cast<Element const*>(params.dout), params.do_strides) +
      lane * 8;
  bool const has_columns = lane * 8 < params.head_dim_v;
  // Tuning: all loads of the CTA are issued before the first sum, to keep enough bytes in flight.
  uint4 o_piece[kPasses];
  uint4 do_piece[kPasses];
  CUTE_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    int const row_in_tile = pass * kRowsPerPass + threadIdx.x / kLanesPerRow;
    bool const is_valid =
        row_in_tile < Traits::kBlockM && row_in_tile < tile.num_rows && has_columns;
    o_piece[pass] =
        is_valid ? *reinterpret_cast<uint4 const*>(o + row_in_tile * params.o_strides.row)
                 : make_uint4(0, 0, 0, 0);
    do_piece[pass] =
        is_valid ? *reinterpret_cast<uint4 const*>(dout + row_in_tile * params.do_strides.row)
                 : make_uint4(0, 0, 0, 0);
  }
  int64_t const first_padded = int64_t{blockIdx.x} * Traits::kBlockM;
  // Packed: (num_heads, total_q), bidb 0.
  int64_t const rows_of_a_head =
      Traits::is_packed(params) ? params.packed.total_q : params.grid.seqlen_q;
  int64_t const first_lse =
      (int64_t{tile.bidb} * params.num_heads + tile.bidh) * rows_of_a_head +
      tile.sequence.offset_q + int64_t{tile.m_block} * Traits::kBlockM;
  CUTE_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    int const row_in_tile = pass * kRowsPerPass + threadIdx.x / kLanesPerRow;
    float rowsum = dot8<Element>(o_piece[pass], do_piece[pass]);
    CUTE_UNROLL
    for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) {
      rowsum += __shfl_xor_sync(0xffffffffu, rowsum, offset);
    }
    if (lane == 0 && row_in_tile < Traits::kBlockM) {
      RowTerms const terms = row_in_tile < tile.num_rows
                                 ? row_terms(params, first_lse + row_in_tile, rowsum)
                                 : RowTerms{INFINITY, 0.f};
      params.lse_log2[first_padded + row_in_tile] = terms.lse_log2;
      params.dpsum[first_padded + row_in_tile] = terms.dpsum;
    }
  }

  if (threadIdx.x == 0) {
    params.dq_semaphore[int64_t{blockIdx.x} * kSemaphoreStride] = 0;
  }
  if (!Traits::Policy::is_ordered(params.grid)) {
    constexpr int kTileFloats = Traits::kBlockM * Traits::kHeadDim;
    auto* const accum =
        reinterpret_cast<float4*>(params.dq_accum + int64_t{blockIdx.x} * kTileFloats);
    for (int i = threadIdx.x; i < kTileFloats / 4; i += kPreprocessThreads) {
      accum[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
}

}  // namespace dash::bwd
