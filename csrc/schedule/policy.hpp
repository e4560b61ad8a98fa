// The contract of a schedule policy: a stateless struct of constexpr functions over TileGrid.
// It answers three questions. Which work tile does a ticket take (dispatch)? Which Q tile does
// a work tile visit at a step (traversal)? How many contributions to dQ[m] come first (turn)?
//
// Invariants, each proved by a host test over all small grids (tests/schedule):
//   cover        tickets 0 .. num_work_tiles - 1 take every work tile exactly once;
//   permutation  over its steps a work tile visits exactly its Q tiles, once each;
//   bijection    the turns of m_block are exactly 0 .. num_turns - 1;
//   progress     with any number of resident CTAs that take tickets in order, execution ends;
//   stability    m_block and turn depend on lengths, tile sizes and mask only.
#pragma once

#include <concepts>

#include "schedule/tile_grid.hpp"

namespace dash::schedule {

template <class P>
concept Policy = requires(TileGrid const& grid, WorkTile const& tile, MaskKind mask, int i) {
  { P::kName } -> std::convertible_to<char const*>;
  { P::kKind } -> std::convertible_to<ScheduleKind>;
  { P::supports(mask) } -> std::same_as<bool>;
  { P::is_ordered(grid) } -> std::same_as<bool>;
  { P::work(grid, i) } -> std::same_as<WorkTile>;
  { P::m_block(grid, tile, i) } -> std::same_as<int>;
  { P::turn(grid, tile, i) } -> std::same_as<int>;
  { P::num_turns(grid, i) } -> std::same_as<int>;
};

// Sections: the (batch, head) list is cut into sections of grid.section heads. Inside a section the
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
