// Stage: products and softmax. Runs on the MMA warpgroups, each with 64 rows of the CTA's Q tile.
// Reads q, k, v, items (shared); leaves O and the softmax rows in registers for the epilogue.
// The product S of the next KV tile is issued before O += P V of the present one, so that both run
// under a softmax: this warpgroup's own for O, and the other warpgroups' through the issue turn.
// With three stages of K, a tile is exponentiated in the hope that the references of its rows will
// do (common/softmax.cuh). Whether they did is asked when the warpgroup meets next, for its next
// turn; until then the tile's K is kept, so that its scores can be computed again.
// Invariant: all MMA warpgroups take the same number of turns per item, so turns always balance.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/cutlass.h>

#include "common/inlined.hpp"
#include "common/wgmma.cuh"
#include "fwd/epilogue.cuh"
#include "fwd/mask.cuh"
#include "fwd/traits.cuh"
#include "fwd/work_items.cuh"

namespace dash::fwd {

// Positions in the rings that the MMA warps read. Of each,
//   full barriers: arrive the load lane and TMA's bytes; each MMA thread waits; a stage may be read
//   after it. consumer_release: one arrive per MMA warp; the load lane waits for all of them; the
//   product that read the stage is complete (gemm_wait), so TMA may overwrite it.
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

// The KV tile that a warpgroup begins with, of n_last down to n_begin.
// Tuning: those that none of its rows sees are left out: on the diagonal the ones that its rows are
// before, and all but one if the sequence has no such rows. No bit depends on it: masked scores
// would add 0 to everything.
template <class Traits>
CUTE_DEVICE int first_seen_tile(schedule::TileGrid const& grid, int first_row, int n_last,
                                int n_begin) {
  if constexpr (Traits::kLeavesOutTiles) {
    int const seen = last_seen_tile<Traits>(grid, first_row);
    return schedule::max_int(schedule::min_int(seen, n_last), n_begin);
  }
  return n_last;
}

// The KV tiles from n_last down to before first_seen, which none of the warpgroup's rows sees. If
// there is one, the turn for the product of first_seen is still to be taken.
template <class Traits>
CUTE_DEVICE void leave_out_tiles(typename Traits::SharedStorage& smem, MmaRings<Traits>& rings,
                                 int warpgroup, int n_last, int first_seen) {
  for (int n_block = n_last; n_block > first_seen; --n_block) {
    consumer_wait(smem.k_ring, rings.k);
    consumer_release(smem.k_ring, rings.k);
    rings.k.advance();
    consumer_wait(smem.v_ring, rings.v);
    consumer_release(smem.v_ring, rings.v);
    rings.v.advance();
    // The turns of the steps that it leaves out, but for the last of them.
    if (n_block > first_seen + 1) {
      wait_issue_turn(warpgroup);
      pass_issue_turn<Traits>(warpgroup);
    }
  }
}

// Operands of the products in shared memory: descriptors, the same for every thread. Slice 0 keeps
// them uniform.
template <class Q, class K, class V>
struct ItemOperands {
  Q tSrQ;  // (MMA, 1, D/16)
  K tSrK;  // (MMA, 1, D/16, PIPE)
  V tOrV;  // (MMA, 1, BLK_N/16, PIPE)
};

template <class Traits, int kHeadDimV>
CUTE_DEVICE auto make_item_operands(typename Traits::SharedStorage& smem, int warpgroup) {
  typename Traits::TiledMmaQk mma_qk;
  typename Traits::template TiledMmaPv<kHeadDimV> mma_pv;
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
  Tensor sVt = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutVt{});
  Tensor sQ_rows = local_tile(sQ, Shape<_64, Int<Traits::kHeadDim>>{},
                              make_coord(warpgroup, _0{}));     // (64, D)
  Tensor sVt_columns =
      local_tile(sVt, Shape<Int<kHeadDimV>, Int<Traits::kBlockN>, Int<Traits::kStages>>{},
                 make_coord(_0{}, _0{}, _0{}));                 // (D of V, BLK_N, PIPE)
  return ItemOperands{mma_qk.get_slice(0).partition_fragment_A(sQ_rows),
                      mma_qk.get_slice(0).partition_fragment_B(sK),
                      mma_pv.get_slice(0).partition_fragment_B(sVt_columns)};
}

// Whether a KV tile is masked; kAsked: found out at run time.
enum class TileMask { kNone, kMasked, kAsked };

// One work item with at least one KV tile: O and the softmax rows of this warpgroup's 64 rows.
template <class Traits, int kHeadDimV, class TensorO>
CUTE_DEVICE void mma_item(FwdKernelArgs<Traits> const& args,
                          typename Traits::SharedStorage& smem,
                          RingState<Traits::kItemStages> item_state, MmaRings<Traits>& rings,
                          OnlineSoftmax& softmax, TensorO& tOrO) {
  using Element = typename Traits::Element;
  int const warpgroup = cutlass::canonical_warp_group_idx() - 1;
  WorkItem const item = read_item<Traits>(smem, item_state);
  int const first_row = item.m_block * Traits::kBlockM + warpgroup * Traits::kRowsPerWarpgroup;
  // Tuning: the lengths are read where they are used, so that they hold no registers in between.
  auto const grid = [&] { return item_grid(args, read_sequence(args, smem, item_state)); };
  int const n_begin = Traits::kIsGeneral ? grid().n_begin(item.m_block) : 0;

  typename Traits::TiledMmaQk mma_qk;
  typename Traits::template TiledMmaPv<kHeadDimV> mma_pv;
  auto const operands = make_item_operands<Traits, kHeadDimV>(smem, warpgroup);
  Tensor tSrS = partition_fragment_C(mma_qk, Shape<_64, Int<Traits::kBlockN>>{});
  Tensor tOrP =
      make_tensor<Element>(accumulator_as_a_operand(tSrS.layout()));  // (MMA, 1, BLK_N/16)

  int n_block = first_seen_tile<Traits>(grid(), first_row, item.n_end - 1, n_begin);
  bool const joins_late = n_block < item.n_end - 1;
  leave_out_tiles<Traits>(smem, rings, warpgroup, item.n_end - 1, n_block);
  auto const issue_scores = [&](RingState<Traits::kStages> state) DASH_INLINED {
    gemm_issue<Accumulate::kZeroFirst>(mma_qk, operands.tSrQ,
                                      operands.tSrK(_, _, _, state.stage), tSrS);
  };
  // Scores to probabilities, with O and all that precedes the tile complete.
  auto const follow_and_exponentiate = [&](int block) DASH_INLINED {
    cap_scores(args, tSrS);
    mask_scores<Traits>(grid(), first_row, block, tSrS);
    softmax.rescale(tOrO, softmax.follow_maxima(tSrS));
    softmax.exponentiate<false>(tSrS, [] {}, [] {});
    round_to(tSrS, tOrP);
  };
  consumer_wait(smem.q_ring, rings.q);
  consumer_wait(smem.k_ring, rings.k);
  if (joins_late) {
    wait_issue_turn(warpgroup);
  }
  issue_scores(rings.k);
  if (joins_late) {
    pass_issue_turn<Traits>(warpgroup);
  }
  gemm_wait<0>(tSrS);
  // The last KV tile may end beyond seqlen_k, so the first that is seen is masked under every mask.
  follow_and_exponentiate(n_block);
  --n_block;
  if constexpr (!Traits::kGuessesReferences) {
    softmax.commit();
    consumer_release(smem.k_ring, rings.k);
  }

  // Makes P of the KV tile before n_block final; its K is in `state`. The warpgroup has met since.
  auto const settle = [&](RingState<Traits::kStages> state) DASH_INLINED {
    if (smem.outgrown.was_reported(warpgroup, n_block + 1)) {
      issue_scores(state);
      gemm_wait<0>(tSrS);
      follow_and_exponentiate(n_block + 1);
    }
    softmax.commit();
  };
  auto const report = [&]() DASH_INLINED { smem.outgrown.report(warpgroup, n_block); };
  // Correctness: before O is rescaled and P overwritten, at the same place for all of a warpgroup.
  auto const wait_for_o = [&]() DASH_INLINED {
    gemm_wait<0>(tOrO);
    consumer_release(smem.v_ring, rings.v);
    rings.v.advance();
  };

  UnmaskedTiles const unmasked = unmasked_tiles<Traits>(grid(), item.m_block);
  auto const step = [&](auto tile_mask) DASH_INLINED {
    constexpr TileMask kTileMask = decltype(tile_mask)::value;
    auto const before = rings.k;
    rings.k.advance();
    consumer_wait(smem.k_ring, rings.k);
    wait_issue_turn(warpgroup);
    if constexpr (Traits::kGuessesReferences) {
      settle(before);
    }
    issue_scores(rings.k);
    consumer_wait(smem.v_ring, rings.v);
    gemm_issue<Accumulate::kAdd>(mma_pv, tOrP, operands.tOrV(_, _, _, rings.v.stage), tOrO);
    pass_issue_turn<Traits>(warpgroup);
    if constexpr (Traits::kGuessesReferences) {
      consumer_release(smem.k_ring, before);
    }
    gemm_wait<1>(tSrS);
    bool const is_masked = kTileMask == TileMask::kMasked ||
                           (kTileMask == TileMask::kAsked && !unmasked.contains(n_block));
    if constexpr (!Traits::kGuessesReferences) {
      consumer_release(smem.k_ring, rings.k);
      cap_scores(args, tSrS);
      if (is_masked) {
        mask_scores<Traits>(grid(), first_row, n_block, tSrS);
      }
      softmax.update(tSrS, tOrO, wait_for_o);
      round_to(tSrS, tOrP);
    } else if (is_masked) {
      wait_for_o();
      follow_and_exponentiate(n_block);
    } else {
      cap_scores(args, tSrS);
      softmax.exponentiate<Traits::kNumMmaWarpgroups == 2>(tSrS, wait_for_o, report);
      round_to(tSrS, tOrP);
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

  if constexpr (Traits::kGuessesReferences) {
    smem.outgrown.meet(warpgroup);
    settle(rings.k);
    consumer_release(smem.k_ring, rings.k);
  }
  rings.k.advance();
  consumer_release(smem.q_ring, rings.q);
  rings.q.advance();
  consumer_wait(smem.v_ring, rings.v);
  gemm_issue<Accumulate::kAdd>(mma_pv, tOrP, operands.tOrV(_, _, _, rings.v.stage), tOrO);
  softmax.finish();
  gemm_wait<0>(tOrO);
  consumer_release(smem.v_ring, rings.v);
  rings.v.advance();
}

// The MMA role: until the load warp publishes the end. head_dim_v is at most kHeadDimV.
template <class Traits, int kHeadDimV>
CUTE_DEVICE void mma_loop(FwdKernelArgs<Traits> const& args,
                          typename Traits::SharedStorage& smem) {
  int const warpgroup = cutlass::canonical_warp_group_idx() - 1;
  if (warpgroup == Traits::kNumMmaWarpgroups - 1) {
    pass_issue_turn<Traits>(warpgroup);  // the first turn is warpgroup 0's
  }
  MmaRings<Traits> rings;
  RingState<Traits::kItemStages> item_state;
  OnlineSoftmax softmax(args.score_scale * static_cast<float>(M_LOG2E));
  typename Traits::template TiledMmaPv<kHeadDimV> mma_pv;
  Tensor tOrO = partition_fragment_C(mma_pv, Shape<_64, Int<kHeadDimV>>{});
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
      mma_item<Traits, kHeadDimV>(args, smem, item_state, rings, softmax, tOrO);
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
