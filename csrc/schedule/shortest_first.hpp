// shortest_first: FlashAttention-3's present deterministic order for a causal mask. The last KV
// tile, which has the fewest Q tiles, starts first and adds first.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct ShortestFirst : Monotone {
  static constexpr char const* kName = "shortest_first";
  static constexpr ScheduleKind kKind = ScheduleKind::kShortestFirst;
  static constexpr char const* kLegalFor = "a causal mask or a window";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask != MaskKind::kFull;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    WorkTile tile = section_work(grid, grid.section, ticket);
    tile.n_block = grid.num_n_blocks() - 1 - tile.n_block;
    return tile;
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return sweep_up(grid.m_begin(tile.n_block));
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return grid.n_end(m_block) - 1 - tile.n_block;
  }
};

}  // namespace dash::schedule
