// Compiles if the parts of both passes' workspaces are aligned, large enough and apart, also where
// an offset does not fit 32 bits.
#include <cstddef>
#include <cstdint>
#include <span>

#include "bwd/workspace.hpp"
#include "fwd/workspace.hpp"

using namespace dash;

struct Part {
  int64_t offset;
  int64_t bytes;
};

// In the order of their offsets; `bytes` are all that there are.
constexpr bool are_apart(std::span<Part const> parts, int64_t bytes) {
  int64_t end = 0;
  for (Part const& part : parts) {
    if (part.offset < end || part.offset % kPartAlignment != 0 || part.bytes < 0) {
      return false;
    }
    end = part.offset + part.bytes;
  }
  return end <= bytes;
}

constexpr schedule::TileGrid grid_of(int batch, int seqlen_q, int seqlen_k = 1,
                                     int num_lists = 1) {
  return {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .block_m = 64, .block_n = 128,
          .num_heads = num_lists, .batch = batch, .mask = MaskKind::kFull,
          .schedule = schedule::ScheduleKind::kBand, .section = 1};
}

constexpr int kHeadDim = 128;

constexpr bool is_backward_right(schedule::TileGrid const& grid, PackedSequences const& packed,
                                 bwd::Heads const& heads, int64_t q_tiles, int64_t sequences,
                                 int64_t kv_tiles_of_parts = 0) {
  bwd::WorkspaceLayout const layout = bwd::workspace_layout(grid, packed, heads, kHeadDim);
  int64_t const row_bytes = q_tiles * grid.block_m * 4;
  Part const parts[] = {{layout.lse_log2, row_bytes},
                        {layout.dpsum, row_bytes},
                        {layout.dq_accum, row_bytes * kHeadDim},
                        {layout.dq_semaphore, q_tiles * bwd::kSemaphoreStride * 4},
                        {layout.dkv_parts, kv_tiles_of_parts * grid.block_n * kHeadDim * 2 * 4},
                        {layout.ticket, 4},
                        {layout.finished, q_tiles * 4},
                        {layout.num_finished, 4},
                        {layout.num_claimed, 4},
                        {layout.sequence_order, sequences * 4},
                        {layout.ticket_begin, sequences == 0 ? 0 : (sequences + 1) * 4}};
  return are_apart(parts, layout.bytes);
}

constexpr bool is_forward_right(bool is_packed, int batch) {
  fwd::WorkspaceLayout const layout = fwd::workspace_layout(is_packed, batch);
  int64_t const sequences = is_packed ? batch : 0;
  Part const parts[] = {{layout.ticket, 4},
                        {layout.sequence_order, sequences * 4},
                        {layout.ticket_begin, is_packed ? (sequences + 1) * 4 : 0}};
  return are_apart(parts, layout.bytes);
}

constexpr PackedSequences packed_rows(int const* cu_seqlens, int total_q) {
  return {.cu_seqlens_q = cu_seqlens, .cu_seqlens_k = cu_seqlens, .seqused_q = nullptr,
          .seqused_k = nullptr, .total_q = total_q, .total_k = 1};
}

constexpr int kAddress = 0;  // that it is not null says that a problem is packed

static_assert(is_backward_right(grid_of(1, 1), {}, {1, 1}, 1, 0));
static_assert(is_backward_right(grid_of(3, 1000), {}, {5, 1}, 3 * 5 * 16, 0));
static_assert(is_backward_right(grid_of(3, 400), packed_rows(&kAddress, 1000), {5, 1},
                                5 * (1000 / 64 + 3), 3));
static_assert(is_backward_right(grid_of(1'000'000, 1), packed_rows(&kAddress, 0), {2, 1},
                                2 * 1'000'000, 1'000'000));
// 2 KV heads with 4 query heads each, in 2 parts.
static_assert(is_backward_right(grid_of(3, 1000, 300, 4), {}, {8, 2}, 3 * 8 * 16, 0, 3 * 4 * 3));
static_assert(is_backward_right(grid_of(3, 400, 300, 4), packed_rows(&kAddress, 1000), {8, 2},
                                8 * (1000 / 64 + 3), 3, 4 * (1 / 128 + 3)));

// 2^28 rows by 8 heads: dq_accum alone is 2^40 bytes.
constexpr int kManyRows = 1 << 28;
static_assert(is_backward_right(grid_of(1, kManyRows), {}, {8, 1}, int64_t{8} * kManyRows / 64, 0));
static_assert(bwd::workspace_layout(grid_of(1, kManyRows), {}, {8, 1}, kHeadDim).ticket >
              int64_t{1} << 40);

static_assert(is_forward_right(false, 4));
static_assert(is_forward_right(true, 1) && is_forward_right(true, 1'000'000));
// One small block of torch's allocator, unless there are many sequences.
static_assert(fwd::workspace_layout(false, 1'000'000).bytes == kPartAlignment);

int main() { return 0; }
