// BwdParams: everything the three backward kernels are given. Plain pointers and integers, so that
// the torch side and the CuTe side meet here and nowhere else.
#pragma once

#include <cstdint>

#include "common/sequence.hpp"
#include "fwd/params.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::bwd {

struct BwdParams {
  void const* q;      // (batch, seqlen_q, num_heads, head_dim)       packed: (total_q, num_heads, ..)
  void const* k;      // (batch, seqlen_k, num_heads_k, head_dim)     packed: (total_k, ..)
  void const* v;      // (batch, seqlen_k, num_heads_k, head_dim_v)   packed: (total_k, ..)
  void const* o;      // (batch, seqlen_q, num_heads, head_dim_v)     packed: (total_q, ..)
  void const* dout;   // like o
  float const* lse;   // (batch, num_heads, seqlen_q) contiguous, natural log; packed: (num_heads,
                      // total_q)
  float const* dlse;  // like lse, or null: no gradient through lse
  void* dq;           // like q, every element written
  void* dk;           // like k, every element written
  void* dv;           // like v, every element written

  Strides q_strides, k_strides, v_strides, o_strides, do_strides;  // packed: batch is not read
  Strides dq_strides, dk_strides, dv_strides;

  // Workspace, see workspace.hpp. Contents on entry may be anything. q_tiles is num_m_blocks per
  // (batch, query head), or packed num_padded_tiles per query head; kv_tiles likewise.
  float* lse_log2;      // (batch, num_heads, q_tiles * block_m)   packed: (num_heads, ..)
  float* dpsum;         // like lse_log2
  float* dq_accum;      // (batch, num_heads, q_tiles, block_m * kernel head dim)   packed likewise
  int* dq_semaphore;    // (batch, num_heads, q_tiles, kSemaphoreStride)            packed likewise
  float* dkv_parts;     // (batch, num_heads_k, group_parts, kv_tiles, 2, block_n * kernel head
                        // dim), dk and dv; packed: (num_heads_k, ..). Only if group_parts > 1
  int* ticket;          // (1)
  int* finished;        // (batch, num_heads, q_tiles) see finished_tiles.cuh
  int* num_finished;    // (1)
  int* num_claimed;     // (1)
  int* sequence_order;  // (batch) packed only
  int* ticket_begin;    // (batch + 1) packed only

  PackedSequences packed;

  // Packed: batch counts the sequences and the lengths are the longest ones.
  schedule::TileGrid grid;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads
  int group_parts;  // that each KV head's query heads are cut into; grid.num_heads counts the parts
  int part_size;    // query heads of a part
  int head_dim;     // of q and k; at most the kernel's
  int head_dim_v;   // of v and o; at most the kernel's
  int gang_size;    // CTAs that the schedule needs resident at once; 1 for most
  bool has_converters;  // the main kernel converts Q tiles whose dQ is finished
  float softmax_scale;
  float softcap;  // scores are softcap * tanh(score * softmax_scale / softcap); 0: plain
  int num_ctas;   // CTAs of the main kernel: SMs of the device minus sm_margin
};

}  // namespace dash::bwd
