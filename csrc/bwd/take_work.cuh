// Stage 2a, load warp (one lane): the next work tile. The rest of the present item, or else what a
// new ticket stands for: with packed sequences, a ticket of the sequence that it falls in.
#pragma once

#include "bwd/q_tiles.cuh"
#include "bwd/traits.cuh"
#include "common/sequence_order.cuh"
#include "schedule/sequence_grid.hpp"

namespace dash::bwd {

// Correctness: members of a gang wait for each other, so that two of them may not meet in one CTA
// (docs/schedules.md): unless all of the last item's gang are taken, no ticket before this CTA's
// last addition. The counter only grows, so a relaxed load that sees the gang's end is enough.
// Tuning: that they are taken is the rule; then the next item's loads run under this one's end.
template <class Traits>
CUTE_DEVICE bool is_gang_complete(BwdParams const& params,
                                  typename Traits::SharedStorage const& smem) {
  int num_taken;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(num_taken) : "l"(params.ticket));
  return num_taken >= smem.gang_end;
}

// Arrives: each MMA warp (8) and dQ writer (2), which makes a work tile's additions before it gives
// the tile back, and earlier tiles' before those. Waits: the load lane. The barrier's next phase
// cannot end before the lane publishes another work tile there, so that no parity is ambiguous.
template <class Traits>
CUTE_DEVICE void wait_for_own_adds(typename Traits::SharedStorage& smem, PackedCounts counts) {
  auto const last = RingState<Traits::kStagesWork>::at(counts.last_work_tile());
  cutlass::arch::ClusterBarrier::wait(&smem.ring_work.empty[last.stage], last.phase);
}

// A work tile of a (batch, seqlen) problem.
template <class Traits>
CUTE_DEVICE Work dense_work(BwdParams const& params, schedule::TileGrid const& grid,
                            schedule::WorkTile const& tile) {
  schedule::Sweep const sweep = Traits::Policy::sweep(grid, tile);
  if constexpr (Traits::kIsDense) {
    return {.tile = tile, .sweep = sweep};
  } else {
    return {.tile = tile,
            .sweep = sweep,
            .sequence = {grid.seqlen_q, grid.seqlen_k, 0, 0},
            .first_q_tile = tile.bidb * params.num_heads * grid.num_m_blocks(),
            .num_steps = grid.num_steps(tile.n_block)};
  }
}

// The grid of all sequences that are alike.
template <class Traits>
CUTE_DEVICE schedule::TileGrid hidden_grid(BwdParams const& params) {
  schedule::TileGrid grid = Traits::grid(params);
  // Tuning: hidden from the optimiser, or it prepares the policy's divisions before the loop and
  // keeps them in registers that this warp does not have.
  asm volatile("" : "+r"(grid.section), "+r"(grid.num_heads), "+r"(grid.seqlen_k),
               "+r"(grid.batch));
  return grid;
}

template <class Traits>
CUTE_DEVICE Work take_dense_work(typename Traits::MainArguments const& arguments,
                                 typename Traits::SharedStorage& smem, PackedCounts counts) {
  BwdParams const& params = arguments.params;
  schedule::TileGrid const grid = hidden_grid<Traits>(params);
  schedule::WorkTile const previous =
      smem.work[counts.last_work_tile() % Traits::kStagesWork].tile;
  if (previous.n_block >= 0) {
    schedule::WorkTile const next = Traits::Policy::next_tile(grid, previous);
    if (next.n_block >= 0) {
      return dense_work<Traits>(params, grid, next);
    }
    if (params.gang_size > 1 && !is_gang_complete<Traits>(params, smem)) {
      wait_for_own_adds<Traits>(smem, counts);
    }
  }
  int const ticket = atomicAdd(params.ticket, 1);
  if (ticket >= Traits::Policy::num_tickets(grid)) {
    return {.tile = schedule::no_tile()};
  }
  if (params.gang_size > 1) {
    smem.gang_end = Traits::Policy::gang_end(grid, ticket);
  }
  return dense_work<Traits>(params, grid, Traits::Policy::work(grid, ticket));
}

// Invariant: policies that are legal for packed sequences have items of one work tile and no gangs.
template <class Traits>
CUTE_DEVICE Work take_packed_work(typename Traits::MainArguments const& arguments,
                                  typename Traits::SharedStorage& smem) {
  BwdParams const& params = arguments.params;
  int const ticket = atomicAdd(params.ticket, 1);
  int const* const ticket_begin = params.ticket_begin;
  if (ticket >= ticket_begin[params.grid.batch]) {
    return {.tile = schedule::no_tile()};
  }
  int const rank = rank_of_ticket(ticket_begin, params.grid.batch, ticket, smem.rank);
  smem.rank = rank;
  int const bidb = params.sequence_order[rank];
  Sequence const sequence = sequence_of(params.packed, bidb);
  schedule::TileGrid const grid = schedule::sequence_grid(
      hidden_grid<Traits>(params), sequence.seqlen_q, sequence.seqlen_k);
  schedule::WorkTile const tile = Traits::Policy::work(grid, ticket - ticket_begin[rank]);
  return {.tile = tile,
          .sweep = Traits::Policy::sweep(grid, tile),
          .sequence = sequence,
          .first_q_tile = first_padded_tile(sequence.offset_q, bidb, Traits::kBlockM),
          .num_steps = grid.num_steps(tile.n_block),
          .first_kv_tile = first_padded_tile(sequence.offset_k, bidb, Traits::kBlockN)};
}

template <class Traits>
CUTE_DEVICE Work take_work(typename Traits::MainArguments const& arguments,
                           typename Traits::SharedStorage& smem, PackedCounts counts) {
  if constexpr (Traits::kIsDense) {
    return take_dense_work<Traits>(arguments, smem, counts);
  } else {
    return Traits::is_packed(arguments.params) ? take_packed_work<Traits>(arguments, smem)
                                               : take_dense_work<Traits>(arguments, smem, counts);
  }
}

}  // namespace dash::bwd
