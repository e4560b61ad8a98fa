// A model of the main backward kernel's hand-over, without time: items are taken in ticket order by
// a number of slots (resident CTAs); each visits its Q tiles in its traversal order and adds to a
// tile only when that tile's counter equals its turn. Host only, for tests and tools. Invariant:
// nothing here knows a policy; it asks BuiltIn, as the kernel does.
#pragma once

#include <algorithm>
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
  Sweep const sweep = BuiltIn::sweep(grid, tile);
  for (int step = 0; step < grid.num_steps(tile.n_block); ++step) {
    int const m_block = m_block_of(sweep, grid.num_m_blocks(), step);
    visits.emplace_back(m_block, BuiltIn::turn(grid, tile, m_block));
  }
  return visits;
}

// An item that a slot holds: the grid that it is of, its present work tile, and the step whose add
// comes next.
struct HeldItem {
  std::size_t grid;
  int ticket;
  WorkTile tile;
  int step;
};

// Contributions to each Q tile of a grid so far.
using Counters = std::vector<int>;

// Adds of `item` that can go through now; true if there was any.
inline bool advance(TileGrid const& grid, HeldItem& item, Counters& counters) {
  bool moved = false;
  int const list = item.tile.bidb * grid.num_heads + item.tile.bidh;
  while (item.tile.n_block >= 0) {
    if (item.step == grid.num_steps(item.tile.n_block)) {
      item.tile = BuiltIn::next_tile(grid, item.tile);
      item.step = 0;
      moved = true;
      continue;
    }
    Sweep const sweep = BuiltIn::sweep(grid, item.tile);
    int const m_block = m_block_of(sweep, grid.num_m_blocks(), item.step);
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

// (grid, its ticket) of all tickets of several grids, those of the first grid first.
inline std::vector<std::pair<std::size_t, int>> all_tickets(std::vector<TileGrid> const& grids) {
  std::vector<std::pair<std::size_t, int>> tickets;
  for (std::size_t index = 0; index < grids.size(); ++index) {
    for (int ticket = 0; ticket < BuiltIn::num_tickets(grids[index]); ++ticket) {
      tickets.emplace_back(index, ticket);
    }
  }
  return tickets;
}

// Whether a slot takes a second ticket while it works on an item.
enum class TakesAhead {
  kNever,
  kKeepsGangsApart,  // as the kernel: if all tickets of the item's gang are taken
  kAlways,           // for tests: what the rule is for
};

// Whether every item finishes when `slots` CTAs take the tickets of the grids in the given order,
// as numbers of all_tickets (normally 0, 1, 2, ...), as soon as they may. Several grids are the
// sequences of a packed problem. False is a deadlock: every slot holds an item that waits.
inline bool simulate_progress(std::vector<TileGrid> const& grids, int slots,
                              std::vector<int> const& order, TakesAhead ahead) {
  std::vector<Counters> counters;
  for (TileGrid const& grid : grids) {
    counters.emplace_back(
        static_cast<std::size_t>(grid.num_m_blocks()) * grid.num_heads * grid.batch, 0);
  }
  auto const tickets = all_tickets(grids);
  std::vector<int> num_taken(grids.size(), 0);
  std::size_t next = 0;
  // The first item of a slot is the one that it works on.
  std::vector<std::vector<HeldItem>> held(slots);
  auto const may_take = [&](std::vector<HeldItem> const& items) {
    if (next == order.size() || items.size() == 2) {
      return false;
    }
    if (items.empty() || ahead == TakesAhead::kAlways) {
      return true;
    }
    std::size_t const grid = items[0].grid;
    return ahead == TakesAhead::kKeepsGangsApart &&
           num_taken[grid] >= BuiltIn::gang_end(grids[grid], items[0].ticket);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::vector<HeldItem>& items : held) {
      while (may_take(items)) {
        auto const [grid, ticket] = tickets.at(order[next++]);
        ++num_taken[grid];
        items.push_back({grid, ticket, BuiltIn::work(grids[grid], ticket), 0});
        moved = true;
      }
    }
    for (std::vector<HeldItem>& items : held) {
      if (items.empty()) {
        continue;
      }
      HeldItem& item = items.front();
      moved = advance(grids[item.grid], item, counters[item.grid]) || moved;
      if (item.tile.n_block < 0) {
        items.erase(items.begin());
      }
    }
  }
  return next == order.size() &&
         std::all_of(held.begin(), held.end(), [](auto const& items) { return items.empty(); });
}

}  // namespace dash::schedule
