// Reads "seqlen_q seqlen_k block_m block_n heads batch window_left window_right schedule section"
// lines and prints, for each, the dispatch order and every walk, straight from the headers: what a
// second build of the same policies answers.
#include <iostream>

#include "schedule/choose.hpp"
#include "schedule/simulate.hpp"

int main() {
  using namespace dash;
  using namespace dash::schedule;
  TileGrid grid{};
  int schedule = 0;
  while (std::cin >> grid.seqlen_q >> grid.seqlen_k >> grid.block_m >> grid.block_n >>
         grid.num_heads >> grid.batch >> grid.window_left >> grid.window_right >> schedule >>
         grid.section) {
    grid.mask = mask_of(grid.window_left, grid.window_right);
    grid.schedule = static_cast<ScheduleKind>(schedule);
    for (int ticket = 0; ticket < BuiltIn::num_tickets(grid); ++ticket) {
      for (WorkTile const& tile : item(grid, ticket)) {
        std::cout << tile.n_block << ',' << tile.bidh << ',' << tile.bidb << ' ';
      }
    }
    std::cout << '|';
    for (int bidh = 0; bidh < min_int(grid.num_heads, 2); ++bidh) {
      for (int n_block = 0; n_block < grid.num_n_blocks(); ++n_block) {
        for (auto const& [m_block, turn] : walk(grid, {n_block, bidh, 0})) {
          std::cout << ' ' << m_block << ':' << turn;
        }
        std::cout << ';';
      }
    }
    std::cout << '\n';
  }
  return 0;
}
