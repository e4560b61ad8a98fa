// A model of the main backward kernel's hand-over, without time: items are taken in ticket order by
// a number of slots (resident CTAs); each visits its Q tiles in its traversal order and adds to a
// tile only when that tile's counter equals its turn. Host only, for tests and tools. Invariant:
// nothing here knows a policy; it asks BuiltIn, as the kernel does.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "schedule/any_of.hpp"

namespace dash::schedule {

// The work tiles of a ticket's item, in the order in which its CTA runs them.
inline std::vector<WorkTile> item(TileGrid const& grid, int ticket) {
  std::vector<WorkTile> tiles;
  for (WorkTile tile = BuiltIn::work(grid, ticket); tile.n_block >= 0;
       tile = BuiltIn::next_tile(grid, tile)) {
    tiles.push_back(tile);
  }
  return tiles;
}

// The order in which a work tile visits its Q tiles, with its turn at each: (m_block, turn).
inline std::vector<std::pair<int, int>> walk(TileGrid const& grid, WorkTile const& tile) {
  std::vector<std::pair<int, int>> visits;
  for (int step = 0; step < grid.num_steps(tile.n_block); ++step) {
    int const m_block = BuiltIn::m_block(grid, tile, step);
    visits.emplace_back(m_block, BuiltIn::turn(grid, tile, m_block));
  }
  return visits;
}

// A slot's present work tile, and the step whose add comes next.
struct RunningItem {
  WorkTile tile;
  int step;
};

// Adds of `item` that can go through now; true if there was any.
inline bool advance(TileGrid const& grid, RunningItem& item, std::vector<int>& counters) {
  bool moved = false;
  int const list = item.tile.bidb * grid.num_heads + item.tile.bidh;
  while (item.tile.n_block >= 0) {
    if (item.step == grid.num_steps(item.tile.n_block)) {
      item = {.tile = BuiltIn::next_tile(grid, item.tile), .step = 0};
      moved = true;
      continue;
    }
    int const m_block = BuiltIn::m_block(grid, item.tile, item.step);
    int& counter = counters[static_cast<std::size_t>(list) * grid.num_m_blocks() + m_block];
    if (BuiltIn::is_ordered(grid) && counter != BuiltIn::turn(grid, item.tile, m_block)) {
      break;
    }
    ++counter;
    ++item.step;
    moved = true;
  }
  return moved;
}

// Whether every item finishes when `slots` CTAs take the tickets in the given order (normally
// 0, 1, 2, ...). False is a deadlock: every slot holds an item that waits.
inline bool simulate_progress(TileGrid const& grid, int slots, std::vector<int> const& tickets) {
  std::vector<int> counters(
      static_cast<std::size_t>(grid.num_m_blocks()) * grid.num_heads * grid.batch, 0);
  std::vector<RunningItem> running;
  std::size_t next = 0;
  while (next < tickets.size() || !running.empty()) {
    bool moved = false;
    while (next < tickets.size() && running.size() < static_cast<std::size_t>(slots)) {
      running.push_back({.tile = BuiltIn::work(grid, tickets[next++]), .step = 0});
      moved = true;
    }
    for (RunningItem& item : running) {
      moved = advance(grid, item, counters) || moved;
    }
    if (!moved) {
      return false;
    }
    std::erase_if(running, [](RunningItem const& item) { return item.tile.n_block < 0; });
  }
  return true;
}

}  // namespace dash::schedule
