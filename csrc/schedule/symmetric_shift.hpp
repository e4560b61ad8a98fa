// symmetric_shift: the paper's Symmetric Shift Scheduling for a causal mask. An item is a pair of
// KV tiles, the long one i and the short one N - 1 - i, so that all items are equally long. A wave
// of pairs runs together: long tiles first rotate over the Q tiles that all of them see, each from
// another start, then finish their own; short tiles count downwards. Invariant: turns follow the
// visiting steps of a wave's items, ties by decreasing i; and all of an earlier wave comes before a
// later one.
#pragma once

#include "schedule/policy.hpp"

namespace dash::schedule {

struct SymmetricShift : Ordered {
  static constexpr char const* kName = "symmetric_shift";
  static constexpr ScheduleKind kKind = ScheduleKind::kSymmetricShift;
  static constexpr char const* kLegalFor =
      "a causal mask with seqlen_q == seqlen_k and Q tiles no taller than KV tiles";
  // Pairs of one head that run together at most. Correctness: a constant of the order. Tuning: the
  // SMs of an H100 or H200, so that a wave can fill one.
  static constexpr int kWave = 132;

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return mask == MaskKind::kCausal;
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    if (!supports(grid.mask) || grid.seqlen_q != grid.seqlen_k) {
      return false;
    }
    // Every long tile of a wave needs a start of its own.
    for (int i = 0; i < num_pairs(grid); i += kWave) {
      Wave const wave = wave_of(grid, i);
      if (wave.rotated < wave.pairs) {
        return false;
      }
    }
    return true;
  }
  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const& grid) {
    return max_int(min_int(num_pairs(grid), kWave), 1);
  }
  DASH_HOST_DEVICE static constexpr int gang_end(TileGrid const& grid, int ticket) {
    int const pairs = num_pairs(grid);
    int const of_list = ticket / pairs * pairs;
    return of_list + min_int(pairs, ((ticket - of_list) / kWave + 1) * kWave);
  }
  DASH_HOST_DEVICE static constexpr int num_tickets(TileGrid const& grid) {
    return num_pairs(grid) * grid.num_heads * grid.batch;
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    int const pairs = num_pairs(grid);
    int const list = ticket / pairs;
    int const position = ticket - list * pairs;
    // Waves in order; within one the last pair first: it adds first, so start skew adds slack.
    int const first = position / kWave * kWave;
    int const i = first + min_int(kWave, pairs - first) - 1 - (position - first);
    int const bidb = list / grid.num_heads;
    return {.n_block = i, .bidh = list - bidb * grid.num_heads, .bidb = bidb};
  }
  DASH_HOST_DEVICE static constexpr WorkTile next_tile(TileGrid const& grid,
                                                       WorkTile const& tile) {
    int const partner = grid.num_n_blocks() - 1 - tile.n_block;
    return partner > tile.n_block
               ? WorkTile{.n_block = partner, .bidh = tile.bidh, .bidb = tile.bidb}
               : no_tile();
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    if (is_short(grid, tile)) {
      return sweep_down(grid.num_m_blocks() - 1);
    }
    Wave const wave = wave_of(grid, tile.n_block);
    return {.first = wave.shared_begin + wave.stride * (tile.n_block - wave.first),
            .direction = 1,
            .rotated = wave.rotated,
            .rest = grid.m_begin(tile.n_block)};
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    int const num_n_blocks = grid.num_n_blocks();
    bool const is_second = is_short(grid, tile);
    int const i = is_second ? num_n_blocks - 1 - tile.n_block : tile.n_block;
    Wave const wave = wave_of(grid, i);
    int const last = grid.n_end(m_block) - 1;
    // Contributors of earlier waves: all of their long tiles, and the short ones that see m_block.
    int const before = wave.first + max_int(last - (num_n_blocks - wave.first) + 1, 0);
    int const place = i - wave.first;
    if (is_second) {
      // The unpaired middle tile of an odd number is the last of its wave and has no short tile.
      bool const has_middle = 2 * (wave.first + wave.pairs) > num_n_blocks;
      return before + 2 * wave.pairs - (has_middle ? 1 : 0) - 1 - place;
    }
    if (m_block < wave.shared_begin) {
      return before + last - tile.n_block;
    }
    // The last item whose start is at or before m_block reaches it first.
    int const first = min_int((m_block - wave.shared_begin) >> (wave.stride - 1), wave.pairs - 1);
    return before + first - place + (place <= first ? 0 : wave.pairs);
  }

 private:
  // The pairs of one head that run together with pair i.
  struct Wave {
    int first;         // its first pair
    int pairs;         // how many
    int shared_begin;  // Q tiles from here on are seen by all its long tiles
    int rotated;       // how many those are
    int stride;        // Q tiles from one long tile's start to the next one's, 1 or 2
  };

  DASH_HOST_DEVICE static constexpr int num_pairs(TileGrid const& grid) {
    return (grid.num_n_blocks() + 1) / 2;
  }
  DASH_HOST_DEVICE static constexpr bool is_short(TileGrid const& grid, WorkTile const& tile) {
    return tile.n_block >= num_pairs(grid);
  }
  DASH_HOST_DEVICE static constexpr Wave wave_of(TileGrid const& grid, int i) {
    int const first = i / kWave * kWave;
    int const pairs = min_int(kWave, num_pairs(grid) - first);
    int const shared_begin = grid.m_begin(first + pairs - 1);
    int const rotated = grid.num_m_blocks() - shared_begin;
    return {.first = first, .pairs = pairs, .shared_begin = shared_begin, .rotated = rotated,
            .stride = rotated >= 2 * pairs ? 2 : 1};
  }
};

}  // namespace dash::schedule
