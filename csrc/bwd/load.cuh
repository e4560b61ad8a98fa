// Stage 2a, load warp (one lane): takes work tiles from the ticket counter and fills shared memory.
// Reads k and v once per work tile; q, dout, lse_log2, dpsum once per Q tile, two stages ahead.
// Invariant: tickets are taken in increasing order by each CTA, so a work tile waits only for work
// tiles that started earlier (docs/schedules.md, deadlock freedom).
#pragma once

#include "bwd/q_tiles.cuh"
#include "bwd/traits.cuh"
#include "common/bulk_reduce.cuh"

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
    smem.work[Traits::kStagesWork - 1] = schedule::no_tile();
    for (;; counts.next_work_tile()) {
      schedule::WorkTile const tile = next_work_tile();
      // Arrives: each MMA warp (8) and dQ writer (2). Waits: this lane, for the work tile before
      // last to have been read.
      auto const state_work = RingState<Traits::kStagesWork>::at(counts.work_tiles());
      producer_acquire(smem.ring_work, state_work);
      smem.work[state_work.stage] = tile;
      // Arrives: this lane (1). Waits: MMA warps and dQ writers. The arrive releases the store, and
      // the clobber keeps the compiler from moving it below.
      asm volatile("" ::: "memory");
      cutlass::arch::ClusterBarrier::arrive(&smem.ring_work.full[state_work.stage]);
      if (tile.n_block < 0) {
        break;
      }
      // Tuning: read back at each use, because registers are scarce.
      load_work_tile(smem.work[state_work.stage]);
    }
  }

 private:
  // The rest of the present item, or else a new one.
  CUTE_DEVICE schedule::WorkTile next_work_tile() {
    schedule::TileGrid grid = Traits::grid(arguments.params);
    // Tuning: hidden from the optimiser, or it prepares the policy's divisions before the loop and
    // keeps them in registers that this warp does not have.
    asm volatile("" : "+r"(grid.section), "+r"(grid.num_heads), "+r"(grid.seqlen_k),
                 "+r"(grid.batch));
    schedule::WorkTile const previous =
        smem.work[counts.last_work_tile() % Traits::kStagesWork];
    if (previous.n_block >= 0) {
      schedule::WorkTile const next = Traits::Policy::next_tile(grid, previous);
      if (next.n_block >= 0) {
        return next;
      }
      if (arguments.params.gang_size > 1) {
        wait_for_own_adds();
      }
    }
    int const ticket = atomicAdd(arguments.params.ticket, 1);
    return ticket < Traits::Policy::num_tickets(grid) ? Traits::Policy::work(grid, ticket)
                                                      : schedule::no_tile();
  }

  // Correctness: members of a gang wait for each other, so that two of them may not meet in one
  // CTA: no ticket is taken before this CTA's last addition (docs/schedules.md).
  // Arrives: each dQ writer (2), once a work tile. Waits: this lane, for the work tile before last
  // and for the last: an item has two at most. Each has a barrier of its own, whose next phase
  // cannot end before this lane publishes another work tile, so that no parity is ambiguous.
  CUTE_DEVICE void wait_for_own_adds() {
    auto const before_last = RingState<Traits::kStagesWork>::at(counts.work_tiles());
    cutlass::arch::ClusterBarrier::wait(&smem.adds_done[before_last.stage], before_last.phase ^ 1);
    auto const last = RingState<Traits::kStagesWork>::at(counts.last_work_tile());
    cutlass::arch::ClusterBarrier::wait(&smem.adds_done[last.stage], last.phase);
  }

  CUTE_DEVICE void load_work_tile(schedule::WorkTile const& tile) {
    for_each_q_tile<Traits>(arguments.params, tile, [&](QTile q_tile) {
      // Elements; 32 bits, because dq_accum has 256 bytes or more for each row of these vectors.
      uint32_t const first_row =
          static_cast<uint32_t>(q_tile_index<Traits>(arguments.params, tile, q_tile)) *
          Traits::kBlockM;
      load_q(tile, q_tile, first_row);
      load_do(tile, q_tile, first_row);
      if (q_tile.is_first) {
        // Tuning: after the first q and dout, whose stages are free while the previous work tile's
        // last products still hold k and v.
        load_kv(tile);
      }
      counts.next_q_tile();
    });
  }

  CUTE_DEVICE void load_q(schedule::WorkTile const& tile, QTile q_tile, uint32_t first_row) {
    BwdParams const& params = arguments.params;
    auto const state_q = RingState<Traits::kStagesQ>::at(counts.q_tiles());
    producer_acquire(smem.ring_q, state_q);
    producer_expect(smem.ring_q, state_q, Traits::kBytesM + Traits::kBytesRow);
    uint64_t* const full = &smem.ring_q.full[state_q.stage];
    Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename Traits::SmemLayoutQ{});
    copy_tile<Traits::kBlockM>(arguments.tma_q, full, sQ(_, _, state_q.stage), q_tile.m_block,
                               params.grid.seqlen_q, q_tile.bidh, params.num_heads, tile.bidb);
    bulk::load(params.lse_log2 + first_row, full, smem.lse_log2[state_q.stage], Traits::kBytesRow);
  }

  CUTE_DEVICE void load_do(schedule::WorkTile const& tile, QTile q_tile, uint32_t first_row) {
    BwdParams const& params = arguments.params;
    auto const state_do = RingState<Traits::kStagesDo>::at(counts.q_tiles());
    producer_acquire(smem.ring_do, state_do);
    producer_expect(smem.ring_do, state_do, Traits::kBytesM + Traits::kBytesRow);
    uint64_t* const full = &smem.ring_do.full[state_do.stage];
    Tensor sdO = make_tensor(make_smem_ptr(smem.dout), typename Traits::SmemLayoutDo{});
    copy_tile<Traits::kBlockM>(arguments.tma_do, full, sdO(_, _, state_do.stage), q_tile.m_block,
                               params.grid.seqlen_q, q_tile.bidh, params.num_heads, tile.bidb);
    bulk::load(params.dpsum + first_row, full, smem.dpsum[state_do.stage], Traits::kBytesRow);
  }

  CUTE_DEVICE void load_kv(schedule::WorkTile const& tile) {
    schedule::TileGrid const& grid = arguments.params.grid;
    auto const state_kv = RingState<1>::at(counts.work_tiles());
    // Waits: for the MMA warps (8) to have finished the previous work tile's products.
    producer_acquire(smem.ring_k, state_kv);
    producer_expect(smem.ring_k, state_kv, Traits::kBytesN);
    Tensor sK = make_tensor(make_smem_ptr(smem.k), typename Traits::SmemLayoutKv{});
    copy_tile<Traits::kBlockN>(arguments.tma_k, &smem.ring_k.full[0], sK, tile.n_block,
                               grid.seqlen_k, tile.bidh, grid.num_heads, tile.bidb);
    producer_acquire(smem.ring_v, state_kv);
    producer_expect(smem.ring_v, state_kv, Traits::kBytesN);
    Tensor sV = make_tensor(make_smem_ptr(smem.v), typename Traits::SmemLayoutKv{});
    copy_tile<Traits::kBlockN>(arguments.tma_v, &smem.ring_v.full[0], sV, tile.n_block,
                               grid.seqlen_k, tile.bidh, grid.num_heads, tile.bidb);
  }

  // Rows block * kRows onwards of one (batch, head), all columns. Rows past seqlen arrive as 0.
  template <int kRows, class Tma, class SmemTensor>
  CUTE_DEVICE void copy_tile(Tma const& tma, uint64_t* full, SmemTensor const& target, int block,
                             int seqlen, int bidh, int num_heads, int bidb) {
    Tensor m_tensor = tma.get_tma_tensor(make_shape(
        seqlen, Int<Traits::kHeadDim>{}, num_heads, arguments.params.grid.batch));
    Tensor g_tile = local_tile(m_tensor(_, _, bidh, bidb),
                               Shape<Int<kRows>, Int<Traits::kHeadDim>>{}, make_coord(block, _0{}));
    auto slice = tma.get_slice(_0{});
    copy(tma.with(*full, uint16_t{0}), slice.partition_S(g_tile),
         slice.partition_D(target));
  }
};

}  // namespace dash::bwd
