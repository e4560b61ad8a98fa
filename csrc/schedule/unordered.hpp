// unordered: no turns. Sections of heads, KV tiles and Q tiles upwards, and whoever has a sum adds
// it. The baseline that the ordered policies are measured against.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Unordered : Monotone {
  static constexpr char const* kName = "unordered";
  static constexpr ScheduleKind kKind = ScheduleKind::kUnordered;
  static constexpr char const* kLegalFor = "any mask";
  static constexpr bool kRepeatable = false;
  static constexpr bool kBatchInvariant = false;
  static constexpr bool kDeviceInvariant = false;

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const&) { return true; }
  DASH_HOST_DEVICE static constexpr bool is_ordered(TileGrid const&) { return false; }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, grid.section, ticket);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return sweep_up(grid.m_begin(tile.n_block));
  }
  // No contribution waits for another.
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const&, WorkTile const&, int) { return 0; }
};

}  // namespace dash::schedule
