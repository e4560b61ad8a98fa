// ascending: FlashAttention-3's first deterministic order. KV tiles and Q tiles count upwards,
// one head after the other.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Ascending : Monotone {
  static constexpr char const* kName = "ascending";
  static constexpr ScheduleKind kKind = ScheduleKind::kAscending;
  static constexpr char const* kLegalFor = "any mask";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, 1, ticket);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return sweep_up(grid.m_begin(tile.n_block));
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return tile.n_block - grid.n_begin(m_block);
  }
};

}  // namespace dash::schedule
