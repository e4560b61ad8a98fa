// Stage 2e, dQ converter warp: dq_accum -> dq for Q tiles that are finished while the main kernel
// still runs, of whatever CTA; what postprocess.cuh does with the tiles that are left. Undoes the
// register order in which the MMA warpgroups left the tile, scales, rounds to 16 bits.
// Tuning: a warp of its own at its own pace. The writer warps are part of the ordered chain: with
// the conversion in them the backward is up to 18 % slower (H200).
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/finished_tiles.cuh"
#include "bwd/traits.cuh"
#include "common/layout.cuh"

namespace dash::bwd {

// Tuning: not from threadIdx. Where the compiler finds something in common with what the MMA warps
// work out of theirs, it keeps that from the kernel's beginning on and schedules their loop
// differently: 2 % at head dim 64 (H200).
CUTE_DEVICE int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

template <class Traits>
struct ConvertDq {
  using Element = typename Traits::Element;
  using Side = QuerySide<Traits>;

  BwdParams const& params;
  typename Traits::SharedStorage& smem;

  // The whole warp.
  CUTE_DEVICE void run() {
    if (!params.has_converters) {
      return;
    }
    while (true) {
      int slot = lane_index() == 0 ? claim_finished(params) : 0;
      slot = __shfl_sync(0xffffffffu, slot, 0);
      if (slot >= num_tiles_of<Side>(params)) {
        return;
      }
      int const index = wait_for_tile(slot);
      if (index == kNotYet || !convert(index)) {
        return;
      }
      if (lane_index() == 0) {
        params.finished[slot] = kConverted;
      }
    }
  }

 private:
  // Waits: this warp, until the slot is filled or the CTA has made its last addition.
  // Correctness: lane 0 acquires; __syncwarp carries it to the other lanes.
  CUTE_DEVICE int wait_for_tile(int slot) const {
    int index = kNotYet;
    if (lane_index() == 0) {
      while ((index = poll_finished(params, slot)) == kNotYet && !is_over()) {
        // Tuning: anything from 0.2 to 3 us is as good: a finished tile may wait.
        __nanosleep(1000);
      }
    }
    __syncwarp();
    return __shfl_sync(0xffffffffu, index, 0);
  }

  // Arrives: each dQ writer (2), all its additions made. Asks: this warp, which would else keep the
  // SM from the next kernel. Protects nothing: a tile that is given up is converted anew.
  CUTE_DEVICE bool is_over() const {
    return cutlass::arch::ClusterBarrier::test_wait(&smem.no_more_dq, 0, 1);
  }

  // False: given up. An MMA warp holds 16 rows of a tile, of all columns or of its warpgroup's;
  // they are converted one warp's after the other's.
  CUTE_DEVICE bool convert(int index) const {
    int const lane = lane_index();
    auto const tile = tile_at<Side>(params, index);
    // Of this lane: what is next to be read, and where the first 8 columns of it go.
    auto const* pieces = pieces_of_thread<Traits::kDqFloatsPerThread>(
        static_cast<float const*>(params.dq_accum) +
            int64_t{index} * (Traits::kBlockM * Traits::kHeadDim),
        lane);
    int const row_of_lane = lane / 4 + lane % 2 * 8;
    int const column_of_lane = lane % 4 / 2 * 8;
    Element* row = first_row_of<Side>(tile, static_cast<Element*>(params.dq), params.dq_strides) +
                   row_of_lane * params.dq_strides.row + column_of_lane;
    int rows_left = tile.num_rows - row_of_lane;
    int columns_left = params.head_dim - column_of_lane;
    CUTE_NO_UNROLL
    for (int mma_warp = 0; mma_warp < Traits::kNumMmaWarps; ++mma_warp) {
      if (__any_sync(0xffffffffu, is_over())) {
        return false;
      }
      convert_rows(pieces, row, rows_left > 0 ? columns_left : 0);
      pieces += 32;
      row += 16 * params.dq_strides.row;
      rows_left -= 16;
      if (mma_warp % 4 == 3) {  // the next warpgroup's
        pieces += (Traits::kDqFloatsPerThread / 4 - 1) * 128;
        if constexpr (Traits::kConfig.dq_product == DqProduct::kColumnsSplit) {
          row += kColumnsOfProduct - 64 * params.dq_strides.row;
          rows_left += 64;
          columns_left -= kColumnsOfProduct;
        }
      }
    }
    return true;
  }

  // Of one product that makes a part of dQ, and of the part.
  static constexpr int kColumnsOfPart = Traits::kHeadDim / Traits::kDqParts;
  static constexpr int kColumnsOfProduct =
      Traits::kConfig.dq_product == DqProduct::kColumnsSplit
          ? kColumnsOfPart / Traits::kNumMmaWarpgroups
          : kColumnsOfPart;
  static_assert(kColumnsOfProduct % 16 == 0);

  // 16 rows. Of two pieces a lane has 4-byte pairs of rows r and r + 8, in the left and the right 8
  // columns; transposed among the lanes of a quad, they are 16 bytes of one row a lane. Columns
  // from num_columns on are not written.
  // Tuning: by shuffles. The way through shared memory (stmatrix) has fewer instructions and is
  // slower: shared memory is what the products wait for.
  CUTE_DEVICE void convert_rows(float4 const* pieces, Element* row, int num_columns) const {
    constexpr int kPairs = Traits::kDqFloatsPerThread / 8;
    // Tuning: bytes in flight against registers.
    constexpr int kBatch = kPairs % 2 == 0 ? 2 : 3;
    static_assert(Traits::kDqFloatsPerThread % 8 == 0 && kPairs % kBatch == 0);
    int const quad_lane = lane_index() % 4;
    CUTE_UNROLL
    for (int first = 0; first < kPairs; first += kBatch) {
      float4 loaded[2 * kBatch];
      CUTE_UNROLL
      for (int i = 0; i < 2 * kBatch; ++i) {
        loaded[i] = pieces[(2 * first + i) * 128];
      }
      CUTE_UNROLL
      for (int pair = 0; pair < kBatch; ++pair) {
        float4 const& left = loaded[2 * pair];
        float4 const& right = loaded[2 * pair + 1];
        uint32_t words[4] = {rounded_pair(left.x, left.y), rounded_pair(left.z, left.w),
                             rounded_pair(right.x, right.y), rounded_pair(right.z, right.w)};
        quad_transpose(words, quad_lane);
        int const first_column = 16 * (first + pair);
        int const column = first_column / kColumnsOfProduct * kColumnsOfPart +
                           first_column % kColumnsOfProduct;
        if (column < num_columns) {
          *reinterpret_cast<uint4*>(row + column) =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  CUTE_DEVICE uint32_t rounded_pair(float a, float b) const {
    cutlass::Array<float, 2> pair;
    pair[0] = a * params.softmax_scale;
    pair[1] = b * params.softmax_scale;
    auto const rounded = cutlass::NumericArrayConverter<Element, float, 2>{}(pair);
    return reinterpret_cast<uint32_t const&>(rounded);
  }
};

}  // namespace dash::bwd
