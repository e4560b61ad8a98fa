// Sequence: where one sequence lies and how long it is. In a (batch, seqlen) problem all sequences
// are alike; in a packed one (total, heads, head_dim) they lie behind each other, found through
// cu_seqlens, and seqused may end one before its successor begins.
#pragma once

#include <cstdint>

#include "schedule/host_device.hpp"

namespace dash {

// Device pointers of a packed problem; all null in a (batch, seqlen) one. Contents are the caller's
// data: nothing may read past the tensors, hang or fault whatever they are.
struct PackedSequences {
  int const* cu_seqlens_q;  // (batch + 1)
  int const* cu_seqlens_k;  // (batch + 1)
  int const* seqused_q;     // (batch) or null: lengths that count, at most the sequences' own
  int const* seqused_k;     // (batch) or null
  int total_q;              // rows of q
  int total_k;              // rows of k and v

  DASH_HOST_DEVICE constexpr bool is_packed() const { return cu_seqlens_q != nullptr; }
};

struct Sequence {
  int seqlen_q;
  int seqlen_k;
  int offset_q;  // first row in the packed tensor; 0 in a (batch, seqlen) problem
  int offset_k;
};

// Tiles of `block` rows before sequence `bidb` of a packed problem, if every sequence but the last
// is given one tile more than its whole ones: floor((offset + length) / block) + 1 is never less
// than floor(offset / block) + ceil(length / block). Needs no prefix sum.
DASH_HOST_DEVICE constexpr int first_padded_tile(int offset, int bidb, int block) {
  return offset / block + bidb;
}

// Tiles that hold all sequences of a packed problem laid out like that.
DASH_HOST_DEVICE constexpr int num_padded_tiles(int total, int batch, int block) {
  return total / block + batch;
}

}  // namespace dash
