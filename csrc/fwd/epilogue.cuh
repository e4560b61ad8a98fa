// Stage: results of one work item. Runs on the MMA warpgroups, straight from registers.
// Writes o (16-byte pieces; a quad of lanes writes 64 contiguous bytes of a row) and lse.
// Invariant: every row of the item's own sequence is written, in the columns below head_dim_v, and
// nothing else; a row that saw no key gets o = 0 and lse = -inf.
#pragma once

#include <cutlass/cutlass.h>

#include "common/layout.cuh"
#include "common/softmax.cuh"
#include "fwd/traits.cuh"

namespace dash::fwd {

// Where an item's rows lie in the results.
template <class Traits>
struct ItemResults {
  typename Traits::Element* o;  // row 0 of the item's sequence and head
  float* lse;
  int seqlen_q;
};

template <class Traits>
CUTE_DEVICE ItemResults<Traits> item_results(FwdParams const& params, WorkItem const& item,
                                             Sequence const& sequence) {
  int64_t o_offset = item.bidb * params.o_strides.batch;  // elements
  int64_t lse_offset = (static_cast<int64_t>(item.bidb) * params.num_heads + item.bidh) *
                       params.grid.seqlen_q;
  if (!Traits::kIsDense && params.packed.is_packed()) {
    o_offset = sequence.offset_q * params.o_strides.row;
    lse_offset = static_cast<int64_t>(item.bidh) * params.packed.total_q + sequence.offset_q;
  }
  return {.o = static_cast<typename Traits::Element*>(params.o) + o_offset +
               item.bidh * params.o_strides.head,
          .lse = params.lse + lse_offset,
          .seqlen_q = sequence.seqlen_q};
}

template <class Traits, class TensorO>
CUTE_DEVICE void store_item(FwdKernelArgs<Traits> const& args, WorkItem const& item,
                            Sequence const& sequence, OnlineSoftmax const& softmax,
                            TensorO& tOrO) {
  using Element = typename Traits::Element;
  FwdParams const& params = args.params;
  int const thread = threadIdx.x % 128;
  int const warpgroup = cutlass::canonical_warp_group_idx() - 1;
  int const first_row = item.m_block * Traits::kBlockM + warpgroup * Traits::kRowsPerWarpgroup +
                        accumulator_row(thread, 0);

  float const inverse_sum[2] = {1.f / softmax.row_sum[0], 1.f / softmax.row_sum[1]};
  CUTE_UNROLL
  for (int i = 0; i < decltype(size(tOrO))::value; ++i) {
    int const row = accumulator_row_index(i);
    // Correctness: selected, not multiplied by 0, because 0 * V may be NaN where V is infinite.
    tOrO(i) = softmax.row_sum[row] == 0.f ? 0.f : tOrO(i) * inverse_sum[row];
  }
  Tensor rO = convert_to<Element>(tOrO);
  Tensor rO_words = recast<uint32_t>(rO);  // word 2 j + row: columns 8 j + 2 (lane mod 4), + 1

  ItemResults<Traits> const results = item_results<Traits>(params, item, sequence);
  CUTE_UNROLL
  for (int row_index = 0; row_index < 2; ++row_index) {
    int const row = first_row + 8 * row_index;
    bool const is_valid = row < results.seqlen_q;
    Element* const o_row = results.o + row * params.o_strides.row;
    CUTE_UNROLL
    for (int group = 0; group < size(tOrO) / 16; ++group) {  // 32 columns at a time
      uint32_t words[4];
      CUTE_UNROLL
      for (int j = 0; j < 4; ++j) {
        words[j] = rO_words(2 * (4 * group + j) + row_index);
      }
      quad_transpose(words);  // whole warps: outside the row predicate
      int const column = 32 * group + 8 * (thread % 4);
      if (is_valid && column < params.head_dim_v) {
        // Tuning: written out, because the compiler (nvcc 13.0) takes some of these stores apart
        // into four: STG.E instead of STG.E.128 in the SASS.
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(o_row + column),
                     "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
    }
    if (is_valid && thread % 4 == 0) {
      float const sum = softmax.row_sum[row_index];
      results.lse[row] =
          sum == 0.f ? -INFINITY
                     : fmaf(softmax.row_reference[row_index], args.score_scale, __logf(sum));
    }
  }
}

}  // namespace dash::fwd
