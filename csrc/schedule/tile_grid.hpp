// TileGrid: an attention problem counted in tiles, and which (m_block, n_block) tiles exist under
// the mask. A Q tile is block_m query rows, a KV tile is block_n key rows. "Head" here is a KV
// head, or one part of its query group where groups are cut into parts: each part is a list of work
// tiles of its own, and the Q tiles of all its query heads follow the same rules.
// Invariant: n_block contributes to m_block  <=>  m_begin(n) <= m < m_end(n)
//                                            <=>  n_begin(m) <= n < n_end(m).
#pragma once

#include "schedule/host_device.hpp"

namespace dash {

// kWindow: TileGrid's window_left and window_right; the others are windows without those limits.
enum class MaskKind : int { kFull = 0, kCausal = 1, kWindow = 2 };

}  // namespace dash

namespace dash::schedule {

enum class ScheduleKind : int {
  kUnordered = 0,
  kAscending = 1,
  kShortestFirst = 2,
  kBand = 3,
  kDescending = 4,
  kShift = 5,
  kSymmetricShift = 6,
  kMirrored = 7,
  kComb = 8,
  kRing = 9,
};

// One work item: a KV tile of one (batch, head), swept over its Q tiles by one CTA.
struct WorkTile {
  int n_block;
  int bidh;  // TileGrid's head: KV head * parts + part
  int bidb;  // batch entry
};

// No work tile: the answer of next_tile when an item ends, and of the kernels when no work is left.
DASH_HOST_DEVICE constexpr WorkTile no_tile() { return {.n_block = -1, .bidh = 0, .bidb = 0}; }

DASH_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
DASH_HOST_DEVICE constexpr int min_int(int a, int b) { return a < b ? a : b; }
DASH_HOST_DEVICE constexpr int max_int(int a, int b) { return a > b ? a : b; }

struct TileGrid {
  int seqlen_q;
  int seqlen_k;
  int block_m;
  int block_n;
  int num_heads;  // KV heads * parts of a query group
  int batch;
  MaskKind mask;
  ScheduleKind schedule;  // read by AnyOf only
  int section;            // (batch, head) lists per section; orders the dispatch, changes no bit
  // Read under a window mask only. "No limit" is any number that no key exceeds: at least seqlen_k
  // to the left, at least seqlen_q to the right.
  int window_left = 0;
  int window_right = 0;

  // Query i sees key j iff i + diagonal() - window_left <= j <= i + diagonal() + window_right:
  // bottom-right aligned. Causal: no left limit, window_right 0.
  DASH_HOST_DEVICE constexpr int diagonal() const { return seqlen_k - seqlen_q; }
  // The last key that query i sees is i + last_key_offset().
  DASH_HOST_DEVICE constexpr int last_key_offset() const {
    return mask == MaskKind::kCausal ? diagonal() : diagonal() + window_right;
  }
  DASH_HOST_DEVICE constexpr int first_key_offset() const { return diagonal() - window_left; }

  DASH_HOST_DEVICE constexpr int num_m_blocks() const { return ceil_div(seqlen_q, block_m); }
  DASH_HOST_DEVICE constexpr int num_n_blocks() const { return ceil_div(seqlen_k, block_n); }
  DASH_HOST_DEVICE constexpr int num_work_tiles() const {
    return num_n_blocks() * num_heads * batch;
  }

  // Q tiles that n_block contributes to: m_begin(n) .. m_end(n) - 1.
  DASH_HOST_DEVICE constexpr int m_begin(int n_block) const {
    if (mask == MaskKind::kFull) {
      return 0;
    }
    // Correctness: clamped before the division, because C++ rounds a negative quotient towards
    // zero.
    return min_int(max_int(n_block * block_n - last_key_offset(), 0) / block_m, num_m_blocks());
  }
  DASH_HOST_DEVICE constexpr int m_end(int n_block) const {
    if (mask != MaskKind::kWindow) {
      return num_m_blocks();
    }
    int const last_key = min_int((n_block + 1) * block_n, seqlen_k) - 1;
    int const rows_that_see_it = max_int(last_key - first_key_offset() + 1, 0);
    // Never before m_begin: rows that see a key of the tile are consecutive.
    return min_int(ceil_div(rows_that_see_it, block_m), num_m_blocks());
  }
  DASH_HOST_DEVICE constexpr int num_steps(int n_block) const {
    return m_end(n_block) - m_begin(n_block);
  }

  // KV tiles that contribute to m_block: n_begin(m) .. n_end(m) - 1; none if the rows see no key.
  DASH_HOST_DEVICE constexpr int n_begin(int m_block) const {
    if (mask != MaskKind::kWindow) {
      return 0;
    }
    // Before seqlen_k: so is every row's own key.
    return max_int(m_block * block_m + first_key_offset(), 0) / block_n;
  }
  DASH_HOST_DEVICE constexpr int n_end(int m_block) const {
    if (mask == MaskKind::kFull) {
      return num_n_blocks();
    }
    int const keys_seen = max_int((m_block + 1) * block_m + last_key_offset(), 0);
    return min_int(ceil_div(keys_seen, block_n), num_n_blocks());
  }
  DASH_HOST_DEVICE constexpr int num_contributors(int m_block) const {
    return n_end(m_block) - n_begin(m_block);
  }
};

}  // namespace dash::schedule
