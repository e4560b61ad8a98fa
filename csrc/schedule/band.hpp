// band: a band of few KV tiles of each head runs at a time, many heads side by side. KV tiles count
// upwards; Q tiles count upwards for a full mask, downwards under a causal mask or a window,
// so that each contributor of a Q tile reaches it later than its predecessor.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Band : Monotone {
  static constexpr char const* kName = "band";
  static constexpr ScheduleKind kKind = ScheduleKind::kBand;
  static constexpr char const* kLegalFor = "any mask";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, grid.section, ticket);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return grid.mask == MaskKind::kFull ? sweep_up(0) : sweep_down(grid.m_end(tile.n_block) - 1);
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return tile.n_block - grid.n_begin(m_block);
  }
};

}  // namespace dash::schedule
