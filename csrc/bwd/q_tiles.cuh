// The sequence of Q tiles that a work tile visits: the one iterator that all roles share, so that
// load, MMA and dQ writer warps agree by construction. Asks the schedule policy.
// Q tile outer, query head of the group inner: dK and dV of a KV head sum over its whole group.
#pragma once

#include <cstdint>

#include "bwd/params.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct QTile {
  int m_block;
  int bidh;       // query head
  bool is_first;  // of its work tile
};

// How many Q tiles and work tiles came before, each modulo 2^16: all that ring positions need.
// Tuning: two counters, or the states of five rings, spill in 24 registers.
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

// Calls `visit(QTile)` for each Q tile of `tile`, in the policy's order.
template <class Traits, class Visit>
__device__ __forceinline__ void for_each_q_tile(BwdParams const& params,
                                                schedule::WorkTile const& tile, Visit visit) {
  schedule::TileGrid const grid = Traits::grid(params);
  int const num_steps = grid.num_steps(tile.n_block);
  for (int step = 0; step < num_steps; ++step) {
    int const m_block = Traits::Policy::m_block(grid, tile, step);
    for (int member = 0; member < params.group_size; ++member) {
      visit(QTile{.m_block = m_block,
                  .bidh = tile.bidh * params.group_size + member,
                  .is_first = step == 0 && member == 0});
    }
  }
}

// Index of a query head's Q tile among all of the batch, in tiles; the preprocess and postprocess
// grids have one CTA for each, so 32 bits hold it.
template <class Traits>
__device__ __forceinline__ int q_tile_index(BwdParams const& params,
                                            schedule::WorkTile const& tile, QTile q_tile) {
  return (tile.bidb * params.num_heads + q_tile.bidh) * Traits::grid(params).num_m_blocks() +
         q_tile.m_block;
}

}  // namespace dash::bwd
