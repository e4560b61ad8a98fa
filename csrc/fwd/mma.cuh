// Stage: products and softmax. Runs on the MMA warpgroups, each with 64 rows of the CTA's Q tile.
// Reads q, k, v, items (shared); leaves O and the softmax rows in registers for the epilogue.
// The product S of the next KV tile is issued before O += P V of the present one, so that both run
// under a softmax: this warpgroup's own for O, and the other warpgroups' through the issue turn.
// Invariant: all MMA warpgroups take the same number of turns per item, so turns always balance.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/cutlass.h>

#include "common/wgmma.cuh"
#include "fwd/epilogue.cuh"
#include "fwd/mask.cuh"
#include "fwd/traits.cuh"
#include "fwd/work_items.cuh"

namespace dash::fwd {

// Positions in the rings that the MMA warps read.
template <class Traits>
struct MmaRings {
  RingState<1> q;
  RingState<Traits::kStages> k;
  RingState<Traits::kStages> v;
};

// The turn to issue products goes round the MMA warpgroups. Named barrier `warpgroup`: arrive the
// 128 threads of the warpgroup before it in the round, wait its own 128. It protects no memory: it
// only keeps two warpgroups from issuing at once, so that one's softmax meets the other's products.
CUTE_DEVICE void wait_issue_turn(int warpgroup) {
  cutlass::arch::NamedBarrier::sync(256, static_cast<uint32_t>(warpgroup));
}

template <class Traits>
CUTE_DEVICE void pass_issue_turn(int warpgroup) {
  int const next = warpgroup + 1 == Traits::kNumMmaWarpgroups ? 0 : warpgroup + 1;
  cutlass::arch::NamedBarrier::arrive(256, static_cast<uint32_t>(next));
}

// Whether a KV tile is masked; kAsked: found out at run time.
enum class TileMask { kNone, kMasked, kAsked };

// One work item with at least one KV tile: O and the softmax rows of this warpgroup's 64 rows.
template <class Traits, class TensorO>
CUTE_DEVICE void mma_item(FwdKernelArgs<Traits> const& args,
                          typename Traits::SharedStorage& smem,
                          RingState<Traits::kItemStages> item_state, MmaRings<Traits>& rings,
                          typename Traits::Softmax& softmax, TensorO& tOrO) {
  using Element = typename Traits::Element;
  int const warpgroup = cutlass::canonical_warp_group_idx() - 1;
  WorkItem const item = read_item<Traits>(smem, item_state);
  int const first_row = item.m_block * Traits::kBlockM + warpgroup * Traits::kRowsPerWarpgroup;
  // Tuning: the lengths are read where they are used, so that they hold no registers in between.
  auto const grid = [&] { return item_grid(args, read_sequence(args, smem, item_state)); };
  int const n_begin = Traits::kIsGeneral ? grid().n_begin(item.m_block) : 0;

  typename Traits::TiledMmaQk mma_qk;
  typename Traits::TiledMmaPv mma_pv;
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
  Tensor sVt = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutVt{});
  Tensor sQ_rows = local_tile(sQ, Shape<_64, Int<Traits::kHeadDim>>{},
                              make_coord(warpgroup, _0{}));     // (64, D)
  // Shared-memory operands are descriptors, the same for every thread: slice 0 keeps them uniform.
  Tensor tSrQ = mma_qk.get_slice(0).partition_fragment_A(sQ_rows);  // (MMA, 1, D/16)
  Tensor tSrK = mma_qk.get_slice(0).partition_fragment_B(sK);       // (MMA, 1, D/16, PIPE)
  Tensor tOrV = mma_pv.get_slice(0).partition_fragment_B(sVt);      // (MMA, 1, BLK_N/16, PIPE)
  Tensor tSrS = partition_fragment_C(mma_qk, Shape<_64, Int<Traits::kBlockN>>{});
  auto const layout_p = accumulator_as_a_operand(tSrS.layout());
  Tensor tOrP = make_tensor<Element>(layout_p);                     // (MMA, 1, BLK_N/16)

  // full barriers: arrive the load lane and TMA's bytes; each MMA thread waits; a stage may be read
  // after it. consumer_release: one arrive per MMA warp; the load lane waits for all of them; the
  // product that read the stage is complete (gemm_wait), so TMA may overwrite it.
  int n_block = item.n_end - 1;
  // Tuning: KV tiles that none of this warpgroup's rows sees are left out: those on the diagonal
  // that its rows are before, and all but one if the sequence has no such rows. No bit depends on
  // it: masked scores would add 0 to everything.
  int first_seen = n_block;
  if constexpr (Traits::kLeavesOutTiles) {
    first_seen = schedule::max_int(
        schedule::min_int(last_seen_tile<Traits>(grid(), first_row), n_block), n_begin);
  }
  bool const joins_late = n_block > first_seen;
  for (; n_block > first_seen; --n_block) {
    consumer_wait(smem.k_ring, rings.k);
    consumer_release(smem.k_ring, rings.k);
    rings.k.advance();
    consumer_wait(smem.v_ring, rings.v);
    consumer_release(smem.v_ring, rings.v);
    rings.v.advance();
    // The turns of the steps that it leaves out. The last of them is for S below.
    if (n_block > first_seen + 1) {
      wait_issue_turn(warpgroup);
      pass_issue_turn<Traits>(warpgroup);
    }
  }
  consumer_wait(smem.q_ring, rings.q);
  consumer_wait(smem.k_ring, rings.k);
  if (joins_late) {
    wait_issue_turn(warpgroup);
  }
  gemm_issue<Accumulate::kZeroFirst>(mma_qk, tSrQ, tSrK(_, _, _, rings.k.stage), tSrS);
  if (joins_late) {
    pass_issue_turn<Traits>(warpgroup);
  }
  gemm_wait<0>(tSrS);
  consumer_release(smem.k_ring, rings.k);
  rings.k.advance();
  // The last KV tile may end beyond seqlen_k, so the first that is seen is masked under every mask.
  cap_scores(args, tSrS);
  mask_scores<Traits>(grid(), first_row, n_block, tSrS);
  softmax.begin(tSrS);
  round_to(tSrS, tOrP);
  --n_block;

  UnmaskedTiles const unmasked = unmasked_tiles<Traits>(grid(), item.m_block);
  auto const step = [&](auto tile_mask) {
    constexpr TileMask kTileMask = decltype(tile_mask)::value;
    consumer_wait(smem.k_ring, rings.k);
    wait_issue_turn(warpgroup);
    gemm_issue<Accumulate::kZeroFirst>(mma_qk, tSrQ, tSrK(_, _, _, rings.k.stage), tSrS);
    consumer_wait(smem.v_ring, rings.v);
    gemm_issue<Accumulate::kAdd>(mma_pv, tOrP, tOrV(_, _, _, rings.v.stage), tOrO);
    pass_issue_turn<Traits>(warpgroup);
    gemm_wait<1>(tSrS);
    consumer_release(smem.k_ring, rings.k);
    rings.k.advance();
    cap_scores(args, tSrS);
    if (kTileMask == TileMask::kMasked ||
        (kTileMask == TileMask::kAsked && !unmasked.contains(n_block))) {
      mask_scores<Traits>(grid(), first_row, n_block, tSrS);
    }
    softmax.update(tSrS, [&](bool rescales) {
      // Correctness: the product is complete before O is rescaled and P overwritten. The wait
      // stands outside of the branch, because all warps of a warpgroup must come to the same one.
      gemm_wait<0>(tOrO);
      consumer_release(smem.v_ring, rings.v);
      rings.v.advance();
      if (!Traits::kRescalesAlways && rescales) {
        softmax.rescale(tOrO);
      }
    });
    round_to(tSrS, tOrP);
    if constexpr (Traits::kRescalesAlways) {
      softmax.rescale(tOrO);
    }
    --n_block;
  };

  if constexpr (!Traits::kIsGeneral && Traits::kMask == MaskKind::kCausal) {
    CUTE_NO_UNROLL
    while (n_block >= unmasked.end) {
      step(std::integral_constant<TileMask, TileMask::kMasked>{});
    }
  }
  // Tuning: one loop where the mask may hide keys on both sides; a branch a tile costs less than
  // the registers of three loops.
  constexpr TileMask kLoopMask = Traits::kIsGeneral ? TileMask::kAsked : TileMask::kNone;
  CUTE_NO_UNROLL
  while (n_block >= n_begin) {
    step(std::integral_constant<TileMask, kLoopMask>{});
  }

  // Every S product has completed: the next item's Q may be loaded.
  consumer_release(smem.q_ring, rings.q);
  rings.q.advance();
  consumer_wait(smem.v_ring, rings.v);
  gemm_issue<Accumulate::kAdd>(mma_pv, tOrP, tOrV(_, _, _, rings.v.stage), tOrO);
  softmax.finish();
  gemm_wait<0>(tOrO);
  consumer_release(smem.v_ring, rings.v);
  rings.v.advance();
}

// The MMA role: until the load warp publishes the end.
template <class Traits>
CUTE_DEVICE void mma_loop(FwdKernelArgs<Traits> const& args,
                          typename Traits::SharedStorage& smem) {
  int const warpgroup = cutlass::canonical_warp_group_idx() - 1;
  if (warpgroup == Traits::kNumMmaWarpgroups - 1) {
    pass_issue_turn<Traits>(warpgroup);  // the first turn is warpgroup 0's
  }
  MmaRings<Traits> rings;
  RingState<Traits::kItemStages> item_state;
  typename Traits::Softmax softmax(args.score_scale * static_cast<float>(M_LOG2E));
  typename Traits::TiledMmaPv mma_pv;
  Tensor tOrO = partition_fragment_C(mma_pv, Shape<_64, Int<Traits::kHeadDim>>{});
  while (true) {
    // item_ring.full: arrives the load lane (1); protects items[stage] while it is written.
    consumer_wait(smem.item_ring, item_state);
    WorkItem const item = read_item<Traits>(smem, item_state);
    if (item.m_block < 0) {
      break;
    }
    clear(tOrO);
    softmax.reset();
    if (item.n_end > 0) {
      mma_item(args, smem, item_state, rings, softmax, tOrO);
    }
    // Tuning: the item is read again, so that its fields hold no registers during the products.
    store_item(args, read_item<Traits>(smem, item_state), read_sequence(args, smem, item_state),
               softmax, tOrO);
    // item_ring.empty: one arrive per MMA warp; the load lane waits before it overwrites items.
    consumer_release(smem.item_ring, item_state);
    item_state.advance();
  }
  if (warpgroup == 0) {
    wait_issue_turn(warpgroup);  // takes the turn that is left over: the barrier ends empty
  }
}

}  // namespace dash::fwd
