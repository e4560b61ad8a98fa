// Stage 2b, MMA warpgroups: for each work tile, sweep its Q tiles (mma_step.cuh) with dk and dv in
// registers, then write them out (store_dkv.cuh).
// Reads shared memory filled by the load warp; hands dq tiles to the writer warps.
#pragma once

#include "bwd/mma_step.cuh"
#include "bwd/mma_step_in_turns.cuh"
#include "bwd/mma_step_wide.cuh"
#include "bwd/q_tiles.cuh"
#include "bwd/store_dkv.cuh"
#include "bwd/store_dkv_part.cuh"
#include "bwd/store_dkv_wide.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

template <class Traits>
CUTE_DEVICE void mma_work_loop(typename Traits::MainArguments const& arguments,
                               typename Traits::SharedStorage& smem) {
  BwdParams const& params = arguments.params;
  int const thread = threadIdx.x - kFirstMmaWarp * 32;
  auto const operands = make_step_operands<Traits>(smem, thread);

  uint32_t tile_count = 0;
  if (Traits::kIsInTurns && thread / 128 == 1) {
    // The first turn is warpgroup 0's.
    pass_scores_turn<Traits>(1);
  }
  for (int work_count = 0;; ++work_count) {
    auto const state_work = RingState<Traits::kStagesWork>::at(work_count);
    auto const state_kv = RingState<1>::at(work_count);
    // Arrives: the load lane (1). Waits: every MMA thread. Protects: smem.work of this stage.
    consumer_wait(smem.ring_work, state_work);
    Work const& work = smem.work[state_work.stage];
    schedule::WorkTile tile = work.tile;
    // Tuning: the same for all lanes; said so, they move to uniform registers.
    tile.n_block = __shfl_sync(0xffffffffu, tile.n_block, 0);
    tile.bidh = __shfl_sync(0xffffffffu, tile.bidh, 0);
    if (tile.n_block < 0) {
      break;
    }

    using TileDkv = typename Traits::AccumulatorShapeDkv;
    Tensor tdKrdK = partition_fragment_C(typename Traits::MmaDkv{}, TileDkv{});
    Tensor tdVrdV = partition_fragment_C(typename Traits::MmaDkv{}, TileDkv{});
    clear(tdKrdK);
    clear(tdVrdV);
    // Arrives: TMA's bytes, or the load lane if there is no Q tile. Waits: every MMA thread.
    // Protects: k and v of this work tile.
    consumer_wait(smem.ring_k, state_kv);
    consumer_wait(smem.ring_v, state_kv);
    // Tuning: the MMA warps count Q tiles and don't ask the policy which ones they are. They would
    // ask between one tile's last product and the next one's first, when the tensor cores have
    // nothing else to do: 2 to 7 % of the whole backward (H200).
    uint32_t const end =
        tile_count + num_steps<Traits>(params, tile, work) * params.part_size;
    TileMask const mask_of_all = Traits::kPublishesMask
                                     ? TileMask{}
                                     : tile_mask<Traits>(Traits::grid(params), 0, tile.n_block);
    mma_steps<Traits>(operands, smem, tile_count, end, tdKrdK, tdVrdV, [&](uint32_t count) {
      return StepInput{mask_of_all, arguments.scores, count};
    });
    // Arrives: each MMA warp, all its products done. Waits: the load warp.
    consumer_release(smem.ring_k, state_kv);
    consumer_release(smem.ring_v, state_kv);
    // Tuning: read again rather than kept in registers across the loop, where they are scarce.
    if (params.group_parts > 1) {
      store_dkv_part<Traits>(params, work, tdKrdK, tdVrdV);
    } else {
      store_dkv<Traits>(params, work, tdKrdK, tdVrdV);
    }
    // Arrives: each MMA warp. Waits: the load lane, before it publishes the next but one.
    consumer_release(smem.ring_work, state_work);
  }
}

}  // namespace dash::bwd
