// The contract of a schedule policy: a stateless struct of static constexpr functions over
// TileGrid. Which work tile does a ticket take (dispatch)? In which order does a work tile visit
// its Q tiles (sweep)? How many contributions to dQ[m] come first (turn)? Who must run at the same
// time? Invariants, each proved by a host test over all small grids (tests/schedule):
//   cover        the items of tickets 0 .. num_tickets - 1 hold every work tile exactly once;
//   permutation  over its steps a work tile visits exactly its Q tiles, once each;
//   bijection    the turns of m_block are exactly 0 .. num_turns - 1;
//   progress     with gang_size or more CTAs that take tickets in order, execution ends;
//   stability    sweep and turn depend on lengths, tile sizes, mask and the parity of bidh only.
#pragma once

#include <concepts>

#include "schedule/sweep.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::schedule {

// An item is what one ticket stands for: `work(grid, ticket)`, then next_tile of that, and so on
// until no_tile(). One CTA runs the tiles of an item one after the other.
//
// In a packed problem each sequence is a grid of its own (sequence_grid.hpp), and one sequence's
// tickets follow another's. kLegalForPacked: whatever the lengths, which only the device knows,
// is_legal is supports(mask) and gang_size is 1.
//
// gang_size > 1: the items of a gang, which have consecutive tickets, wait for each other, so that
// many CTAs must be resident at once, and no CTA may hold two of them: it takes no other ticket
// before all of its gang's, up to gang_end, are taken, or it has made its item's last addition.
template <class P>
concept Policy = requires(TileGrid const& grid, WorkTile const& tile, MaskKind mask, int i) {
  { P::kName } -> std::convertible_to<char const*>;
  { P::kKind } -> std::convertible_to<ScheduleKind>;
  { P::kLegalFor } -> std::convertible_to<char const*>;  // is_legal in words
  { P::kRepeatable } -> std::convertible_to<bool>;
  { P::kBatchInvariant } -> std::convertible_to<bool>;
  { P::kDeviceInvariant } -> std::convertible_to<bool>;
  { P::kLegalForPacked } -> std::convertible_to<bool>;
  { P::supports(mask) } -> std::same_as<bool>;   // legal for some grid with this mask
  { P::is_legal(grid) } -> std::same_as<bool>;   // asked on the host only
  { P::gang_size(grid) } -> std::same_as<int>;   // asked on the host only
  { P::gang_end(grid, i) } -> std::same_as<int>;  // the ticket behind those of ticket i's gang
  { P::is_ordered(grid) } -> std::same_as<bool>;
  { P::num_tickets(grid) } -> std::same_as<int>;
  { P::work(grid, i) } -> std::same_as<WorkTile>;
  { P::next_tile(grid, tile) } -> std::same_as<WorkTile>;
  { P::sweep(grid, tile) } -> std::same_as<Sweep>;
  { P::turn(grid, tile, i) } -> std::same_as<int>;
  { P::num_turns(grid, i) } -> std::same_as<int>;
};

// What every ordered policy has in common. The order never reads batch, bidb, section or the
// device, hence the three claims.
struct Ordered {
  static constexpr bool kRepeatable = true;
  static constexpr bool kBatchInvariant = true;
  static constexpr bool kDeviceInvariant = true;
  static constexpr bool kLegalForPacked = false;

  DASH_HOST_DEVICE static constexpr bool is_ordered(TileGrid const&) { return true; }
  DASH_HOST_DEVICE static constexpr int num_tickets(TileGrid const& grid) {
    return grid.num_work_tiles();
  }
  DASH_HOST_DEVICE static constexpr WorkTile next_tile(TileGrid const&, WorkTile const&) {
    return no_tile();
  }
  DASH_HOST_DEVICE static constexpr int num_turns(TileGrid const& grid, int m_block) {
    return grid.num_contributors(m_block);
  }
};

// Along every chain of turns the tickets increase: no deadlock with one CTA or more.
struct Monotone : Ordered {
  static constexpr bool kLegalForPacked = true;

  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const&) { return 1; }
  DASH_HOST_DEVICE static constexpr int gang_end(TileGrid const&, int ticket) {
    return ticket + 1;
  }
};

// Sections: the (batch, head) list is cut into sections of `section` heads. Inside a section the
// KV tile varies slowest and the head fastest, so few KV tiles of one head run at a time.
// Returns the work tile whose n_block counts 0, 1, ... in dispatch order.
DASH_HOST_DEVICE constexpr WorkTile section_work(TileGrid const& grid, int section, int ticket) {
  int const num_n_blocks = grid.num_n_blocks();
  int const num_lists = grid.num_heads * grid.batch;
  int const index = ticket / (section * num_n_blocks);
  int const rest = ticket - index * (section * num_n_blocks);
  int const heads_here = min_int(section, num_lists - index * section);
  int const position = rest / heads_here;
  int const list = index * section + (rest - position * heads_here);
  int const bidb = list / grid.num_heads;
  return {.n_block = position, .bidh = list - bidb * grid.num_heads, .bidb = bidb};
}

}  // namespace dash::schedule
