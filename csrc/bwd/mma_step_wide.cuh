// Stage 2b at head dims 192 and 256, one Q tile of one MMA warpgroup: s, p, dp, ds, then its share
// of the head dim in dv +=, dq, dk += (traits_wide.cuh).
// Reads the k, v, q, dout, lse_log2, dpsum stages in shared memory; exchanges p and ds with the
// other warpgroups through smem.ds; hands its share of dq to a writer warp. All waits on products
// are in mma_step.
// Invariant: a masked P is exactly 0 before it is stored.
#pragma once

#include "bwd/mma_step.cuh"
#include "bwd/scores_wide.cuh"

namespace dash::bwd {

// Operands of the five products as one warpgroup sees them, made once per CTA.
template <class Q, class K, class Do, class V, class Dot, class Qt, class Pds, class Ds, class Kt>
struct WideStepOperands {
  Q tSrQ;        // A of S                              (..., PIPE)
  K tSrK;        // B of S
  Do tdPrdO;     // A of dP                             (..., PIPE)
  V tdPrV;       // B of dP
  Dot tdVrdO;    // B of dV, or A of dV^T               (..., PIPE)
  Qt tdKrQ;      // B of dK, or A of dK^T               (..., PIPE)
  Pds tdKVrPdS;  // A of dV and dK, or B of dV^T, dK^T  (..., PIPE)  P and dS take turns
  Ds tdQrdS;     // A of dQ                             (..., PIPE)  likewise
  Kt tdQrK;      // B of dQ                             (.., parts, ..)
};

template <class... Operands>
WideStepOperands(Operands...) -> WideStepOperands<Operands...>;

template <class Traits>
  requires(Traits::kIsWide)
CUTE_DEVICE auto make_step_operands(typename Traits::SharedStorage& smem, int thread) {
  SmemTensors<Traits> const tensors{smem};
  int const first_thread = uniform_first_thread(thread);
  auto const sdp = typename Traits::MmaSdp{}.get_slice(first_thread);
  auto const dkv = typename Traits::MmaDkv{}.get_slice(first_thread);
  auto const dq = typename Traits::MmaDq{}.get_slice(first_thread);
  auto const dkv_operands = [&] {
    if constexpr (Traits::Products::kDkvIsTransposed) {
      return cute::make_tuple(dkv.partition_fragment_A(tensors.dout_t()),
                              dkv.partition_fragment_A(tensors.qt()),
                              dkv.partition_fragment_B(tensors.ds_t()));
    } else {
      return cute::make_tuple(dkv.partition_fragment_B(tensors.dout_t()),
                              dkv.partition_fragment_B(tensors.qt()),
                              dkv.partition_fragment_A(tensors.ds_t()));
    }
  }();
  return WideStepOperands{sdp.partition_fragment_A(tensors.q()),
                          sdp.partition_fragment_B(tensors.k()),
                          sdp.partition_fragment_A(tensors.dout()),
                          sdp.partition_fragment_B(tensors.v()),
                          get<0>(dkv_operands),
                          get<1>(dkv_operands),
                          get<2>(dkv_operands),
                          dq.partition_fragment_A(tensors.ds()),
                          dq.partition_fragment_B(tensors.kt())};
}

// This warpgroup's keys of P or dS, rounded, -> tile `index` of smem.ds.
template <class Traits, class Acc>
CUTE_DEVICE void store_p_or_ds(typename Traits::SharedStorage& smem, Acc const& accumulator,
                               int index, int thread) {
  using Element = typename Traits::Element;
  Tensor rounded = convert_to<Element>(accumulator);
  Tensor sPdS = as_position_independent_swizzle_tensor(SmemTensors<Traits>{smem}.ds());
  auto const copy_pds =
      make_tiled_copy_C(Copy_Atom<SM90_U16x8_STSM_T, Element>{}, typename Traits::MmaSdp{});
  auto const slice = copy_pds.get_thread_slice(thread);
  copy(copy_pds, slice.retile_S(rounded), slice.partition_D(sPdS)(_, _, _, index));
}

// dV += P^T dO or dK += dS^T Q, or their transposes. `tile` is dO's or Q's operand of one stage.
template <class Traits, class Tile, class Pds, class Acc>
CUTE_DEVICE void issue_dkv(Tile const& tile, Pds const& p_or_ds, Acc& accumulator) {
  typename Traits::MmaDkv mma;
  if constexpr (Traits::Products::kDkvIsTransposed) {
    gemm_issue<Accumulate::kAdd>(mma, tile, p_or_ds, accumulator);
  } else {
    gemm_issue<Accumulate::kAdd>(mma, p_or_ds, tile, accumulator);
  }
}

// The columns of V's width in an operand of dP: (MMA, MMA_M or MMA_N, D of V / 16).
template <class Traits, class Operand>
CUTE_DEVICE auto columns_of_v(Operand const& operand) {
  if constexpr (Traits::kHeadDimV == Traits::kHeadDim) {
    return operand;
  } else {
    auto const layout = operand.layout();
    auto const blocks = composition(get<2>(layout), Layout<Int<Traits::kHeadDimV / 16>>{});
    return make_tensor(operand.data(), make_layout(get<0>(layout), get<1>(layout), blocks));
  }
}

// Whether this warpgroup's share of dV has columns that V has.
template <class Traits>
CUTE_DEVICE bool has_share_of_dv(int thread) {
  if constexpr (Traits::kHeadDimV == Traits::kHeadDim) {
    return true;
  } else {
    constexpr int kColumns = Traits::kHeadDim / Traits::kNumMmaWarpgroups;
    static_assert(Traits::kHeadDimV % kColumns == 0);
    return uniform_first_thread(thread) / 128 * kColumns < Traits::kHeadDimV;
  }
}

// One part of dQ: the columns that one instruction of each warpgroup computes.
template <class Traits, class Operands, class Acc>
CUTE_DEVICE void issue_dq_part(Operands const& operands, Acc& tdQrdQ, int index_ds, int part) {
  typename Traits::MmaDq mma;
  Tensor tdQrK = rematerialize(operands.tdQrK)(_, part, _);
  auto const layout = make_layout(get<0>(tdQrK.layout()), Layout<_1, _0>{}, get<1>(tdQrK.layout()));
  gemm_issue<Accumulate::kZeroFirst>(mma, rematerialize(operands.tdQrdS)(_, _, _, index_ds),
                                     make_tensor(tdQrK.data(), layout), tdQrdQ);
}

template <class Traits, class Operands, class AccDkv>
  requires(Traits::kIsWide)
CUTE_DEVICE void mma_step(Operands const& operands, typename Traits::SharedStorage& smem,
                          StepInput const& input, AccDkv& tdKrdK, AccDkv& tdVrdV) {
  auto const state_q = RingState<Traits::kStagesQ>::at(input.tile_count);
  auto const state_do = RingState<Traits::kStagesDo>::at(input.tile_count);
  int const index_p = 2 * (input.tile_count % Traits::kStagesDs);
  int const index_ds = index_p + 1;
  int const thread = hidden_mma_thread<Traits>();
  typename Traits::MmaSdp mma_sdp;
  using TileSdp = typename Traits::AccumulatorShapeSdp;

  Tensor tSrS = partition_fragment_C(mma_sdp, TileSdp{});
  Tensor tdPrdP = partition_fragment_C(mma_sdp, TileSdp{});
  // Arrives: TMA's bytes. Waits: every MMA thread. Protects: q, lse_log2 and mask of this stage.
  consumer_wait(smem.ring_q, state_q);
  gemm_issue<Accumulate::kZeroFirst>(mma_sdp,
                                     rematerialize(operands.tSrQ)(_, _, _, state_q.stage),
                                     rematerialize(operands.tSrK), tSrS);
  // Arrives: TMA's bytes. Waits: every MMA thread. Protects: dout and dpsum of this stage.
  consumer_wait(smem.ring_do, state_do);
  gemm_issue<Accumulate::kZeroFirst>(
      mma_sdp, columns_of_v<Traits>(rematerialize(operands.tdPrdO)(_, _, _, state_do.stage)),
      columns_of_v<Traits>(rematerialize(operands.tdPrV)), tdPrdP);
  gemm_wait<1>(tSrS);
  compute_p_by_rows<Traits>(tSrS, smem.lse_log2[state_q.stage], input.scores, thread);
  TileMask const& mask = Traits::kPublishesMask ? smem.mask[state_q.stage] : input.mask;
  if (mask.is_needed) {
    mask_p_by_rows<Traits>(tSrS, mask, thread);
  }
  if constexpr (Traits::kStagesDs == 1) {
    // Arrives and waits: all MMA threads, each with its own products of the previous tile done.
    // Protects: P and dS of the previous tile from being overwritten while a product reads them.
    // With two stages kDsReady protects them: a thread that passes it knows that all products of
    // the tile before are done, and writes next where those read.
    named_barrier_sync(BwdBarrier::kDsFree, Traits::kNumMmaThreads);
  }
  store_p_or_ds<Traits>(smem, tSrS, index_p, thread);
  gemm_wait<0>(tdPrdP);
  compute_ds_by_rows<Traits>(
      tdPrdP, tSrS, {smem.dpsum[state_do.stage], smem.lse_log2[state_q.stage], input.scores},
      thread);
  store_p_or_ds<Traits>(smem, tdPrdP, index_ds, thread);
  // Arrives and waits: all MMA threads, each after its own generic -> async proxy fence, so that
  // the products read the whole P and dS.
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
  named_barrier_sync(BwdBarrier::kDsReady, Traits::kNumMmaThreads);

  // Tuning: dV first and waited for before dK is issued, because dout has one stage only: its next
  // tile is fetched under the other products. dQ before dV cost 18 % at head dim 192, full mask
  // (H200).
  Tensor tdQrdQ = partition_fragment_C(typename Traits::MmaDq{}, typename Traits::PartShapeDq{});
  if (has_share_of_dv<Traits>(thread)) {
    issue_dkv<Traits>(rematerialize(operands.tdVrdO)(_, _, _, state_do.stage),
                      rematerialize(operands.tdKVrPdS)(_, _, _, index_p), tdVrdV);
  }
  issue_dq_part<Traits>(operands, tdQrdQ, index_ds, 0);
  gemm_wait<1>(tdVrdV);
  // Arrives: each MMA warp. Waits: the load warp, before it refills the stage.
  consumer_release(smem.ring_do, state_do);
  issue_dkv<Traits>(rematerialize(operands.tdKrQ)(_, _, _, state_q.stage),
                    rematerialize(operands.tdKVrPdS)(_, _, _, index_ds), tdKrdK);
  acquire_dq_stage<Traits>(smem, input.tile_count, thread);
  gemm_wait<1>(tdQrdQ);
  hand_over_dq<Traits>(smem, tdQrdQ, input.tile_count, thread);
  if constexpr (Traits::kDqParts > 1) {
    issue_dq_part<Traits>(operands, tdQrdQ, index_ds, 1);
    gemm_wait<1>(tdKrdK);
    consumer_release(smem.ring_q, state_q);
    acquire_dq_stage<Traits>(smem, input.tile_count, thread, 1);
    gemm_wait<0>(tdQrdQ);
    hand_over_dq<Traits>(smem, tdQrdQ, input.tile_count, thread);
  } else {
    gemm_wait<0>(tdKrdK);
    consumer_release(smem.ring_q, state_q);
  }
}

}  // namespace dash::bwd
