// Stage 2a, load warp (one lane): takes work tiles from the ticket counter and fills shared memory.
// Reads k and v once per work tile; q, dout, lse_log2, dpsum once per Q tile, their rings ahead.
// Invariant: tickets are taken in increasing order by each CTA, so a work tile waits only for work
// tiles that started earlier (docs/schedules.md, deadlock freedom).
#pragma once

#include <limits>

#include "bwd/q_tiles.cuh"
#include "bwd/take_work.cuh"
#include "bwd/traits.cuh"
#include "common/bulk_reduce.cuh"
#include "common/ragged_tma.cuh"

namespace dash::bwd {

template <class Traits>
struct Load {
  using SharedStorage = typename Traits::SharedStorage;
  using Arguments = typename Traits::MainArguments;

  Arguments const& arguments;
  SharedStorage& smem;
  PackedCounts counts = {};

  CUTE_DEVICE void run() {
    // Stands for the work tile before the first.
    smem.work[Traits::kStagesWork - 1].tile = schedule::no_tile();
    smem.rank = 0;
    for (;; counts.next_work_tile()) {
      Work const work = take_work<Traits>(arguments, smem, counts);
      // Arrives: each MMA warp (8) and dQ writer (2). Waits: this lane, for the work tile before
      // last to have been read.
      auto const state_work = RingState<Traits::kStagesWork>::at(counts.work_tiles());
      producer_acquire(smem.ring_work, state_work);
      if constexpr (Traits::kIsDense) {
        smem.work[state_work.stage].tile = work.tile;
        smem.work[state_work.stage].sweep = work.sweep;
      } else {
        smem.work[state_work.stage] = work;
      }
      // Arrives: this lane (1). Waits: MMA warps and dQ writers. The arrive releases the store, and
      // the clobber keeps the compiler from moving it below.
      asm volatile("" ::: "memory");
      cutlass::arch::ClusterBarrier::arrive(&smem.ring_work.full[state_work.stage]);
      if (work.tile.n_block < 0) {
        break;
      }
      // Tuning: read back at each use, because registers are scarce.
      load_work_tile(smem.work[state_work.stage]);
    }
  }

 private:
  CUTE_DEVICE void load_work_tile(Work const& work) {
    if constexpr (!Traits::kIsDense) {
      if (work.num_steps == 0) {
        pass_kv();
      }
    }
    for_each_q_tile<Traits>(arguments.params, work.tile, work, [&](QTile q_tile) {
      Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
      Tensor sdO = make_tensor(make_smem_ptr(smem.dout), typename Traits::SmemLayoutDo{});
      // Elements; 32 bits, because dq_accum has 256 bytes or more for each row of these vectors.
      // Tuning: once for both, because its factors would need more registers.
      uint32_t first_value =
          static_cast<uint32_t>(q_tile_index<Traits>(arguments, work, q_tile)) * Traits::kBlockM;
      worked_out_here(first_value);
      publish_mask(work, q_tile);
      BwdParams const& params = arguments.params;
      load_rows(smem.ring_q, arguments.tma_q, sQ, {params.lse_log2, first_value, smem.lse_log2},
                work, q_tile, {params.head_dim, arguments.bytes_q});
      load_rows(smem.ring_do, arguments.tma_do, sdO, {params.dpsum, first_value, smem.dpsum}, work,
                q_tile, {params.head_dim_v, arguments.bytes_do});
      if (q_tile.is_first) {
        // Tuning: after the first q and dout, whose stages are free while the previous work tile's
        // last products still hold k and v.
        load_kv(work);
      }
      counts.next_q_tile();
    });
  }

  CUTE_DEVICE void publish_mask(Work const& work, QTile q_tile) {
    if constexpr (Traits::kPublishesMask) {
      auto const state = RingState<Traits::kStagesQ>::at(counts.q_tiles());
      TileMask mask = tile_mask<Traits>(Traits::grid(arguments.params, work.sequence),
                                        q_tile.m_block, work.tile.n_block);
      worked_out_here(mask.diagonal, mask.num_keys, mask.first);
      // As for q, whose ring guards this too: the arrive of load_rows releases the store, and the
      // clobber keeps the compiler from moving it below.
      producer_acquire(smem.ring_q, state);
      smem.mask[state.stage] = mask;
      asm volatile("" ::: "memory");
    }
  }

  // A value for each row of a Q tile: in global memory for all tiles, in shared memory by stage.
  struct RowValues {
    float const* source;
    uint32_t first;  // of this tile
    float (*target)[Traits::kBlockM];
  };

  // What a tensor has of a tile's columns.
  struct Columns {
    int count;
    uint32_t bytes;  // that arrive for a tile
  };

  // A tile of q or dout, with lse_log2 or dpsum of its rows, into the next stage of its ring.
  template <int kStages, class Tma, class SmemTensor>
  CUTE_DEVICE void load_rows(RingBarriers<kStages>& ring, Tma const& tma, SmemTensor const& target,
                             RowValues values, Work const& work, QTile q_tile,
                             Columns const& columns) {
    auto const state = RingState<kStages>::at(counts.q_tiles());
    // Arrives: each MMA warp (8), after its last read of the stage. Waits: this lane.
    producer_acquire(ring, state);
    producer_expect(ring, state, columns.bytes + Traits::kBytesRow);
    uint64_t* const full = &ring.full[state.stage];
    copy_tile<Traits::kBlockM, Traits::kBoxColumns>(
        tma, full, target(_, _, state.stage), {q_tile.m_block, q_tile.bidh, work.tile.bidb},
        {work.sequence.offset_q, work.sequence.seqlen_q}, columns.count);
    bulk::load(values.source + values.first, full, values.target[state.stage], Traits::kBytesRow);
  }

  CUTE_DEVICE void load_kv(Work const& work) {
    Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutK{});
    Tensor sV = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutV{});
    schedule::WorkTile const& tile = work.tile;
    int const bidh_kv = tile.bidh / arguments.params.group_parts;
    auto const state_kv = RingState<1>::at(counts.work_tiles());
    auto const load = [&](auto columns_of_box, RingBarriers<1>& ring, auto const& tma,
                          auto const& target, Columns const& columns) {
      // Waits: for the MMA warps (8) to have finished the previous work tile's products.
      producer_acquire(ring, state_kv);
      producer_expect(ring, state_kv, columns.bytes);
      copy_tile<Traits::kBlockN, decltype(columns_of_box)::value>(
          tma, &ring.full[0], target, {tile.n_block, bidh_kv, tile.bidb},
          {work.sequence.offset_k, work.sequence.seqlen_k}, columns.count);
    };
    load(Int<Traits::kBoxColumnsOfK>{}, smem.ring_k, arguments.tma_k, sK,
         {arguments.params.head_dim, arguments.bytes_k});
    load(Int<Traits::kBoxColumns>{}, smem.ring_v, arguments.tma_v, sV,
         {arguments.params.head_dim_v, arguments.bytes_v});
  }

  // A work tile whose keys no query sees: nothing is loaded, but the rings go on.
  CUTE_DEVICE void pass_kv() {
    auto const state_kv = RingState<1>::at(counts.work_tiles());
    // As in load_kv; the MMA warps find the phase complete.
    producer_acquire(smem.ring_k, state_kv);
    cutlass::arch::ClusterBarrier::arrive(&smem.ring_k.full[0]);
    producer_acquire(smem.ring_v, state_kv);
    cutlass::arch::ClusterBarrier::arrive(&smem.ring_v.full[0]);
  }

  struct TileCoordinates {
    int block;  // of kRows rows of a sequence
    int bidh;
    int bidb;
  };

  // Rows block * kRows onwards of one sequence and head, `columns` columns. Rows past the
  // sequence's end, and columns past the tensor's in its last box, arrive as 0.
  template <int kRows, int kColumnsOfBox, class Tma, class SmemTensor>
  CUTE_DEVICE void copy_tile(Tma const& tma, uint64_t* full, SmemTensor const& target,
                             TileCoordinates tile, SequenceRows rows, int columns) {
    // Extents say nothing here: the descriptor holds the bounds.
    constexpr int kAny = std::numeric_limits<int>::max();
    auto const first_row = [&] {
      if constexpr (Traits::kIsDense) {
        Tensor tensor = tma.get_tma_tensor(make_shape(kAny, kAny, kAny, kAny));
        return domain_offset(make_coord(tile.block * kRows, _0{}),
                             tensor(_, _, tile.bidh, tile.bidb));
      } else {
        Tensor tensor = tma.get_tma_tensor(make_shape(kAny, kAny, kAny, kAny, kAny));
        RaggedTile const ragged = ragged_tile(tile.block, kRows, rows.offset, rows.length);
        return domain_offset(make_coord(ragged.row, _0{}),
                             tensor(_, _, ragged.end, tile.bidh, tile.bidb));
      }
    }();
    Tensor source = local_tile(first_row, Shape<Int<kRows>, Int<Traits::kHeadDim>>{},
                               make_coord(_0{}, _0{}));
    auto slice = tma.get_slice(_0{});
    copy_boxes<kColumnsOfBox>(tma.with(*full, uint16_t{0}), slice.partition_S(source),
                              slice.partition_D(target), columns);
  }
};

}  // namespace dash::bwd
