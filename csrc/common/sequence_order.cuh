// The order in which packed sequences are worked on: by decreasing number of tiles, so that the
// longest do not come last. One CTA sorts them, before the kernel that takes the tickets; a ticket
// then finds its sequence by binary search.
// Invariant: the order changes no bit, only who works when. Sequences with equally many tiles stand
// in whatever order the atomics give them.
#pragma once

#include <cuda_runtime.h>

#include "common/check.hpp"
#include "common/sequence.hpp"

namespace dash {

struct SequenceOrder {
  PackedSequences packed;
  int batch;             // sequences
  TilesOf tiles_of;      // whose tiles the tickets stand for
  int block;             // rows of such a tile
  int tickets_per_tile;  // heads
  int* sequence_order;   // (batch) written: the sequence of each rank
  int* ticket_begin;     // (batch + 1) written: first ticket of each rank; last: number of tickets
};

namespace detail {

inline constexpr int kOrderThreads = 1024;
// Sequences of more tiles count as having this many less one.
inline constexpr int kOrderBuckets = 2 * kOrderThreads;

// Sum of `value` over the threads before this one; `total` is the sum over all. Every thread of the
// CTA calls it.
__device__ __forceinline__ int exclusive_sum(int value, int& total) {
  __shared__ int sum_of_warp[kOrderThreads / 32];
  int const lane = threadIdx.x % 32;
  int const warp = threadIdx.x / 32;
  auto const inclusive_sum_of_lanes = [lane](int lane_value) {
    for (int distance = 1; distance < 32; distance *= 2) {
      int const before = __shfl_up_sync(0xffffffffu, lane_value, distance);
      lane_value += lane >= distance ? before : 0;
    }
    return lane_value;
  };
  int const inclusive = inclusive_sum_of_lanes(value);
  if (lane == 31) {
    sum_of_warp[warp] = inclusive;
  }
  // Arrives and waits: all threads. Protects: sum_of_warp until every warp has written its own.
  __syncthreads();
  int const warps = inclusive_sum_of_lanes(sum_of_warp[lane]);
  total = __shfl_sync(0xffffffffu, warps, 31);
  int const warps_before = __shfl_sync(0xffffffffu, warps, max(warp - 1, 0));
  // Arrives and waits: all threads. Protects: sum_of_warp from the next call's writes.
  __syncthreads();
  return (warp == 0 ? 0 : warps_before) + inclusive - value;
}

static __global__ void __launch_bounds__(kOrderThreads)
    order_sequences_kernel(__grid_constant__ SequenceOrder const order) {
  static_assert(kOrderThreads == 32 * 32, "one value a lane holds the sums of all warps");
  __shared__ int first_rank[kOrderBuckets];  // at first: sequences in each bucket
  int const thread = threadIdx.x;
  auto const num_tiles = [&order](int bidb) {
    Sequence const sequence = sequence_of(order.packed, bidb);
    int const length =
        order.tiles_of == TilesOf::kQueries ? sequence.seqlen_q : sequence.seqlen_k;
    return length / order.block + (length % order.block != 0);
  };
  // Buckets of many tiles come first.
  auto const bucket_of = [&num_tiles](int bidb) {
    return kOrderBuckets - 1 - min(num_tiles(bidb), kOrderBuckets - 1);
  };

  first_rank[2 * thread] = 0;
  first_rank[2 * thread + 1] = 0;
  bool is_invalid = false;
  for (int bidb = thread; bidb < order.batch; bidb += kOrderThreads) {
    is_invalid |= !is_ascending(order.packed, bidb);
  }
  // Arrives and waits: all threads. Protects: the counts until all are 0.
  bool const has_invalid = __syncthreads_or(is_invalid) != 0;
  for (int bidb = thread; bidb < order.batch; bidb += kOrderThreads) {
    atomicAdd(&first_rank[bucket_of(bidb)], 1);
  }
  // Arrives and waits: all threads. Protects: the counts until they are complete.
  __syncthreads();
  int const first = first_rank[2 * thread];
  int const both = first + first_rank[2 * thread + 1];
  int total;
  int const before = exclusive_sum(both, total);
  first_rank[2 * thread] = before;
  first_rank[2 * thread + 1] = before + first;
  // Arrives and waits: all threads. Protects: the ranks until they are complete.
  __syncthreads();
  for (int bidb = thread; bidb < order.batch; bidb += kOrderThreads) {
    order.sequence_order[atomicAdd(&first_rank[bucket_of(bidb)], 1)] = bidb;
  }
  // Arrives and waits: all threads. Protects: sequence_order until it is complete. Guarantee: the
  // barrier orders global accesses inside the CTA.
  __syncthreads();
  int tickets_before = 0;
  for (int chunk = 0; chunk < order.batch; chunk += kOrderThreads) {
    int const rank = chunk + thread;
    // Correctness: sequences that overlap would share turn counters and could wait for ever; with
    // cu_seqlens that fall, nobody gets a ticket.
    bool const has_tickets = rank < order.batch && !has_invalid;
    int const tickets =
        has_tickets ? num_tiles(order.sequence_order[rank]) * order.tickets_per_tile : 0;
    int const begin = tickets_before + exclusive_sum(tickets, total);
    if (rank < order.batch) {
      order.ticket_begin[rank] = begin;
    }
    tickets_before += total;
  }
  if (thread == 0) {
    order.ticket_begin[order.batch] = tickets_before;
  }
}

}  // namespace detail

inline void order_sequences(SequenceOrder const& order, cudaStream_t stream) {
  detail::order_sequences_kernel<<<1, detail::kOrderThreads, 0, stream>>>(order);
  DASH_CUDA_CHECK(cudaGetLastError());
}

// The rank whose tickets include `ticket`, which is less than ticket_begin[batch] and not less than
// ticket_begin[first_rank]. Tuning: strides double from first_rank on, because a CTA's next ticket
// is seldom far from its last.
__device__ __forceinline__ int rank_of_ticket(int const* ticket_begin, int batch, int ticket,
                                              int first_rank) {
  int low = first_rank;  // ticket_begin[low] <= ticket
  int stride = 1;
  while (low + stride <= batch && ticket_begin[low + stride] <= ticket) {
    low += stride;
    stride *= 2;
  }
  // ticket_begin[low + stride] > ticket, or there is none.
  while (stride > 1) {
    stride /= 2;
    if (low + stride <= batch && ticket_begin[low + stride] <= ticket) {
      low += stride;
    }
  }
  return low;
}

}  // namespace dash
