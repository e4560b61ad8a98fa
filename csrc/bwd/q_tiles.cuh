// The sequence of Q tiles that a work tile visits: the one iterator that load and dQ writer warps
// share, so that they agree by construction; MMA warps only count. Follows the published sweep.
// Q tile outer, query head inner: dK and dV of a work tile sum over the query heads of its group,
// or of its part of the group.
#pragma once

#include <cstdint>

#include "bwd/params.hpp"
#include "bwd/work.cuh"
#include "common/worked_out.cuh"
#include "schedule/sweep.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct QTile {
  int m_block;
  int bidh;       // query head
  bool is_first;  // of its work tile
};

// How many Q tiles and work tiles came before, each modulo 2^16: all that ring positions need.
// Tuning: two counters, or the states of five rings, spill in the registers of these warps.
struct PackedCounts {
  uint32_t packed;

  __device__ __forceinline__ int q_tiles() const { return packed & 0xffffu; }
  __device__ __forceinline__ int work_tiles() const { return packed >> 16; }
  __device__ __forceinline__ int last_work_tile() const { return (packed - 0x10000u) >> 16; }
  __device__ __forceinline__ void next_q_tile() {
    packed = (packed & 0xffff0000u) | ((packed + 1) & 0xffffu);
  }
  __device__ __forceinline__ void next_work_tile() { packed += 0x10000u; }
};

// Steps of a work tile: Q tiles of each query head.
template <class Traits>
__device__ __forceinline__ int num_steps(BwdParams const& params, schedule::WorkTile const& tile,
                                         Work const& work) {
  return Traits::kIsDense ? Traits::grid(params).num_steps(tile.n_block) : work.num_steps;
}

// Calls `visit(QTile)` for each Q tile of `tile`, in the policy's order. `work` is what was
// published of the tile, in shared memory. Tuning: it is read again at each step, because registers
// are scarce.
template <class Traits, class Visit>
__device__ __forceinline__ void for_each_q_tile(BwdParams const& params,
                                                schedule::WorkTile const& tile,
                                                Work const& work, Visit visit) {
  int const dense_steps = Traits::kIsDense ? num_steps<Traits>(params, tile, work) : 0;
  for (int step = 0; step < (Traits::kIsDense ? dense_steps : work.num_steps); ++step) {
    int const num_m_blocks = Traits::grid(params, work.sequence).num_m_blocks();
    int m_block = schedule::m_block_of(work.sweep, num_m_blocks, step);
    worked_out_here(m_block);
    for (int member = 0; member < params.part_size; ++member) {
      visit(QTile{.m_block = m_block,
                  .bidh = tile.bidh * params.part_size + member,
                  .is_first = step == 0 && member == 0});
    }
  }
}

// Index of a query head's Q tile in the workspace, in tiles; the preprocess and postprocess grids
// have one CTA for each, so 32 bits hold it.
template <class Traits>
__device__ __forceinline__ int q_tile_index(typename Traits::MainArguments const& arguments,
                                            Work const& work, QTile q_tile) {
  if constexpr (Traits::kIsDense) {
    BwdParams const& params = arguments.params;
    return (work.tile.bidb * params.num_heads + q_tile.bidh) *
               Traits::grid(params).num_m_blocks() +
           q_tile.m_block;
  } else {
    return work.first_q_tile + q_tile.bidh * arguments.q_tiles_of_a_head + q_tile.m_block;
  }
}

}  // namespace dash::bwd
