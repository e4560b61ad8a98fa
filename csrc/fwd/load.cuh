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

// The part of a global tensor that a tile of the Q, K or V loads fills from, as TMA coordinates. In
// a dense kernel tile `tile` of (batch, seqlen) tensors; rows past seqlen arrive as zeros. In the
// others of one sequence; rows past the sequence arrive as zeros, whatever is stored there: a
// probability of 0 times NaN would be NaN.
struct TileSource {
  int tile;
  int offset;  // first row of the sequence
  int seqlen;
  int bidh;
  int bidb;  // 0 if the problem is packed
};

template <class Traits, class Tma, class TileShape>
CUTE_DEVICE auto rows_of(Tma const& tma, TileShape tile_shape, TileSource const& source) {
  if constexpr (Traits::kIsDense) {
    Tensor mX = tma.get_tma_tensor(Shape<int, int, int, int>{});  // (seqlen, head_dim, h, b)
    return local_tile(mX(_, _, source.bidh, source.bidb), tile_shape,
                      make_coord(source.tile, _0{}));             // (BLK, D)
  } else {
    RaggedTile const ragged =
        ragged_tile(source.tile, size<0>(tile_shape), source.offset, source.seqlen);
    Tensor mX = tma.get_tma_tensor(RaggedShape{});                // (row, head_dim, end, h, b)
    Tensor mX_rows = mX(_, _, ragged.end, source.bidh, source.bidb);
    return local_tile(domain_offset(make_coord(ragged.row, _0{}), mX_rows), tile_shape,
                      make_coord(_0{}, _0{}));                    // (BLK, D)
  }
}

// The same of a tensor whose first two modes are exchanged.
template <class Traits, class Tma, class TileShape>
CUTE_DEVICE auto columns_of(Tma const& tma, TileShape tile_shape, TileSource const& source) {
  if constexpr (Traits::kIsDense) {
    Tensor mXt = tma.get_tma_tensor(Shape<int, int, int, int>{});  // (head_dim, seqlen, h, b)
    return local_tile(mXt(_, _, source.bidh, source.bidb), tile_shape,
                      make_coord(_0{}, source.tile));              // (D, BLK)
  } else {
    RaggedTile const ragged =
        ragged_tile(source.tile, size<1>(tile_shape), source.offset, source.seqlen);
    Tensor mXt = tma.get_tma_tensor(RaggedShape{});                // (head_dim, row, end, h, b)
    Tensor mXt_rows = mXt(_, _, ragged.end, source.bidh, source.bidb);
    return local_tile(domain_offset(make_coord(_0{}, ragged.row), mXt_rows), tile_shape,
                      make_coord(_0{}, _0{}));                     // (D, BLK)
  }
}

// Issues the boxes of one tile that reach into the tensor's `columns` columns.
template <class Traits, class TmaWithBarrier, class Tma, class TensorG, class TensorS>
CUTE_DEVICE void load_tile(TmaWithBarrier const& tma_with_barrier, Tma const& tma,
                           TensorG const& gX, TensorS const& sX, int columns) {
  auto const slice = tma.get_slice(_0{});
  copy_boxes<Traits::kAtomColumns>(tma_with_barrier, slice.partition_S(gX), slice.partition_D(sX),
                                   columns);
}

// `ask_for_next_item` and then `find_next_item` are called once each.
// Tuning: towards the end, so that CTAs with short items take more of them; but before it, so that
// the answer's way from L2 and the divisions hold up no load.
template <class Traits, class AskForNextItem, class FindNextItem>
CUTE_DEVICE void load_item(FwdKernelArgs<Traits> const& args,
                           typename Traits::SharedStorage& smem, PlacedItem const& placed,
                           LoadRings<Traits>& rings,
                           AskForNextItem const& ask_for_next_item,
                           FindNextItem const& find_next_item) {
  WorkItem const& item = placed.item;
  Sequence const& sequence = placed.sequence;
  FwdParams const& params = args.params;
  int const bidh_kv = item.bidh / (params.num_heads / params.grid.num_heads);
  int const bidb = !Traits::kIsDense && params.packed.is_packed() ? 0 : item.bidb;
  schedule::TileGrid const grid = item_grid(args, sequence);
  int const n_begin = Traits::kIsGeneral ? grid.n_begin(item.m_block) : 0;

  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
  Tensor sVt = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutVt{});

  // Each load: empty[s] arrive the MMA warps (kNumMmaWarps), waits this lane; protects the stage
  // while a product reads it. full[s] arrive this lane and TMA's bytes, wait the MMA warps.
  using KvState = RingState<Traits::kStages>;
  auto const keys = [&](int n_block) {
    return TileSource{n_block, sequence.offset_k, sequence.seqlen_k, bidh_kv, bidb};
  };
  auto const load_k = [&](KvState const& state, int n_block) {
    producer_acquire(smem.k_ring, state);
    producer_expect(smem.k_ring, state, args.bytes_k);
    load_tile<Traits>(
        args.tma_k.with(smem.k_ring.full[state.stage], 0, TMA::CacheHintSm90::EVICT_LAST),
        args.tma_k, rows_of<Traits>(args.tma_k, typename Traits::TileShapeK{}, keys(n_block)),
        sK(_, _, state.stage), params.head_dim);
  };
  auto const load_v = [&](KvState const& state, int n_block) {
    producer_acquire(smem.v_ring, state);
    producer_expect(smem.v_ring, state, args.bytes_v);
    load_tile<Traits>(
        args.tma_vt.with(smem.v_ring.full[state.stage], 0, TMA::CacheHintSm90::EVICT_LAST),
        args.tma_vt, columns_of<Traits>(args.tma_vt, typename Traits::TileShapeVt{}, keys(n_block)),
        sVt(_, _, state.stage), params.head_dim_v);
  };

  int const n_first = item.n_end - 1;
  int const asks_at = schedule::min_int(n_begin + 4, n_first);
  int const finds_at = schedule::min_int(n_begin + 2, n_first);
  if (asks_at == n_first) {
    ask_for_next_item();
  }
  // Tuning: K before Q, because the K ring has room while the previous item still reads Q.
  load_k(rings.kv, n_first);
  producer_acquire(smem.q_ring, rings.q);
  producer_expect(smem.q_ring, rings.q, args.bytes_q);
  TileSource const queries{item.m_block, sequence.offset_q, sequence.seqlen_q, item.bidh, bidb};
  load_tile<Traits>(args.tma_q.with(smem.q_ring.full[0], 0, TMA::CacheHintSm90::EVICT_FIRST),
                    args.tma_q,
                    rows_of<Traits>(args.tma_q, typename Traits::TileShapeQ{}, queries), sQ,
                    params.head_dim);
  rings.q.advance();
  if (finds_at == n_first) {
    find_next_item();
  }
  // Tuning: not unrolled, because the load warp has few registers and waits anyway.
  CUTE_NO_UNROLL
  for (int n_block = n_first - 1; n_block >= n_begin; --n_block) {
    if (n_block == asks_at) {
      ask_for_next_item();
    }
    KvState const previous = rings.kv;
    rings.kv.advance();
    load_k(rings.kv, n_block);
    load_v(previous, n_block + 1);
    if (n_block == finds_at) {
      find_next_item();
    }
  }
  load_v(rings.kv, n_begin);
  rings.kv.advance();
}

// The load role: one lane, until the tickets are used up.
template <class Traits>
CUTE_DEVICE void load_loop(FwdKernelArgs<Traits> const& args,
                           typename Traits::SharedStorage& smem) {
  LoadRings<Traits> rings;
  RingState<Traits::kItemStages> item_state;
  // The first ticket of a CTA is its index; the counter hands out the rest.
  TicketPlace place{.ticket = static_cast<int>(blockIdx.x)};
  PlacedItem placed = work_item(args, place);
  while (true) {
    publish_item<Traits>(smem, item_state, placed);
    if (placed.item.m_block < 0) {
      return;
    }
    PlacedItem next;
    auto const ask_for_next_item = [&] {
      place.ticket = atomicAdd(args.params.ticket, 1) + static_cast<int>(gridDim.x);
    };
    auto const find_next_item = [&] { next = work_item(args, place); };
    if (placed.item.n_end > 0) {
      load_item(args, smem, placed, rings, ask_for_next_item, find_next_item);
    } else {
      ask_for_next_item();
      find_next_item();
    }
    placed = next;
  }
}

}  // namespace dash::fwd
