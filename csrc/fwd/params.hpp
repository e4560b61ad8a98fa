// FwdParams: everything the forward kernel is given. Plain pointers and integers, so that the torch
// side and the CuTe side meet here and nowhere else.
#pragma once

#include <cstdint>

#include "schedule/tile_grid.hpp"

namespace dash {

// Strides of a (batch, seqlen, heads, head_dim) tensor in elements; head_dim is contiguous.
struct Strides {
  int64_t batch;
  int64_t row;
  int64_t head;
};

}  // namespace dash

namespace dash::fwd {

struct FwdParams {
  void const* q;  // (batch, seqlen_q, num_heads, head_dim)
  void const* k;  // (batch, seqlen_k, num_heads_k, head_dim)
  void const* v;  // (batch, seqlen_k, num_heads_k, head_dim)
  void* o;        // (batch, seqlen_q, num_heads, head_dim), every element written
  float* lse;     // (batch, num_heads, seqlen_q) contiguous, natural log, -inf where no key is seen
  int* ticket;    // (1), zeroed by the launch

  Strides q_strides, k_strides, v_strides, o_strides;

  int batch;
  int seqlen_q;
  int seqlen_k;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads; divides num_heads
  float softmax_scale;
  int num_ctas;  // CTAs to launch: SMs of the device minus sm_margin
};

}  // namespace dash::fwd
