// The backward's workspace: names, places and who resets what. One allocation, made by the operator
// for one call, contents undefined on entry; stages are the three kernels of bwd/launch.cuh.
//   lse_log2      written by preprocess, padding rows of a sequence's tiles included; read by main
//   dpsum         like lse_log2
//   dq_semaphore  zeroed by preprocess                           counted by main
//   ticket, num_finished, num_claimed
//                 zeroed by preprocess                           counted by main
//   finished      reset by preprocess, filled by main            read by main and postprocess
//   sequence_order, ticket_begin         packed only: written by order_sequences, read by main
//   dkv_parts     only if query groups are cut: written by main  read by add_dkv_parts
//   dq_accum      ordered: stored by each Q tile's first contributor in main
//                 unordered: zeroed by preprocess. Read by postprocess, or main's converters
#pragma once

#include <cstdint>

#include "common/carve.hpp"
#include "common/sequence.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

// Turn counters are 32 bytes apart. Tuning: neighbouring counters are polled by different CTAs; in
// one memory sector each release would disturb the other's poll.
inline constexpr int kSemaphoreStride = 8;

// Offsets in bytes.
struct WorkspaceLayout {
  int64_t lse_log2;
  int64_t dpsum;
  int64_t dq_accum;
  int64_t dq_semaphore;
  int64_t dkv_parts;
  int64_t ticket;
  int64_t finished;
  int64_t num_finished;
  int64_t num_claimed;
  int64_t sequence_order;
  int64_t ticket_begin;
  int64_t bytes;  // of all of it
};

struct Heads {
  int num_heads;    // query heads
  int group_parts;  // of each KV head's query heads
};

// Of one list, (KV head, part of its query group), in all batch entries.
constexpr int64_t kv_tiles_of_a_list(schedule::TileGrid const& grid,
                                     PackedSequences const& packed) {
  return packed.is_packed()
             ? int64_t{num_padded_tiles(packed.total_k, grid.batch, grid.block_n)}
             : int64_t{grid.batch} * grid.num_n_blocks();
}

// `kernel_head_dim` is the compiled head dim, to which dq_accum's rows are padded.
constexpr WorkspaceLayout workspace_layout(schedule::TileGrid const& grid,
                                           PackedSequences const& packed, Heads const& heads,
                                           int kernel_head_dim) {
  bool const is_packed = packed.is_packed();
  int64_t const tiles_of_a_head =
      is_packed ? int64_t{num_padded_tiles(packed.total_q, grid.batch, grid.block_m)}
                : int64_t{grid.batch} * grid.num_m_blocks();
  int64_t const q_tiles = tiles_of_a_head * heads.num_heads;
  int64_t const kv_rows = kv_tiles_of_a_list(grid, packed) * grid.num_heads * grid.block_n;
  int64_t const rows = q_tiles * grid.block_m;
  Carver carver;
  WorkspaceLayout layout{};
  layout.lse_log2 = carver.take(rows, sizeof(float));
  layout.dpsum = carver.take(rows, sizeof(float));
  layout.dq_accum = carver.take(rows * kernel_head_dim, sizeof(float));
  layout.dq_semaphore = carver.take(q_tiles * kSemaphoreStride, sizeof(int));
  layout.dkv_parts =
      carver.take(heads.group_parts > 1 ? 2 * kv_rows * kernel_head_dim : 0, sizeof(float));
  layout.ticket = carver.take(1, sizeof(int));
  layout.finished = carver.take(q_tiles, sizeof(int));
  layout.num_finished = carver.take(1, sizeof(int));
  layout.num_claimed = carver.take(1, sizeof(int));
  layout.sequence_order = carver.take(is_packed ? grid.batch : 0, sizeof(int));
  layout.ticket_begin = carver.take(is_packed ? int64_t{grid.batch} + 1 : 0, sizeof(int));
  layout.bytes = carver.bytes();
  return layout;
}

}  // namespace dash::bwd
