// Stage 2d, epilogue of a work tile: dk and dv from the accumulators straight to global memory.
// Run by the MMA warpgroups. No shared memory is used, so the load warp can already fetch the next
// work tile's k and v. Writes every row below seqlen_k of the KV tile, and every column below
// head_dim (dk) or head_dim_v (dv).
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/traits.cuh"
#include "bwd/work.cuh"
#include "common/layout.cuh"

namespace dash::bwd {

// Rows of one warpgroup's 64 x head_dim accumulator; 16-byte stores, 64 contiguous bytes a quad.
template <int kHeadDim, class Element, class Acc>
CUTE_DEVICE void store_accumulator(Acc const& accumulator, float scale,
                                   RowsTarget<Element> const& target) {
  int const thread = threadIdx.x % 128;
  cutlass::NumericArrayConverter<Element, float, 2> convert;
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {  // rows r and r + 8
    int const row = accumulator_row(thread, 2 * half);
    CUTE_UNROLL
    for (int column = 0; column < kHeadDim; column += 32) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int block = 0; block < 4; ++block) {
        int const i = (column / 8 + block) * 4 + 2 * half;
        cutlass::Array<float, 2> pair;
        pair[0] = accumulator(i) * scale;
        pair[1] = accumulator(i + 1) * scale;
        auto const rounded = convert(pair);
        words[block] = reinterpret_cast<uint32_t const&>(rounded);
      }
      quad_transpose(words);
      int const first_column = column + 8 * (thread % 4);
      if (row < target.num_rows && first_column < target.num_columns) {
        *reinterpret_cast<uint4*>(target.data + row * target.row_stride + first_column) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

// The rows of dk or dv from `first_row` of a work tile's sequence on.
template <class Traits>
CUTE_DEVICE RowsTarget<typename Traits::Element> rows_target(BwdParams const& params,
                                                             Work const& work, int first_row,
                                                             void* tensor, Strides const& strides,
                                                             int num_columns) {
  using Element = typename Traits::Element;
  int const offset = Traits::kIsDense ? 0 : work.sequence.offset_k;
  Element* const data = static_cast<Element*>(tensor) + work.tile.bidb * strides.batch +
                        work.tile.bidh * strides.head + (offset + first_row) * strides.row;
  return {data, strides.row, Traits::grid(params, work.sequence).seqlen_k - first_row, num_columns};
}

template <class Traits, class AccDkv>
  requires(!Traits::kIsWide)
CUTE_DEVICE void store_dkv(BwdParams const& params, Work const& work, AccDkv const& tdKrdK,
                           AccDkv const& tdVrdV) {
  int const warpgroup = threadIdx.x / 128 - 1;
  int const first_row = work.tile.n_block * Traits::kBlockN + warpgroup * 64;
  store_accumulator<Traits::kHeadDim>(
      tdVrdV, 1.f,
      rows_target<Traits>(params, work, first_row, params.dv, params.dv_strides,
                          params.head_dim_v));
  store_accumulator<Traits::kHeadDim>(
      tdKrdK, params.softmax_scale,
      rows_target<Traits>(params, work, first_row, params.dk, params.dk_strides,
                          params.head_dim));
}

}  // namespace dash::bwd
