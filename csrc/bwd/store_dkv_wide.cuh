// Stage 2d at head dims 192 and 256: dk and dv from the accumulators of traits_wide.cuh straight to
// global memory. Run by the MMA warpgroups; uses no shared memory, like store_dkv.cuh.
#pragma once

#include <cute/arch/copy_sm75.hpp>

#include "bwd/store_dkv.cuh"
#include "bwd/traits.cuh"
#include "common/layout.cuh"

namespace dash::bwd {

// A transposed accumulator: its rows are columns of the target, its columns rows. Value i of
// MMA_M m is row 64 (m kWarpgroups + warpgroup) + accumulator_row(i). Each lane stores 16 bytes of
// one row at a time, a warp 32 contiguous ones.
template <class Traits, class Acc>
CUTE_DEVICE void store_transposed(Acc const& accumulator, float scale,
                                  RowsTarget<typename Traits::Element> const& target) {
  using Element = typename Traits::Element;
  constexpr int kValues = Traits::kBlockN / 2;  // of a thread in one MMA_M
  int const thread = threadIdx.x % 128;
  int const quad_lane = thread % 4;
  int const warpgroup = threadIdx.x / 128 - 1;
  cutlass::NumericArrayConverter<Element, float, 2> convert;
  CUTE_UNROLL
  for (int m = 0; m < size<1>(accumulator); ++m) {
    int const first_column = 64 * (m * Traits::kNumMmaWarpgroups + warpgroup) + 16 * (thread / 32);
    CUTE_UNROLL
    for (int i = 0; i < kValues; i += 8) {
      // 8 x 8 blocks of 16 columns and 16 rows of the target: bit 0 the column block, bit 1 the row
      // block. movmatrix transposes a block, then quads turn their four 4-byte pieces of four
      // blocks into 16-byte pieces of one block each.
      uint32_t words[4];
      CUTE_UNROLL
      for (int block = 0; block < 4; ++block) {
        int const value = m * kValues + i + 4 * (block / 2) + 2 * (block % 2);
        cutlass::Array<float, 2> pair;
        pair[0] = accumulator(value) * scale;
        pair[1] = accumulator(value + 1) * scale;
        auto const rounded = convert(pair);
        SM75_U32x1_MOVM_T::copy(reinterpret_cast<uint32_t const&>(rounded), words[block]);
      }
      quad_transpose(words);
      int const row = 2 * i + 8 * (quad_lane / 2) + (thread % 32) / 4;
      int const column = first_column + 8 * (quad_lane % 2);
      if (row < target.num_rows && column < target.num_columns) {
        *reinterpret_cast<uint4*>(target.data + row * target.row_stride + column) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

template <class Traits, class AccDkv>
  requires(Traits::kIsWide)
CUTE_DEVICE void store_dkv(BwdParams const& params, Work const& work, AccDkv const& tdKrdK,
                           AccDkv const& tdVrdV) {
  using Element = typename Traits::Element;
  int const first_row = work.tile.n_block * Traits::kBlockN;
  auto const store = [&](AccDkv const& accumulator, float scale, RowsTarget<Element> rows) {
    if constexpr (Traits::kDkvIsTransposed) {
      store_transposed<Traits>(accumulator, scale, rows);
    } else {
      constexpr int kColumns = Traits::kHeadDim / Traits::kNumMmaWarpgroups;
      int const first_column = (threadIdx.x / 128 - 1) * kColumns;
      rows.data += first_column;
      rows.num_columns -= first_column;
      store_accumulator<kColumns>(accumulator, scale, rows);
    }
  };
  store(tdVrdV, 1.f,
        rows_target<Traits>(params, work, first_row, params.dv, params.dv_strides,
                            params.head_dim_v));
  store(tdKrdK, params.softmax_scale,
        rows_target<Traits>(params, work, first_row, params.dk, params.dk_strides,
                            params.head_dim));
}

}  // namespace dash::bwd
