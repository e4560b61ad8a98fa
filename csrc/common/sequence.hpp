// Sequence: where one sequence lies and how long it is. In a (batch, seqlen) problem all sequences
// are alike; in a packed one (total, heads, head_dim) they lie behind each other, found through
// cu_seqlens, and seqused may end one before its successor begins.
#pragma once

#include <cstdint>

#include "schedule/host_device.hpp"

namespace dash {

enum class TilesOf { kQueries, kKeys };

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

// Rows [offset, offset + length) of one sequence, of q or of k and v.
struct SequenceRows {
  int offset;
  int length;
};

// Correctness: clamped to the tensor, whatever cu_seqlens and seqused hold.
DASH_HOST_DEVICE constexpr SequenceRows sequence_rows(int const* cu_seqlens, int const* seqused,
                                                      int total, int bidb) {
  auto const clamp = [](int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
  };
  int const offset = clamp(cu_seqlens[bidb], 0, total);
  int const own_length = clamp(cu_seqlens[bidb + 1], offset, total) - offset;
  return {offset, seqused == nullptr ? own_length : clamp(seqused[bidb], 0, own_length)};
}

DASH_HOST_DEVICE constexpr SequenceRows query_rows(PackedSequences const& packed, int bidb) {
  return sequence_rows(packed.cu_seqlens_q, packed.seqused_q, packed.total_q, bidb);
}

DASH_HOST_DEVICE constexpr SequenceRows key_rows(PackedSequences const& packed, int bidb) {
  return sequence_rows(packed.cu_seqlens_k, packed.seqused_k, packed.total_k, bidb);
}

DASH_HOST_DEVICE constexpr Sequence sequence_of(PackedSequences const& packed, int bidb) {
  SequenceRows const queries = query_rows(packed, bidb);
  SequenceRows const keys = key_rows(packed, bidb);
  return {queries.length, keys.length, queries.offset, keys.offset};
}

// Whether a sequence does not start before the previous one ends.
DASH_HOST_DEVICE constexpr bool is_ascending(PackedSequences const& packed, int bidb) {
  return packed.cu_seqlens_q[bidb] <= packed.cu_seqlens_q[bidb + 1] &&
         packed.cu_seqlens_k[bidb] <= packed.cu_seqlens_k[bidb + 1];
}

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
