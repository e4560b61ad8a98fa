// comb: band with the KV tiles of a causal mask combed. Of each block of 16, the even ones come
// first, then the odd ones, so that contributors that run side by side are two tiles apart.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Comb : Monotone {
  static constexpr char const* kName = "comb";
  static constexpr ScheduleKind kKind = ScheduleKind::kComb;
  static constexpr char const* kLegalFor = "a causal mask";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask == MaskKind::kCausal;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    WorkTile tile = section_work(grid, grid.section, ticket);
    tile.n_block = n_block_at(grid, tile.n_block);
    return tile;
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return sweep_down(grid.m_end(tile.n_block) - 1);
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    int const first = first_of_block(tile.n_block);
    int const x = tile.n_block - first;
    int const last = min_int(grid.n_end(m_block) - 1 - first, kBlock - 1);
    return first + x / 2 + (x % 2 == 0 ? 0 : last / 2 + 1);
  }

 private:
  static constexpr int kBlock = 16;

  DASH_HOST_DEVICE static constexpr int first_of_block(int n_block) {
    return n_block / kBlock * kBlock;
  }
  // The KV tile at a position of the dispatch order.
  DASH_HOST_DEVICE static constexpr int n_block_at(TileGrid const& grid, int position) {
    int const first = first_of_block(position);
    int const x = position - first;
    int const num_even = (min_int(kBlock, grid.num_n_blocks() - first) + 1) / 2;
    return first + (x < num_even ? 2 * x : 2 * (x - num_even) + 1);
  }
};

}  // namespace dash::schedule
