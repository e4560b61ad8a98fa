// ring: shift with the starts of a gang spread evenly over all Q tiles of a full mask, two or more
// apart, so that there is time for a hand-over between consecutive contributors. Where the KV tiles
// of a head are too many for that they make two gangs, even ones and odd ones, which follow each
// other; other heads of the section keep the SMs busy.
// Invariant: of the N KV tiles of a gang, the one of place p reaches m at step
// (m - floor(p M / N)) mod M; turns follow the gangs, and within one those steps.
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
  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const& grid) {
    return max_int(size_of(grid, 0), 1);
  }
  DASH_HOST_DEVICE static constexpr int gang_end(TileGrid const& grid, int ticket) {
    Member const member = member_of(grid, ticket);
    return ticket - member.index + size_of(grid, member.gang);
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    Member const member = member_of(grid, ticket);
    int const bidb = member.list / grid.num_heads;
    return {.n_block = member.index * num_gangs(grid) + member.gang,
            .bidh = member.list - bidb * grid.num_heads,
            .bidb = bidb};
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    int const num_m_blocks = grid.num_m_blocks();
    int const size = size_of(grid, gang_of(grid, tile));
    return sweep_round(place(grid, tile) * num_m_blocks / size, num_m_blocks);
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    int const gang = gang_of(grid, tile);
    int const size = size_of(grid, gang);
    // The last KV tile whose start is at or before m_block reaches it first.
    int const first = ((m_block + 1) * size - 1) / grid.num_m_blocks();
    int const own = place(grid, tile);
    return gang * size_of(grid, 0) + first - own + (first < own ? size : 0);
  }

 private:
  // What a ticket stands for: KV tile `index` of a gang, in the order of dispatch.
  struct Member {
    int list;  // (batch, head)
    int gang;
    int index;
  };

  // Gangs of a head: 1 or 2, so that starts are two Q tiles or more apart. Tuning: at one apart
  // each contributor waits; farther than two apart nothing is gained (H200).
  DASH_HOST_DEVICE static constexpr int num_gangs(TileGrid const& grid) {
    return 2 * grid.num_n_blocks() > grid.num_m_blocks() ? 2 : 1;
  }
  DASH_HOST_DEVICE static constexpr int gang_of(TileGrid const& grid, WorkTile const& tile) {
    return tile.n_block & (num_gangs(grid) - 1);
  }
  DASH_HOST_DEVICE static constexpr int size_of(TileGrid const& grid, int gang) {
    int const gangs = num_gangs(grid);
    return (grid.num_n_blocks() + gangs - 1 - gang) >> (gangs - 1);
  }
  // Of the gang's starts in the order of their Q tiles, which one is the KV tile's. The one that is
  // dispatched first has the last, so that each waits for one that was dispatched earlier: start
  // skew adds slack.
  DASH_HOST_DEVICE static constexpr int place(TileGrid const& grid, WorkTile const& tile) {
    int const index = tile.n_block >> (num_gangs(grid) - 1);
    return size_of(grid, gang_of(grid, tile)) - 1 - index;
  }
  // In a section the first gangs of all its lists come before the second ones.
  DASH_HOST_DEVICE static constexpr Member member_of(TileGrid const& grid, int ticket) {
    int const section_tickets = grid.section * grid.num_n_blocks();
    int const section = ticket / section_tickets;
    int const first_list = section * grid.section;
    int const lists = min_int(grid.section, grid.num_heads * grid.batch - first_list);
    int rest = ticket - section * section_tickets;
    int const gang = rest < lists * size_of(grid, 0) ? 0 : 1;
    rest -= gang * lists * size_of(grid, 0);
    int const list = rest / size_of(grid, gang);
    return {.list = first_list + list, .gang = gang, .index = rest - list * size_of(grid, gang)};
  }
};

}  // namespace dash::schedule
