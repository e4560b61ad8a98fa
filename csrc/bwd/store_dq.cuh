// Stage 2c, dQ writer warps (one lane each): move finished dQ tiles from shared memory into
// dq_accum, in the policy's order. Two warps take alternate Q tiles, so that one waits for its turn
// and for global memory while the other drains the next tile.
// Reads smem.dq; writes dq_accum, dq_semaphore, and the queue of finished tiles.
// Invariant: the memory-order contract of common/semaphore.cuh.
#pragma once

#include "bwd/finished_tiles.cuh"
#include "bwd/q_tiles.cuh"
#include "bwd/traits.cuh"
#include "bwd/workspace.hpp"
#include "common/bulk_reduce.cuh"
#include "common/semaphore.cuh"

namespace dash::bwd {

template <class Traits>
struct StoreDq {
  using Policy = typename Traits::Policy;
  using SharedStorage = typename Traits::SharedStorage;

  typename Traits::MainArguments const& arguments;
  SharedStorage& smem;
  int writer;  // 0 or 1
  PackedCounts counts = {};

  CUTE_DEVICE void run() {
    BwdParams const& params = arguments.params;
    bool const is_ordered = Policy::is_ordered(params.grid);
    for (;; counts.next_work_tile()) {
      auto const state_work = RingState<Traits::kStagesWork>::at(counts.work_tiles());
      // Arrives: the load lane (1). Waits: this lane. Protects: smem.work of this stage.
      consumer_wait(smem.ring_work, state_work);
      // Tuning: read from shared memory at each use, because registers are scarce.
      Work const& work = smem.work[state_work.stage];
      if (work.tile.n_block < 0) {
        break;
      }
      for_each_q_tile<Traits>(params, work.tile, work, [&](QTile q_tile) {
        if (counts.q_tiles() % kNumDqWriters == writer) {
          if (is_ordered) {
            add_in_turn(work, q_tile);
          } else {
            move_tile(accum_of(work, q_tile), [](float* target, float const* source) {
              bulk::reduce_add(target, source, Traits::kBytesDqPart);
            });
          }
        }
        counts.next_q_tile();
      });
      // Arrives: this lane, as one reader warp. Waits: the load lane, before it publishes the next
      // but one; in a gang perhaps before it takes the next, for the additions that this comes
      // behind (take_work.cuh).
      consumer_release_by_lane(smem.ring_work, state_work);
    }
    // Correctness: the kernel may not end while the copy engine still reads shared memory.
    bulk::wait_complete();
    // Arrives: each dQ writer (2). Asks: the converter warp, whether to stop.
    cutlass::arch::ClusterBarrier::arrive(&smem.no_more_dq);
  }

 private:
  CUTE_DEVICE float* accum_of(Work const& work, QTile q_tile) const {
    int64_t const index = q_tile_index<Traits>(arguments, work, q_tile);
    return arguments.params.dq_accum + index * (Traits::kBlockM * Traits::kHeadDim);
  }

  CUTE_DEVICE void add_in_turn(Work const& work, QTile q_tile) {
    schedule::TileGrid grid = Traits::grid(arguments.params, work.sequence);
    // Tuning: hidden from the optimiser, or it prepares the policies' divisions before the loop and
    // keeps them in registers that this warp does not have.
    asm volatile("" : "+r"(grid.seqlen_q), "+r"(grid.seqlen_k));
    int const turn = Policy::turn(grid, work.tile, q_tile.m_block);
    int const index = q_tile_index<Traits>(arguments, work, q_tile);
    int* const counter =
        arguments.params.dq_semaphore + int64_t{index} * kSemaphoreStride;
    float* const accum = accum_of(work, q_tile);
    if (turn == 0) {
      // The first contributor waits for nobody and stores, so that dq_accum needs no zeroes.
      move_tile(accum, [](float* target, float const* source) {
        bulk::store(target, source, Traits::kBytesDqPart);
      });
    } else {
      semaphore::wait_turn(counter, turn);
      semaphore::fence_generic_to_async();
      move_tile(accum, [](float* target, float const* source) {
        bulk::reduce_add(target, source, Traits::kBytesDqPart);
      });
    }
    bool const is_last = turn + 1 == Policy::num_turns(grid, q_tile.m_block);
    if (is_last && !arguments.params.has_converters) {
      return;
    }
    // Correctness: full completion, not `.read`: neither the next contributor's sum nor the
    // converter's loads may overtake.
    bulk::wait_complete();
    if (is_last) {
      push_finished(arguments.params, index);
    } else {
      semaphore::pass_turn(counter);
    }
  }

  // Waits until each warpgroup has written its share of the tile, moves it, and gives the shared
  // memory back as soon as the copy engine has read it; part after part.
  template <class Move>
  CUTE_DEVICE void move_tile(float* accum, Move move) {
    constexpr int kWarpgroups = Traits::kNumMmaWarpgroups;
    int const stage = counts.q_tiles() % Traits::kStagesDq;
    CUTE_UNROLL
    for (int part = 0; part < Traits::kDqParts; ++part) {
      uint32_t const phase =
          (counts.q_tiles() / kNumDqWriters * Traits::kDqParts + part) % 2;
      CUTE_UNROLL
      for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
        // Arrives: the warps (4) of the MMA warpgroup. Waits: this lane. Protects: smem.dq of this
        // stage until it is fully written.
        cutlass::arch::ClusterBarrier::wait(&smem.dq_full[writer][warpgroup], phase);
        // Correctness: orders the MMA warps' stores, generic accesses that this lane has acquired,
        // before what the copy engine does for it.
        cutlass::arch::fence_view_async_shared();
        move(accum + warpgroup * Traits::kDqFloatsPerWarpgroup + part * Traits::kDqFloatsPerPart,
             smem.dq[stage][warpgroup]);
        bulk::commit();
      }
      // Arrives: this lane (1). Waits: the MMA warpgroup, before it writes its share again.
      // Guarantee: `.read` completion is enough here, because only shared memory changes hands.
      for_each(make_seq<kWarpgroups>{}, [&](auto warpgroup) {
        bulk::wait_source_read<kWarpgroups - 1 - decltype(warpgroup)::value>();
        cutlass::arch::ClusterBarrier::arrive(&smem.dq_empty[writer][warpgroup]);
      });
    }
  }
};

}  // namespace dash::bwd
