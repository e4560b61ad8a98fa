// The problem that an operator's arguments describe, and the checks that make it one. All of them
// run before the first allocation; a failed one names the argument, the value, what is supported
// and the way out. Reads tensor metadata and device attributes only, never what cu_seqlens holds.
// Invariant: a Problem that check_problem returned is one that some compiled kernel may run.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "api/tensor_check.hpp"
#include "common/sequence.hpp"
#include "config/kernel_key.hpp"
#include "schedule/choose.hpp"

namespace dash::api {

// Where the sequences of a packed problem lie, as the operators take it; none of it: tensors are
// (batch, seqlen).
struct Packing {
  std::optional<Tensor> const& cu_seqlens_q;
  std::optional<Tensor> const& cu_seqlens_k;
  std::optional<Tensor> const& seqused_q;
  std::optional<Tensor> const& seqused_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;

  bool is_packed() const { return cu_seqlens_q.has_value(); }
};

// The operators' arguments that are not tensors.
struct Options {
  double softmax_scale;
  int64_t window_size_left;
  int64_t window_size_right;
  double softcap;
  std::string_view schedule;
  int64_t sm_margin;
};

struct Problem {
  KernelKey key;
  int device;
  int batch;     // packed: number of sequences
  int seqlen_q;  // packed: of the longest sequence
  int seqlen_k;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads; divides num_heads
  int head_dim;     // of q and k
  int head_dim_v;   // of v, out and dout
  MaskKind mask;
  int window_left;  // -1: no limit
  int window_right;
  PackedSequences packed;
  float softmax_scale;
  float softcap;
  schedule::ScheduleKind schedule;
  int group_parts;  // parts that each KV head's query heads are cut into in the backward
  int section;      // lists per section; 0: the chosen number
  int num_ctas;  // SMs of the device minus sm_margin

  bool is_packed() const { return packed.is_packed(); }
  // No score exists: nothing to launch, and every output is empty or a constant.
  bool is_empty() const {
    int const rows_q = is_packed() ? packed.total_q : seqlen_q;
    int const rows_k = is_packed() ? packed.total_k : seqlen_k;
    return batch == 0 || rows_q == 0 || rows_k == 0;
  }
  schedule::GridShape shape() const;
  // The backward's tiles.
  schedule::TileGrid grid() const;
  // CTAs that a schedule needs resident at once. Packed sequences have schedules of single CTAs.
  int gang_size(schedule::ScheduleKind kind) const;
};

Problem check_problem(Tensor const& q, Tensor const& k, Tensor const& v, Packing const& packing,
                      Options const& options);

// out or dout: q's dtype, device and shape, with the head dim of v.
void check_like_out(NamedTensor const& named, Tensor const& q, Problem const& problem);

// lse or dlse: float32 (batch, num_heads, seqlen_q), packed (num_heads, total_q).
void check_row_statistic(NamedTensor const& named, Tensor const& q, Problem const& problem);

}  // namespace dash::api
