// mirrored: sections of even heads, KV tiles downwards and Q tiles upwards, alternate with sections
// of odd heads, KV tiles upwards and Q tiles downwards (causal). The long KV tiles of two sections
// meet; who ends early takes the next section's. Contributors of a Q tile stay apart across the
// change. Invariant: the direction is bidh's parity, so that neither batch nor section changes a
// bit. With one KV head every section is even.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct Mirrored : Monotone {
  static constexpr char const* kName = "mirrored";
  static constexpr ScheduleKind kKind = ScheduleKind::kMirrored;
  static constexpr char const* kLegalFor = "a causal mask";

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask == MaskKind::kCausal;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return supports(grid.mask);
  }
  // The lists of even heads and those of odd heads are two sequences. Sections of S lists are taken
  // from the one and the other in turn; with an odd number of heads the even ones outlast the odd.
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    int const num_n_blocks = grid.num_n_blocks();
    int const num_odd = grid.batch * (grid.num_heads / 2);
    int const num_even = grid.batch * grid.num_heads - num_odd;
    int const section_tickets = grid.section * num_n_blocks;
    // Lists that whole pairs of sections before this ticket took, of each sequence.
    int taken = min_int(ticket / (2 * section_tickets), num_odd / grid.section) * grid.section;
    int rest = ticket - 2 * taken * num_n_blocks;
    int const evens = min_int(grid.section, num_even - taken);
    if (rest >= evens * num_n_blocks) {
      rest -= evens * num_n_blocks;
      int const odds = min_int(grid.section, num_odd - taken);
      if (rest < odds * num_n_blocks) {
        return tile_of(grid, 1, taken, odds, rest);
      }
      rest -= odds * num_n_blocks;
      int const more = rest / section_tickets;
      rest -= more * section_tickets;
      taken += evens + more * grid.section;
    }
    return tile_of(grid, 0, taken, min_int(grid.section, num_even - taken), rest);
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return tile.bidh % 2 == 0 ? sweep_up(grid.m_begin(tile.n_block))
                              : sweep_down(grid.m_end(tile.n_block) - 1);
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return tile.bidh % 2 == 0 ? grid.n_end(m_block) - 1 - tile.n_block
                              : tile.n_block - grid.n_begin(m_block);
  }

 private:
  // The `index`-th work tile of a section of `lists` lists that starts at number `taken` of the
  // even (parity 0) or odd (1) sequence.
  DASH_HOST_DEVICE static constexpr WorkTile tile_of(TileGrid const& grid, int parity, int taken,
                                                     int lists, int index) {
    int const heads = (grid.num_heads + 1 - parity) / 2;  // of this parity, per batch entry
    int const position = index / lists;
    int const list = taken + index - position * lists;
    int const bidb = list / heads;
    return {.n_block = parity == 0 ? grid.num_n_blocks() - 1 - position : position,
            .bidh = 2 * (list - bidb * heads) + parity,
            .bidb = bidb};
  }
};

}  // namespace dash::schedule
