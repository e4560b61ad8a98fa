// Stage 2b, one Q tile of one MMA warpgroup: s, p, dp, ds, dv +=, dq, dk +=.
// Reads the k, v, q, dout, lse_log2, dpsum stages in shared memory; adds to the dk and dv
// accumulators; hands the dq tile to a writer warp. All waits on products are in mma_step, so that
// the overlap of tensor cores and exponentials can be read in one screen.
#pragma once

#include "bwd/scores.cuh"
#include "bwd/traits.cuh"
#include "common/layout.cuh"
#include "common/named_barrier.cuh"
#include "common/wgmma.cuh"

namespace dash::bwd {

// Operands of the five products as one warpgroup sees them, made once per CTA.
template <class K, class V, class Q, class Do, class Dot, class Qt, class Ds, class Kt>
struct StepOperands {
  K tSrK;              // A of S^T
  V tdPrV;             // A of dP^T
  Q tSrQ;              // B of S^T                          (..., PIPE)
  Do tdPrdO;           // B of dP^T                         (..., PIPE)
  Dot tdVrdO;          // B of dV                           (..., PIPE)
  Qt tdKrQ;            // B of dK                           (..., PIPE)
  Ds tdQrdS;           // A of dQ, or B of dQ^T             (..., PIPE)
  Kt tdQrK;            // B of dQ, or A of dQ^T
};

template <class... Operands>
StepOperands(Operands...) -> StepOperands<Operands...>;

// dS^T registers -> dS in shared memory, transposed on the way.
template <class Traits, class RegisterDs>
CUTE_DEVICE void publish_ds(typename Traits::SharedStorage& smem, RegisterDs const& rdS, int stage,
                            int thread) {
  Tensor sdSt = as_position_independent_swizzle_tensor(
      make_tensor(make_smem_ptr(smem.ds), typename Traits::SmemLayoutDst{}));
  auto const copy_ds = make_tiled_copy_C(
      Copy_Atom<SM90_U16x8_STSM_T, typename Traits::Element>{}, typename Traits::MmaSdp{});
  auto const slice = copy_ds.get_thread_slice(thread);
  copy(copy_ds, slice.retile_S(rdS), slice.partition_D(sdSt)(_, _, _, stage));
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

template <class Traits, class Operands, class Acc>
CUTE_DEVICE void issue_dq(Operands const& operands, Acc& tdQrdQ, int stage) {
  typename Traits::MmaDq mma;
  if constexpr (Traits::kDqIsTransposed) {
    gemm_issue<Accumulate::kZeroFirst>(mma, rematerialize(operands.tdQrK),
                                       rematerialize(operands.tdQrdS)(_, _, _, stage), tdQrdQ);
  } else {
    gemm_issue<Accumulate::kZeroFirst>(mma, rematerialize(operands.tdQrdS)(_, _, _, stage),
                                       rematerialize(operands.tdQrK), tdQrdQ);
  }
}

// This warpgroup's share of a part of the dQ tile -> shared memory, in register order (postprocess
// undoes it): 16-byte pieces, thread fastest, so that no two lanes meet in a bank.
template <class Traits, class Acc>
CUTE_DEVICE void hand_over_dq(typename Traits::SharedStorage& smem, Acc const& tdQrdQ,
                              int tile_count, int thread, int part = 0) {
  static_assert(decltype(size(tdQrdQ))::value * 128 == Traits::kDqFloatsPerPart);
  int const warpgroup = thread / 128;
  // The part that had this stage before.
  int const previous = part > 0 ? tile_count : tile_count - Traits::kStagesDq;
  int const previous_part = part > 0 ? part - 1 : Traits::kDqParts - 1;
  if (previous >= 0) {
    // Arrives: the writer lane (1) of the part that had this stage. Waits: this warpgroup.
    // Protects: the stage from being overwritten while the copy engine reads it.
    cutlass::arch::ClusterBarrier::wait(
        &smem.dq_empty[previous % kNumDqWriters][warpgroup],
        (previous / kNumDqWriters * Traits::kDqParts + previous_part) % 2);
  }
  float4* const target =
      reinterpret_cast<float4*>(smem.dq[tile_count % Traits::kStagesDq][warpgroup]) +
      thread % 128;
  CUTE_UNROLL
  for (int i = 0; i < size(tdQrdQ); i += 4) {
    target[(i / 4) * 128] =
        make_float4(tdQrdQ(i), tdQrdQ(i + 1), tdQrdQ(i + 2), tdQrdQ(i + 3));
  }
  // Arrives: each warp (4) of the warpgroup, after every lane's generic -> async proxy fence.
  // Waits: the writer of this Q tile.
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  if (thread % 32 == 0) {
    cutlass::arch::ClusterBarrier::arrive(&smem.dq_full[tile_count % kNumDqWriters][warpgroup]);
  }
}

struct StepInput {
  TileMask mask;  // of (batch, seqlen) kernels; in others it is published with q
  ScoreScale const& scores;
  int tile_count;  // Q tiles this CTA has seen before this one
};

template <class Traits, class Operands, class AccDkv>
  requires(!Traits::kIsWide)
CUTE_DEVICE void mma_step(Operands const& operands, typename Traits::SharedStorage& smem,
                          StepInput const& input, AccDkv& tdKrdK, AccDkv& tdVrdV) {
  using Element = typename Traits::Element;
  // Tuning: the rings advance together, so one counter is their state; three states spill.
  auto const state_q = RingState<Traits::kStagesQ>::at(input.tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(input.tile_count);
  int const stage_ds = input.tile_count % Traits::kStagesDs;
  // Tuning: hidden from the optimiser, so that addresses derived from it are recomputed here in a
  // few instructions instead of being kept, and spilled, across the loop.
  int thread = threadIdx.x - kFirstMmaWarp * 32;
  asm volatile("" : "+r"(thread));
  typename Traits::MmaSdp mma_sdp;
  typename Traits::MmaDkv mma_dkv;
  using TileSdp = typename Traits::AccumulatorShapeSdp;

  Tensor tSrS = partition_fragment_C(mma_sdp, TileSdp{});
  Tensor tdPrdP = partition_fragment_C(mma_sdp, TileSdp{});
  // Arrives: TMA's bytes. Waits: every MMA thread. Protects: q and lse_log2 of this stage.
  consumer_wait(smem.ring_q, state_q);
  gemm_issue<Accumulate::kZeroFirst>(mma_sdp, rematerialize(operands.tSrK),
                                     rematerialize(operands.tSrQ)(_, _, _, state_q.stage), tSrS);
  consumer_wait(smem.ring_do, state_do);
  gemm_issue<Accumulate::kZeroFirst>(
      mma_sdp, rematerialize(operands.tdPrV),
      rematerialize(operands.tdPrdO)(_, _, _, state_do.stage), tdPrdP);
  gemm_wait<1>(tSrS);
  TileMask const& mask = Traits::kIsDense ? input.mask : smem.mask[state_q.stage];
  if (!Traits::kIsGeneral && mask.is_needed) {
    mask_scores<Traits>(tSrS, mask, thread);
  }
  compute_p<Traits>(tSrS, smem.lse_log2[state_q.stage], input.scores, thread);
  if (Traits::kIsGeneral && mask.is_needed) {
    mask_p(tSrS, mask, thread);
  }
  Tensor rP = make_tensor<Element>(tSrS.layout());
  if constexpr (Traits::kRoundsPEarly) {
    round_to(tSrS, rP);
  }
  gemm_wait<0>(tdPrdP);
  compute_ds<Traits>(tdPrdP, tSrS,
                     {smem.dpsum[state_do.stage], smem.lse_log2[state_q.stage], input.scores},
                     thread);
  if constexpr (!Traits::kRoundsPEarly) {
    round_to(tSrS, rP);
  }
  Tensor rdS = convert_to<Element>(tdPrdP);
  // Tuning: stored before the product dV is issued, so that the stores run under the last
  // exponentials and roundings: 3 to 9 % of the whole backward (H200).
  publish_ds<Traits>(smem, rdS, stage_ds, thread);
  Tensor tdVrP = make_tensor(rP.data(), accumulator_as_a_operand(rP.layout()));
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdVrP, rematerialize(operands.tdVrdO)(_, _, _, state_do.stage), tdVrdV);
  wait_for_ds<Traits>();

  Tensor tdQrdQ = partition_fragment_C(typename Traits::MmaDq{}, typename Traits::TileShapeDq{});
  issue_dq<Traits>(operands, tdQrdQ, stage_ds);
  gemm_wait<1>(tdVrdV);
  // Arrives: each MMA warp (8). Waits: the load warp, before it refills the stage.
  consumer_release(smem.ring_do, state_do);

  Tensor tdKrdS = make_tensor(rdS.data(), accumulator_as_a_operand(rdS.layout()));
  gemm_issue<Accumulate::kAdd>(
      mma_dkv, tdKrdS, rematerialize(operands.tdKrQ)(_, _, _, state_q.stage), tdKrdK);
  gemm_wait<1>(tdQrdQ);
  hand_over_dq<Traits>(smem, tdQrdQ, input.tile_count, thread);
  gemm_wait<0>(tdKrdK);
  consumer_release(smem.ring_q, state_q);
}

}  // namespace dash::bwd
