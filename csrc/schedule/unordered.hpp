// unordered: no turns. The dispatch and traversal of FlashAttention-3's non-deterministic kernel:
// sections of heads, with a causal mask the longest KV tile first. The baseline that the ordered
// policies are measured against.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Unordered {
  static constexpr char const* kName = "unordered";
  static constexpr ScheduleKind kKind = ScheduleKind::kUnordered;

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_ordered(TileGrid const&) { return false; }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, grid.section, ticket);
  }
  DASH_HOST_DEVICE static constexpr int m_block(TileGrid const& grid, WorkTile const& tile,
                                                int step) {
    return grid.m_begin(tile.n_block) + step;
  }
  // No contribution waits for another.
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const&, WorkTile const&, int) { return 0; }
  DASH_HOST_DEVICE static constexpr int num_turns(TileGrid const& grid, int m_block) {
    return grid.num_contributors(m_block);
  }
};

}  // namespace dash::schedule
