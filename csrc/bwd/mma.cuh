// Stage 2b, MMA warpgroups: for each work tile, sweep its Q tiles (mma_step.cuh) with dk and dv in
// registers, then write them out (store_dkv.cuh).
// Reads shared memory filled by the load warp; hands dq tiles to the writer warps.
#pragma once

#include "bwd/mma_step.cuh"
#include "bwd/mma_step_wide.cuh"
#include "bwd/q_tiles.cuh"
#include "bwd/store_dkv.cuh"
#include "bwd/store_dkv_wide.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

// Views of shared memory as the operands of the five products.
template <class Traits>
  requires(!Traits::kIsWide)
CUTE_DEVICE auto make_step_operands(typename Traits::SharedStorage& smem, int thread) {
  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
  Tensor sKt = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutKt{});
  Tensor sV = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutV{});
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
  Tensor sQt = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQt{});
  Tensor sdO = make_tensor(make_smem_ptr(smem.dout), typename Traits::SmemLayoutDo{});
  Tensor sdOt = make_tensor(make_smem_ptr(smem.dout), typename Traits::SmemLayoutDot{});
  Tensor sdS = make_tensor(make_smem_ptr(smem.ds), typename Traits::SmemLayoutDs{});

  // Operands in shared memory are descriptors, the same for all threads of a warpgroup. The index
  // is made warp-uniform so that they live in uniform registers.
  int const warpgroup = __shfl_sync(0xffffffffu, thread / 128, 0);
  auto const sdp = typename Traits::MmaSdp{}.get_slice(warpgroup * 128);
  auto const dkv = typename Traits::MmaDkv{}.get_slice(warpgroup * 128);
  auto const dq = typename Traits::MmaDq{}.get_slice(warpgroup * 128);
  auto const dq_operands = [&] {
    if constexpr (Traits::kDqIsTransposed) {
      return cute::make_tuple(dq.partition_fragment_B(sdS), dq.partition_fragment_A(sKt));
    } else {
      return cute::make_tuple(dq.partition_fragment_A(sdS), dq.partition_fragment_B(sKt));
    }
  }();
  return StepOperands{sdp.partition_fragment_A(sK),
                      sdp.partition_fragment_A(sV),
                      sdp.partition_fragment_B(sQ),
                      sdp.partition_fragment_B(sdO),
                      dkv.partition_fragment_B(sdOt),
                      dkv.partition_fragment_B(sQt),
                      get<0>(dq_operands),
                      get<1>(dq_operands)};
}

template <class Traits>
CUTE_DEVICE void mma_work_loop(typename Traits::MainArguments const& arguments,
                               typename Traits::SharedStorage& smem) {
  BwdParams const& params = arguments.params;
  int const thread = threadIdx.x - kFirstMmaWarp * 32;
  auto const operands = make_step_operands<Traits>(smem, thread);

  int tile_count = 0;
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
    for_each_q_tile<Traits>(params, tile, work, [&](QTile q_tile) {
      TileMask const mask = Traits::kIsDense ? tile_mask<Traits>(Traits::grid(params),
                                                                 q_tile.m_block, tile.n_block)
                                             : TileMask{};
      StepInput const input{mask, arguments.scores, tile_count};
      mma_step<Traits>(operands, smem, input, tdKrdK, tdVrdV);
      ++tile_count;
    });
    // Arrives: each MMA warp, all its products done. Waits: the load warp.
    consumer_release(smem.ring_k, state_kv);
    consumer_release(smem.ring_v, state_kv);
    // Tuning: read again rather than kept in registers across the loop, where they are scarce.
    store_dkv<Traits>(params, work, tdKrdK, tdVrdV);
    // Arrives: each MMA warp. Waits: the load lane, before it publishes the next but one.
    consumer_release(smem.ring_work, state_work);
  }
}

}  // namespace dash::bwd
