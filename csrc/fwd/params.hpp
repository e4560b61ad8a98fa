// FwdParams: everything the forward kernel is given. Plain pointers and integers, so that the torch
// side and the CuTe side meet here and nowhere else.
#pragma once

#include <cstdint>

#include "common/sequence.hpp"
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
  void const* q;  // (batch, seqlen_q, num_heads, head_dim)       packed: (total_q, num_heads, ..)
  void const* k;  // (batch, seqlen_k, num_heads_k, head_dim)     packed: (total_k, num_heads_k, ..)
  void const* v;  // (batch, seqlen_k, num_heads_k, head_dim_v)   packed: (total_k, num_heads_k, ..)
  void* o;        // (batch, seqlen_q, num_heads, head_dim_v), every element written
  float* lse;     // (batch, num_heads, seqlen_q) contiguous, natural log, -inf where no key is seen
                  // packed: (num_heads, total_q)

  // Workspace, see workspace.hpp. Contents on entry may be anything.
  int* ticket;          // (1)
  int* sequence_order;  // (batch) packed only
  int* ticket_begin;    // (batch + 1) packed only

  Strides q_strides, k_strides, v_strides, o_strides;  // packed: the batch strides are not read
  PackedSequences packed;

  // Lengths, heads, mask and window. Packed: batch counts the sequences and the lengths are the
  // longest ones. Tiles and section are the launch's to set.
  schedule::TileGrid grid;
  int num_heads;   // query heads
  int head_dim;    // of q and k; at most the kernel's
  int head_dim_v;  // of v and o; at most the kernel's
  float softmax_scale;
  float softcap;  // scores are softcap * tanh(score * softmax_scale / softcap); 0: plain
  int num_ctas;   // CTAs to launch: SMs of the device minus sm_margin
};

}  // namespace dash::fwd
