// Rows of packed outputs that no sequence owns: before the first sequence, past seqused, past the
// last one. They are written as 0 (lse: -inf), whatever the inputs hold there.
// One thread looks at one row; a warp writes the rows that its lanes found.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "common/check.hpp"
#include "common/sequence.hpp"

namespace dash {

// A (total, num_heads, head_dim) tensor of 16-bit elements; strides in elements, multiples of 8.
struct UnownedTarget {
  void* data = nullptr;  // null: none
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int num_heads = 0;
  int head_dim = 0;
};

struct UnownedRows {
  int const* cu_seqlens;  // (batch + 1) of the targets' rows
  int const* seqused;     // (batch) or null
  int total;              // rows
  int batch;
  UnownedTarget targets[2];
  float* lse = nullptr;  // (num_heads, total) or null
  int lse_num_heads = 0;
};

namespace detail {

inline constexpr int kUnownedThreads = 256;

__device__ __forceinline__ bool is_owned(UnownedRows const& rows, int row) {
  // The last sequence that starts at or before `row`: it owns the row if any does, because empty
  // ones come before it.
  int low = -1;
  int high = rows.batch;
  while (high - low > 1) {
    int const middle = low + (high - low) / 2;
    if (rows.cu_seqlens[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  if (low < 0) {
    return false;
  }
  SequenceRows const own = sequence_rows(rows.cu_seqlens, rows.seqused, rows.total, low);
  return row < own.offset + own.length;
}

__device__ __forceinline__ void zero_row(UnownedTarget const& target, int64_t row, int lane) {
  auto* const data = static_cast<uint16_t*>(target.data) + row * target.row_stride;
  int const pieces = target.head_dim / 8;  // of 16 bytes
  for (int piece = lane; piece < target.num_heads * pieces; piece += 32) {
    int const head = piece / pieces;
    *reinterpret_cast<uint4*>(data + head * target.head_stride + (piece - head * pieces) * 8) =
        make_uint4(0, 0, 0, 0);
  }
}

static __global__ void __launch_bounds__(kUnownedThreads)
    zero_unowned_rows_kernel(__grid_constant__ UnownedRows const rows) {
  int64_t const first_row =
      int64_t{blockIdx.x} * kUnownedThreads + static_cast<int>(threadIdx.x / 32) * 32;
  int const lane = threadIdx.x % 32;
  bool const is_unowned =
      first_row + lane < rows.total && !is_owned(rows, static_cast<int>(first_row + lane));
  uint32_t unowned = __ballot_sync(0xffffffffu, is_unowned);
  while (unowned != 0) {
    int64_t const row = first_row + __ffs(unowned) - 1;
    unowned &= unowned - 1;
    for (UnownedTarget const& target : rows.targets) {
      if (target.data != nullptr) {
        zero_row(target, row, lane);
      }
    }
    if (rows.lse != nullptr) {
      for (int head = lane; head < rows.lse_num_heads; head += 32) {
        rows.lse[int64_t{head} * rows.total + row] = -INFINITY;
      }
    }
  }
}

}  // namespace detail

inline void zero_unowned_rows(UnownedRows const& rows, cudaStream_t stream) {
  if (rows.total == 0) {
    return;
  }
  int const ctas = (rows.total - 1) / detail::kUnownedThreads + 1;
  detail::zero_unowned_rows_kernel<<<ctas, detail::kUnownedThreads, 0, stream>>>(rows);
  DASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dash
