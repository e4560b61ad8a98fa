// descending: the paper's Descending Q-Tile Iteration. KV tiles count upwards, Q tiles downwards,
// one head after the other: under a causal mask the SMs that end early start the next head's long
// tiles.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Descending : Monotone {
  static constexpr char const* kName = "descending";
  static constexpr ScheduleKind kKind = ScheduleKind::kDescending;
  static constexpr char const* kLegalFor = "any mask";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, 1, ticket);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return sweep_down(grid.m_end(tile.n_block) - 1);
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return tile.n_block - grid.n_begin(m_block);
  }
};

}  // namespace dash::schedule
