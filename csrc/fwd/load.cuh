// Stage: loads. Runs on one lane of warp 0. Takes work items from the ticket counter, publishes
// them to the MMA warps, and fills the Q, K and V rings through TMA.
// Reads q, k, v, ticket (global); writes q, k, v, items (shared).
// Invariant: per item, stages are filled in the order in which the MMA warps read them: the last KV
// tile first, K of a tile before V of the tile visited before it.
#pragma once

#include "fwd/traits.cuh"
#include "fwd/work_items.cuh"

namespace dash::fwd {

// Every KV tile fills one stage of the K ring and one of the V ring, so one position serves both.
template <class Traits>
struct LoadRings {
  RingState<1> q;
  RingState<Traits::kStages> kv;
};

template <class Traits>
CUTE_DEVICE void load_item(FwdKernelArgs<Traits> const& args,
                           typename Traits::SharedStorage& smem, WorkItem item,
                           LoadRings<Traits>& rings) {
  FwdParams const& params = args.params;
  int const bidh_kv = item.bidh / (params.num_heads / params.num_heads_k);

  Tensor mQ = args.tma_q.get_tma_tensor(
      make_shape(params.seqlen_q, Int<Traits::kHeadDim>{}, params.num_heads, params.batch));
  Tensor mK = args.tma_k.get_tma_tensor(
      make_shape(params.seqlen_k, Int<Traits::kHeadDim>{}, params.num_heads_k, params.batch));
  Tensor mVt = args.tma_vt.get_tma_tensor(
      make_shape(Int<Traits::kHeadDim>{}, params.seqlen_k, params.num_heads_k, params.batch));
  Tensor gQ = local_tile(mQ(_, _, item.bidh, item.bidb), typename Traits::TileShapeQ{},
                         make_coord(item.m_block, _0{}));   // (BLK_M, D)
  Tensor gK = local_tile(mK(_, _, bidh_kv, item.bidb), typename Traits::TileShapeK{},
                         make_coord(_, _0{}));              // (BLK_N, D, n_blocks)
  Tensor gVt = local_tile(mVt(_, _, bidh_kv, item.bidb), typename Traits::TileShapeVt{},
                          make_coord(_0{}, _));             // (D, BLK_N, n_blocks)
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
  Tensor sVt = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutVt{});

  auto [tQgQ, tQsQ] = tma_partition(args.tma_q, _0{}, Layout<_1>{}, group_modes<0, 2>(sQ),
                                    group_modes<0, 2>(gQ));    // (TMA)
  auto [tKgK, tKsK] = tma_partition(args.tma_k, _0{}, Layout<_1>{}, group_modes<0, 2>(sK),
                                    group_modes<0, 2>(gK));    // (TMA, n_blocks), (TMA, PIPE)
  auto [tVgV, tVsV] = tma_partition(args.tma_vt, _0{}, Layout<_1>{}, group_modes<0, 2>(sVt),
                                    group_modes<0, 2>(gVt));   // (TMA, n_blocks), (TMA, PIPE)

  // Each load: empty[s] arrive the MMA warps (kNumMmaWarps), waits this lane; protects the stage
  // while a product reads it. full[s] arrive this lane and TMA's bytes, wait the MMA warps.
  using KvState = RingState<Traits::kStages>;
  auto const load_k = [&](KvState const& state, int n_block) {
    producer_acquire(smem.k_ring, state);
    producer_expect(smem.k_ring, state, Traits::kBytesKv);
    copy(args.tma_k.with(smem.k_ring.full[state.stage], 0, TMA::CacheHintSm90::EVICT_LAST),
         tKgK(_, n_block), tKsK(_, state.stage));
  };
  auto const load_v = [&](KvState const& state, int n_block) {
    producer_acquire(smem.v_ring, state);
    producer_expect(smem.v_ring, state, Traits::kBytesKv);
    copy(args.tma_vt.with(smem.v_ring.full[state.stage], 0, TMA::CacheHintSm90::EVICT_LAST),
         tVgV(_, n_block), tVsV(_, state.stage));
  };

  // Tuning: K before Q, because the K ring has room while the previous item still reads Q.
  load_k(rings.kv, item.num_n_blocks - 1);
  producer_acquire(smem.q_ring, rings.q);
  producer_expect(smem.q_ring, rings.q, Traits::kBytesQ);
  copy(args.tma_q.with(smem.q_ring.full[0], 0, TMA::CacheHintSm90::EVICT_FIRST), tQgQ, tQsQ);
  rings.q.advance();
  // Tuning: not unrolled, because the load warp has few registers and waits anyway.
  CUTE_NO_UNROLL
  for (int n_block = item.num_n_blocks - 2; n_block >= 0; --n_block) {
    KvState const previous = rings.kv;
    rings.kv.advance();
    load_k(rings.kv, n_block);
    load_v(previous, n_block + 1);
  }
  load_v(rings.kv, 0);
  rings.kv.advance();
}

// The load role: one lane, until the tickets are used up.
template <class Traits>
CUTE_DEVICE void load_loop(FwdKernelArgs<Traits> const& args,
                           typename Traits::SharedStorage& smem) {
  LoadRings<Traits> rings;
  RingState<Traits::kItemStages> item_state;
  // The first ticket of a CTA is its index; the counter hands out the rest.
  int ticket = static_cast<int>(blockIdx.x);
  while (true) {
    WorkItem const item = work_item(args, ticket);
    publish_item<Traits>(smem, item_state, item);
    if (item.m_block < 0) {
      return;
    }
    // Tuning: asked for before this item's loads, so that the round trip to L2 is hidden by them.
    ticket = atomicAdd(args.params.ticket, 1) + static_cast<int>(gridDim.x);
    if (item.num_n_blocks > 0) {
      load_item(args, smem, item, rings);
    }
  }
}

}  // namespace dash::fwd
