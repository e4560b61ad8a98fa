// Stage 2b, one Q tile of one of two MMA warpgroups that are half a tile apart, so that one's
// exponentials run under the other's products. As in mma_step.cuh, but
//   a warpgroup issues S and dP when the other one's are done (scores turn);
//   dQ needs both warpgroups' dS, so that of a tile is computed in the next one.
// ds_full, ds_empty of a stage:
//   full    arrives: each MMA warp (8), its part of dS stored; waits: every MMA thread, before dQ.
//   empty   arrives: each MMA warp (8), its share of dQ done; waits: every MMA thread, before it
//           stores dS of the tile after next. A fresh stage counts as empty.
// Invariant: same bits as mma_step.cuh: each accumulator gets the same products in the same order.
#pragma once

#include "bwd/mma_step.cuh"

namespace dash::bwd {

// The whole warp calls it.
CUTE_DEVICE void arrive_by_warp(uint64_t& barrier) {
  asm volatile("" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    cutlass::arch::ClusterBarrier::arrive(&barrier);
  }
}

// dQ of Q tile `tile_count`, issued once both warpgroups have stored its dS.
template <class Traits, class Operands, class Acc>
CUTE_DEVICE void issue_dq_when_full(Operands const& operands,
                                    typename Traits::SharedStorage& smem, uint32_t tile_count,
                                    Acc& tdQrdQ) {
  auto const state_ds = RingState<Traits::kStagesDs>::at(tile_count);
  cutlass::arch::ClusterBarrier::wait(&smem.ds_full[state_ds.stage], state_ds.phase);
  issue_dq<Traits>(operands, tdQrdQ, state_ds.stage);
}

// That dQ, done but for kPending later products, to the writer warp; its dS is given back.
template <class Traits, int kPending, class Acc>
CUTE_DEVICE void finish_dq(typename Traits::SharedStorage& smem, uint32_t tile_count, Acc& tdQrdQ,
                           int thread) {
  acquire_dq_stage<Traits>(smem, tile_count, thread);
  gemm_wait<kPending>(tdQrdQ);
  arrive_by_warp(smem.ds_empty[tile_count % Traits::kStagesDs]);
  hand_over_dq<Traits>(smem, tdQrdQ, tile_count, thread);
}

// `kHasPrevious`: the work tile has a Q tile before this one, whose dQ is still to be computed.
template <class Traits, bool kHasPrevious, class Operands, class AccDkv>
CUTE_DEVICE void mma_step_in_turns(Operands const& operands, typename Traits::SharedStorage& smem,
                                   StepInput const& input, AccDkv& tdKrdK, AccDkv& tdVrdV) {
  using Element = typename Traits::Element;
  uint32_t const tile_count = input.tile_count;
  auto const state_q = RingState<Traits::kStagesQ>::at(tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(tile_count);
  auto const state_ds = RingState<Traits::kStagesDs>::at(tile_count);
  int const thread = hidden_mma_thread<Traits>();
  typename Traits::MmaDkv mma_dkv;
  using TileSdp = typename Traits::AccumulatorShapeSdp;

  Tensor tSrS = partition_fragment_C(typename Traits::MmaSdp{}, TileSdp{});
  Tensor tdPrdP = partition_fragment_C(typename Traits::MmaSdp{}, TileSdp{});
  issue_scores<Traits>(operands, smem, tile_count, thread, tSrS, tdPrdP);
  Tensor rP = make_tensor<Element>(tSrS.layout());
  Tensor rdS = make_tensor<Element>(tSrS.layout());
  make_p_and_ds<Traits>(smem, input, tSrS, tdPrdP, rP, rdS, thread, [&] {
    // Tuning: here, when this warpgroup's S and dP are done and the tensor cores are free. Earlier
    // (behind the issue of dP) lost 6 % (head dim 128, causal, H200).
    pass_scores_turn<Traits>(thread / 128);
    cutlass::arch::ClusterBarrier::wait(&smem.ds_empty[state_ds.stage], state_ds.phase ^ 1);
  });
  Tensor tdVrP = make_tensor(rP.data(), accumulator_as_a_operand(rP.layout()));
  Tensor tdKrdS = make_tensor(rdS.data(), accumulator_as_a_operand(rdS.layout()));
  Tensor tdQrdQ = partition_fragment_C(typename Traits::MmaDq{}, typename Traits::TileShapeDq{});
  // Tuning: dQ first, so that its way to the writer runs under dV and dK.
  if constexpr (kHasPrevious) {
    issue_dq_when_full<Traits>(operands, smem, tile_count - 1, tdQrdQ);
  }
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdVrP, rematerialize(operands.tdVrdO)(_, _, _, state_do.stage), tdVrdV);
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdKrdS, rematerialize(operands.tdKrQ)(_, _, _, state_q.stage), tdKrdK);
  // Correctness: every lane's generic -> async proxy fence, before the arrive that lets a product
  // read dS.
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
  arrive_by_warp(smem.ds_full[state_ds.stage]);
  if constexpr (kHasPrevious) {
    finish_dq<Traits, 2>(smem, tile_count - 1, tdQrdQ, thread);
  }
  gemm_wait<1>(tdVrdV);
  // Arrives: each MMA warp (8). Waits: the load warp, before it refills the stage.
  consumer_release(smem.ring_do, state_do);
  gemm_wait<0>(tdKrdK);
  consumer_release(smem.ring_q, state_q);
}

// All Q tiles of a work tile, as in mma_step.cuh.
template <class Traits, class Operands, class AccDkv, class MakeInput>
  requires(Traits::kIsInTurns)
CUTE_DEVICE void mma_steps(Operands const& operands, typename Traits::SharedStorage& smem,
                           uint32_t& tile_count, uint32_t end, AccDkv& tdKrdK, AccDkv& tdVrdV,
                           MakeInput make_input) {
  if (tile_count < end) {
    mma_step_in_turns<Traits, false>(operands, smem, make_input(tile_count), tdKrdK, tdVrdV);
    ++tile_count;
    for (; tile_count < end; ++tile_count) {
      mma_step_in_turns<Traits, true>(operands, smem, make_input(tile_count), tdKrdK, tdVrdV);
    }
    Tensor tdQrdQ =
        partition_fragment_C(typename Traits::MmaDq{}, typename Traits::TileShapeDq{});
    issue_dq_when_full<Traits>(operands, smem, end - 1, tdQrdQ);
    finish_dq<Traits, 0>(smem, end - 1, tdQrdQ, hidden_mma_thread<Traits>());
  }
}

}  // namespace dash::bwd
