// Argument checks of the operators and the problem they describe. All of them run before the first
// allocation; a failed one names the argument, the value, what is supported and the way out.
// Reads tensor metadata only. Host only; one of the few files that include torch.
// Invariant: a Problem that check_problem returned is one that some compiled kernel may run.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string_view>

#include "config/kernel_key.hpp"
#include "fwd/params.hpp"
#include "schedule/choose.hpp"

namespace dash::api {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A tensor argument with the name that the user knows it by.
struct NamedTensor {
  char const* name;
  Tensor const& tensor;
};

struct Problem {
  KernelKey key;
  int device;
  int batch;
  int seqlen_q;
  int seqlen_k;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads; divides num_heads
  float softmax_scale;
  schedule::ScheduleKind schedule;
  int section;   // lists per section; 0: the chosen number
  int num_ctas;  // SMs of the device minus sm_margin

  // No score exists: nothing to launch, and every output is empty or a constant.
  bool is_empty() const {
    return batch == 0 || num_heads == 0 || seqlen_q == 0 || seqlen_k == 0;
  }
  schedule::GridShape shape() const {
    return {.key = key, .batch = batch, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k,
            .num_heads = num_heads, .num_heads_k = num_heads_k};
  }
  schedule::TileGrid grid() const { return schedule::make_grid(shape(), schedule, section); }
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

Problem check_problem(Tensor const& q, Tensor const& k, Tensor const& v, Options const& options);

// A tensor that goes with q: same dtype and device, shape (batch, seqlen_q, heads, head_dim).
void check_like_q(NamedTensor const& named, Tensor const& q);

// lse or dlse: float32 (batch, num_heads, seqlen_q) on the problem's device.
void check_row_statistic(NamedTensor const& named, Problem const& problem);

// The tensor itself if a kernel can address it (last dim contiguous, base 16-byte aligned, other
// strides positive multiples of 8 elements), else a contiguous copy.
Tensor addressable(Tensor const& tensor);

// Strides of a (batch, seqlen, heads, head_dim) tensor. A dim of size 1 gets the stride that it has
// in a contiguous tensor: torch leaves any number there, and a TMA descriptor must not hold it.
Strides strides_of(Tensor const& tensor);

}  // namespace dash::api
