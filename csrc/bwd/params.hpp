// BwdParams: everything the three backward kernels are given. Plain pointers and integers, so that
// the torch side and the CuTe side meet here and nowhere else.
#pragma once

#include <cstdint>

#include "fwd/params.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct BwdParams {
  void const* q;      // (batch, seqlen_q, num_heads, head_dim)
  void const* k;      // (batch, seqlen_k, num_heads_k, head_dim)
  void const* v;      // (batch, seqlen_k, num_heads_k, head_dim)
  void const* o;      // (batch, seqlen_q, num_heads, head_dim)
  void const* dout;   // (batch, seqlen_q, num_heads, head_dim)
  float const* lse;   // (batch, num_heads, seqlen_q) contiguous, natural log
  float const* dlse;  // (batch, num_heads, seqlen_q) contiguous, or null: no gradient through lse
  void* dq;           // (batch, seqlen_q, num_heads, head_dim), every element written
  void* dk;           // (batch, seqlen_k, num_heads_k, head_dim), every element written
  void* dv;           // (batch, seqlen_k, num_heads_k, head_dim), every element written

  Strides q_strides, k_strides, v_strides, o_strides, do_strides;
  Strides dq_strides, dk_strides, dv_strides;

  // Workspace, see workspace.hpp. Contents on entry may be anything.
  float* lse_log2;    // (batch, num_heads, num_m_blocks * block_m)
  float* dpsum;       // (batch, num_heads, num_m_blocks * block_m)
  float* dq_accum;    // (batch, num_heads, num_m_blocks, block_m * head_dim)
  int* dq_semaphore;  // (batch, num_heads, num_m_blocks, kSemaphoreStride)
  int* ticket;        // (1)

  schedule::TileGrid grid;
  int num_heads;   // query heads
  int group_size;  // query heads per KV head
  int gang_size;   // CTAs that the schedule needs resident at once; 1 for most
  float softmax_scale;
  int num_ctas;  // CTAs of the main kernel: SMs of the device minus sm_margin
};

}  // namespace dash::bwd
