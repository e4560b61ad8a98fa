// ring: shift with the starts spread evenly over all Q tiles of a full mask, so that consecutive
// contributors of a Q tile are M / N steps apart.
// Invariant: KV tile n reaches m at step (m - floor((N - 1 - n) M / N)) mod M, and turns follow
// those steps.
#pragma once

#include <cstdint>

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Ring : Ordered {
  static constexpr char const* kName = "ring";
  static constexpr ScheduleKind kKind = ScheduleKind::kRing;
  static constexpr char const* kLegalFor = "a full mask with at least as many Q tiles as KV tiles";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask == MaskKind::kFull;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    // Correctness: the products below must fit in 32 bits.
    return supports(grid.mask) && grid.num_n_blocks() <= grid.num_m_blocks() &&
           int64_t{grid.num_n_blocks()} * grid.num_m_blocks() < int64_t{1} << 31;
  }
  // All KV tiles of a head.
  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const& grid) {
    return max_int(grid.num_n_blocks(), 1);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return section_work(grid, 1, ticket);
  }
  DASH_HOST_DEVICE static constexpr int m_block(TileGrid const& grid, WorkTile const& tile,
                                                int step) {
    int const num_m_blocks = grid.num_m_blocks();
    int const m_block = place(grid, tile) * num_m_blocks / grid.num_n_blocks() + step;
    return m_block < num_m_blocks ? m_block : m_block - num_m_blocks;
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    int const num_n_blocks = grid.num_n_blocks();
    // The last KV tile whose start is at or before m_block reaches it first.
    int const first = ((m_block + 1) * num_n_blocks - 1) / grid.num_m_blocks();
    int const own = place(grid, tile);
    return first - own + (first < own ? num_n_blocks : 0);
  }

 private:
  // Of the N starts in the order of their Q tiles, which one is the KV tile's. The one that is
  // dispatched first has the last, so that each waits for one that was dispatched earlier: start
  // skew adds slack.
  DASH_HOST_DEVICE static constexpr int place(TileGrid const& grid, WorkTile const& tile) {
    return grid.num_n_blocks() - 1 - tile.n_block;
  }
};

}  // namespace dash::schedule
