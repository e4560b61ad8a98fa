// Stage 2b, one Q tile of one MMA warpgroup: s, p, dp, ds, dv +=, dq, dk +=. mma_step_in_turns.cuh
// does the same in another order, from the same parts.
// Reads the k, v, q, dout, lse_log2, dpsum stages in shared memory; adds to the dk and dv
// accumulators; hands the dq tile to a writer warp. All waits on products are in mma_step and in
// make_p_and_ds, so that the overlap of tensor cores and exponentials can be read in one screen.
#pragma once

#include "bwd/mma_operands.cuh"
#include "bwd/scores.cuh"
#include "bwd/traits.cuh"
#include "common/layout.cuh"
#include "common/named_barrier.cuh"
#include "common/wgmma.cuh"

namespace dash::bwd {

template <class Traits, class Operands, class Acc>
CUTE_DEVICE void issue_dq(Operands const& operands, Acc& tdQrdQ, int stage) {
  typename Traits::MmaDq mma;
  gemm_issue<Accumulate::kZeroFirst>(mma, rematerialize(operands.tdQrdS)(_, _, _, stage),
                                     rematerialize(operands.tdQrK), tdQrdQ);
}

// Waits until this warpgroup may write the stage of a part of its dQ tile.
template <class Traits>
CUTE_DEVICE void acquire_dq_stage(typename Traits::SharedStorage& smem, uint32_t tile_count,
                                  int thread, int part = 0) {
  int const warpgroup = thread / 128;
  // The part that had this stage before.
  uint32_t const previous = part > 0 ? tile_count : tile_count - Traits::kStagesDq;
  int const previous_part = part > 0 ? part - 1 : Traits::kDqParts - 1;
  if (part > 0 || tile_count >= Traits::kStagesDq) {
    // Arrives: the writer lane (1) of the part that had this stage. Waits: this warpgroup.
    // Protects: the stage from being overwritten while the copy engine reads it.
    cutlass::arch::ClusterBarrier::wait(
        &smem.dq_empty[previous % kNumDqWriters][warpgroup],
        (previous / kNumDqWriters * Traits::kDqParts + previous_part) % 2);
  }
}

// This warpgroup's share of a part of the dQ tile -> shared memory, in register order (postprocess
// undoes it): 16-byte pieces, thread fastest, so that no two lanes meet in a bank.
template <class Traits, class Acc>
CUTE_DEVICE void hand_over_dq(typename Traits::SharedStorage& smem, Acc const& tdQrdQ,
                              uint32_t tile_count, int thread) {
  static_assert(decltype(size(tdQrdQ))::value * 128 == Traits::kDqFloatsPerPart);
  int const warpgroup = thread / 128;
  float4* const target =
      reinterpret_cast<float4*>(smem.dq[tile_count % Traits::kStagesDq][warpgroup]) +
      thread % 128;
  CUTE_UNROLL
  for (int i = 0; i < size(tdQrdQ); i += 4) {
    target[(i / 4) * 128] =
        make_float4(tdQrdQ(i), tdQrdQ(i + 1), tdQrdQ(i + 2), tdQrdQ(i + 3));
  }
  // Arrives: each warp (4) of the warpgroup. Waits: the writer of this Q tile. Guarantee: the
  // arrive releases the stores of all lanes, which __syncwarp orders before it.
  // Tuning: the generic -> async proxy fence is the writer lane's, after its wait. Here it would
  // keep every MMA warp from its next tile until the stores have landed.
  asm volatile("" ::: "memory");
  __syncwarp();
  if (thread % 32 == 0) {
    cutlass::arch::ClusterBarrier::arrive(&smem.dq_full[tile_count % kNumDqWriters][warpgroup]);
  }
}

struct StepInput {
  TileMask mask;  // unless it is published with q
  ScoreScale const& scores;
  uint32_t tile_count;  // Q tiles this CTA has seen before this one
};

// This thread among the MMA threads.
// Tuning: hidden from the optimiser, so that addresses derived from it are recomputed in a few
// instructions instead of being kept, and spilled, across the loop over Q tiles.
template <class Traits>
CUTE_DEVICE int hidden_mma_thread() {
  int thread = threadIdx.x - kFirstMmaWarp * 32;
  asm volatile("" : "+r"(thread));
  __builtin_assume(0 <= thread && thread < Traits::kNumMmaThreads);
  return thread;
}

// Warpgroups in turns: S and dP are issued by one at a time.
template <class Traits>
CUTE_DEVICE BwdBarrier scores_turn_of(int warpgroup) {
  return static_cast<BwdBarrier>(static_cast<int>(BwdBarrier::kScoresTurn) + warpgroup);
}

// Arrives: the other MMA warpgroup (128 threads), in pass_scores_turn. Waits: this one (128).
// Protects nothing: it keeps the warpgroups half a tile apart.
template <class Traits>
CUTE_DEVICE void wait_for_scores_turn(int warpgroup) {
  named_barrier_sync(scores_turn_of<Traits>(warpgroup), Traits::kNumMmaThreads);
}

// Tuning: `warpgroup` is a constant, or from a hidden thread index (hidden_mma_thread). From
// threadIdx itself the compiler (nvcc 13.0) takes warps for divergent and keeps descriptors and
// counters in vector registers: 10 % of the whole backward.
template <class Traits>
CUTE_DEVICE void pass_scores_turn(int warpgroup) {
  named_barrier_arrive(scores_turn_of<Traits>(1 - warpgroup), Traits::kNumMmaThreads);
}

// The products S and dP of a tile, issued.
template <class Traits, class Operands, class Acc>
CUTE_DEVICE void issue_scores(Operands const& operands, typename Traits::SharedStorage& smem,
                              uint32_t tile_count, int thread, Acc& tSrS, Acc& tdPrdP) {
  typename Traits::MmaSdp mma;
  auto const state_q = RingState<Traits::kStagesQ>::at(tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(tile_count);
  // Tuning: descriptors are made before the waits, which hide them.
  Tensor tSrK = rematerialize(operands.tSrK);
  Tensor tSrQ = rematerialize(operands.tSrQ);
  // Arrives: TMA's bytes. Waits: every MMA thread. Protects: q, lse_log2 and mask of this stage.
  consumer_wait(smem.ring_q, state_q);
  if constexpr (Traits::kIsInTurns) {
    wait_for_scores_turn<Traits>(thread / 128);
  }
  gemm_issue<Accumulate::kZeroFirst>(mma, tSrK, tSrQ(_, _, _, state_q.stage), tSrS);
  Tensor tdPrV = rematerialize(operands.tdPrV);
  Tensor tdPrdO = rematerialize(operands.tdPrdO);
  // Arrives: TMA's bytes. Waits: every MMA thread. Protects: dout and dpsum of this stage.
  consumer_wait(smem.ring_do, state_do);
  gemm_issue<Accumulate::kZeroFirst>(mma, tdPrV, tdPrdO(_, _, _, state_do.stage), tdPrdP);
}

// dS^T, rounded -> dS in shared memory, transposed on the way.
template <class Traits, class Rounded>
CUTE_DEVICE void publish_ds(typename Traits::SharedStorage& smem, Rounded const& rdS, int stage,
                            int thread) {
  Tensor sdSt = as_position_independent_swizzle_tensor(SmemTensors<Traits>{smem}.ds_t());
  auto const copy_ds = make_tiled_copy_C(
      Copy_Atom<SM90_U16x8_STSM_T, typename Traits::Element>{}, typename Traits::MmaSdp{});
  auto const slice = copy_ds.get_thread_slice(thread);
  copy(copy_ds, slice.retile_S(rdS), slice.partition_D(sdSt)(_, _, _, stage));
}

// P^T and dS^T of a tile, rounded, from the products that issue_scores has issued; dS in smem.ds
// too, once `wait_for_stage` has returned.
template <class Traits, class Acc, class Rounded, class WaitForStage>
CUTE_DEVICE void make_p_and_ds(typename Traits::SharedStorage& smem, StepInput const& input,
                               Acc& tSrS, Acc& tdPrdP, Rounded& rP, Rounded& rdS, int thread,
                               WaitForStage wait_for_stage) {
  auto const state_q = RingState<Traits::kStagesQ>::at(input.tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(input.tile_count);
  TileMask const& mask = Traits::kPublishesMask ? smem.mask[state_q.stage] : input.mask;
  bool const is_masked = mask.is_needed;
  gemm_wait<1>(tSrS);
  if (!Traits::kIsGeneral && is_masked) {
    mask_scores<Traits>(tSrS, mask, thread);
  }
  compute_p<Traits>(tSrS, smem.lse_log2[state_q.stage], input.scores, thread);
  if (Traits::kIsGeneral && is_masked) {
    mask_p(tSrS, mask, thread);
  }
  gemm_wait<0>(tdPrdP);
  wait_for_stage();
  compute_ds<Traits>(tdPrdP, tSrS,
                     {smem.dpsum[state_do.stage], smem.lse_log2[state_q.stage], input.scores},
                     thread);
  round_to(tSrS, rP);
  round_to(tdPrdP, rdS);
  publish_ds<Traits>(smem, rdS, input.tile_count % Traits::kStagesDs, thread);
}

template <class Traits>
CUTE_DEVICE void wait_for_ds() {
  // Arrives and waits: all MMA threads (256), each after its own generic -> async proxy fence, so
  // that the product dQ reads the whole dS. With two dS stages the same barrier also protects the
  // tile before last: a thread comes here only after its product dQ of the previous tile is done.
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
  named_barrier_sync(BwdBarrier::kDsReady, Traits::kNumMmaThreads);
}

template <class Traits, class Operands, class AccDkv>
  requires(!Traits::kIsWide && !Traits::kIsInTurns)
CUTE_DEVICE void mma_step(Operands const& operands, typename Traits::SharedStorage& smem,
                          StepInput const& input, AccDkv& tdKrdK, AccDkv& tdVrdV) {
  using Element = typename Traits::Element;
  // Tuning: the rings advance together, so one counter is their state; three states spill.
  auto const state_q = RingState<Traits::kStagesQ>::at(input.tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(input.tile_count);
  int const thread = hidden_mma_thread<Traits>();
  typename Traits::MmaDkv mma_dkv;
  using TileSdp = typename Traits::AccumulatorShapeSdp;

  Tensor tSrS = partition_fragment_C(typename Traits::MmaSdp{}, TileSdp{});
  Tensor tdPrdP = partition_fragment_C(typename Traits::MmaSdp{}, TileSdp{});
  issue_scores<Traits>(operands, smem, input.tile_count, thread, tSrS, tdPrdP);
  Tensor rP = make_tensor<Element>(tSrS.layout());
  Tensor rdS = make_tensor<Element>(tSrS.layout());
  // Tuning: dS is stored before the product dV is issued, so that the stores run under the last
  // exponentials and roundings: 3 to 9 % of the whole backward (H200).
  make_p_and_ds<Traits>(smem, input, tSrS, tdPrdP, rP, rdS, thread, [] {});
  Tensor tdVrP = make_tensor(rP.data(), accumulator_as_a_operand(rP.layout()));
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdVrP, rematerialize(operands.tdVrdO)(_, _, _, state_do.stage), tdVrdV);
  wait_for_ds<Traits>();

  Tensor tdQrdQ = partition_fragment_C(typename Traits::MmaDq{}, typename Traits::TileShapeDq{});
  issue_dq<Traits>(operands, tdQrdQ, input.tile_count % Traits::kStagesDs);
  gemm_wait<1>(tdVrdV);
  // Arrives: each MMA warp (8). Waits: the load warp, before it refills the stage.
  consumer_release(smem.ring_do, state_do);

  Tensor tdKrdS = make_tensor(rdS.data(), accumulator_as_a_operand(rdS.layout()));
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdKrdS, rematerialize(operands.tdKrQ)(_, _, _, state_q.stage), tdKrdK);
  // Tuning: before the wait for dQ, so that it runs under the products.
  acquire_dq_stage<Traits>(smem, input.tile_count, thread);
  gemm_wait<1>(tdQrdQ);
  hand_over_dq<Traits>(smem, tdQrdQ, input.tile_count, thread);
  gemm_wait<0>(tdKrdK);
  consumer_release(smem.ring_q, state_q);
}

// The Q tiles of a work tile, until `tile_count` is `end`; make_input(tile_count) is each one's
// input.
template <class Traits, class Operands, class AccDkv, class MakeInput>
  requires(!Traits::kIsInTurns)
CUTE_DEVICE void mma_steps(Operands const& operands, typename Traits::SharedStorage& smem,
                           uint32_t& tile_count, uint32_t end, AccDkv& tdKrdK, AccDkv& tdVrdV,
                           MakeInput make_input) {
  for (; tile_count < end; ++tile_count) {
    mma_step<Traits>(operands, smem, make_input(tile_count), tdKrdK, tdVrdV);
  }
}

}  // namespace dash::bwd
