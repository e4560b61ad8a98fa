// shift: the paper's Shift Scheduling for a full mask. The KV tiles of a head start together, each
// at another Q tile, and go round: at any step no two of them visit the same Q tile. Invariant: KV
// tile n reaches m at step (m - (N - 1 - n)) mod M, and turns follow those steps.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Shift : Ordered {
  static constexpr char const* kName = "shift";
  static constexpr ScheduleKind kKind = ScheduleKind::kShift;
  static constexpr char const* kLegalFor = "a full mask with at least as many Q tiles as KV tiles";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask == MaskKind::kFull;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask) && grid.num_n_blocks() <= grid.num_m_blocks();
  }
  // All KV tiles of a head.
  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const& grid) {
    return max_int(grid.num_n_blocks(), 1);
  }
  DASH_HOST_DEVICE static constexpr int gang_end(TileGrid const& grid, int ticket) {
    int const num_n_blocks = grid.num_n_blocks();
    return (ticket / num_n_blocks + 1) * num_n_blocks;
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, 1, ticket);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    // The KV tile that is dispatched first starts at the last Q tile of all starts: CTAs that start
    // later than others reach a Q tile later still, so start skew adds slack.
    return sweep_round(grid.num_n_blocks() - 1 - tile.n_block, grid.num_m_blocks());
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    int const num_n_blocks = grid.num_n_blocks();
    int const after_first = tile.n_block - max_int(num_n_blocks - 1 - m_block, 0);
    return after_first < 0 ? after_first + num_n_blocks : after_first;
  }
};

}  // namespace dash::schedule
