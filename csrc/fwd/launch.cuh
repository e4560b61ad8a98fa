// Host side of the forward pass: TMA descriptors, ticket reset, one kernel launch; for packed
// sequences, two small kernels before it: their order, and the rows that none of them owns.
// Runs on the caller's stream without synchronising, so a CUDA graph can capture it.
// Invariant: params were checked by the API: last dim contiguous, pointers and strides 16-byte
// aligned, sizes at least 1.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.hpp"
#include "common/dynamic_smem.cuh"
#include "common/kernel_attributes.hpp"
#include "common/sequence_order.cuh"
#include "common/tanh.cuh"
#include "common/unowned_rows.cuh"
#include "fwd/kernel.cuh"
#include "fwd/params.hpp"
#include "fwd/traits.cuh"

namespace dash::fwd {

// Query heads whose Q tiles are handed out together. Without a mask all items are equally long, and
// one head after the other keeps the fewest K and V bytes in use. A mask wants many heads side by
// side, so that the longest items of all of them come first.
template <class Traits>
int heads_per_section(FwdParams const& params) {
  schedule::TileGrid const& grid = params.grid;
  if (grid.mask == MaskKind::kFull) {
    return 1;
  }
  // Tuning: K and V bytes that stay in the 50 MB L2 beside the streams of Q and O.
  constexpr int64_t kL2Bytes = 32 << 20;
  int64_t const bytes_per_kv_head = int64_t{2} * std::max(grid.seqlen_k, 1) * Traits::kHeadDim *
                                    static_cast<int64_t>(sizeof(typename Traits::Element));
  int64_t const kv_heads = std::max<int64_t>(kL2Bytes / bytes_per_kv_head, 1);
  int64_t const group = params.num_heads / grid.num_heads;
  int64_t const sequences = params.packed.is_packed() ? 1 : grid.batch;
  return static_cast<int>(std::min(kv_heads * group, params.num_heads * sequences));
}

// One of q, k, v as the kernel's TMA descriptors see it.
template <class Traits>
struct GlobalRows {
  void const* data;
  Strides strides;
  int tile_rows;  // of the kernel's tiles
  int seqlen;     // rows: of a batch entry, or of all packed sequences
  int head_dim;
  int heads;
  int batch;  // 1 if the problem is packed

  auto ragged_data() const {
    return make_gmem_ptr(static_cast<typename Traits::Element const*>(data) -
                         tile_rows * strides.row);
  }
  auto dense_data() const {
    return make_gmem_ptr(static_cast<typename Traits::Element const*>(data));
  }

  auto tensor() const {
    if constexpr (Traits::kIsDense) {
      return make_tensor(dense_data(), typename Traits::GmemShape{seqlen, head_dim, heads, batch},
                         typename Traits::GmemStride{strides.row, {}, strides.head,
                                                     strides.batch});
    } else {
      return make_tensor(ragged_data(), RaggedShape{tile_rows, head_dim, seqlen + 1, heads, batch},
                         RaggedStride{strides.row, {}, strides.row, strides.head, strides.batch});
    }
  }

  // With the first two modes exchanged.
  auto transposed() const {
    if constexpr (Traits::kIsDense) {
      return make_tensor(dense_data(), typename Traits::GmemShapeT{head_dim, seqlen, heads, batch},
                         typename Traits::GmemStrideT{{}, strides.row, strides.head,
                                                      strides.batch});
    } else {
      return make_tensor(ragged_data(), RaggedShape{head_dim, tile_rows, seqlen + 1, heads, batch},
                         RaggedStrideT{{}, strides.row, strides.row, strides.head, strides.batch});
    }
  }
};

template <class Traits>
GlobalRows<Traits> global_queries(FwdParams const& params) {
  schedule::TileGrid const& grid = params.grid;
  bool const is_packed = params.packed.is_packed();
  return {.data = params.q, .strides = params.q_strides, .tile_rows = Traits::kBlockM,
          .seqlen = is_packed ? params.packed.total_q : grid.seqlen_q,
          .head_dim = params.head_dim, .heads = params.num_heads,
          .batch = is_packed ? 1 : grid.batch};
}

template <class Traits>
GlobalRows<Traits> global_keys(FwdParams const& params) {
  schedule::TileGrid const& grid = params.grid;
  bool const is_packed = params.packed.is_packed();
  return {.data = params.k, .strides = params.k_strides, .tile_rows = Traits::kBlockN,
          .seqlen = is_packed ? params.packed.total_k : grid.seqlen_k,
          .head_dim = params.head_dim, .heads = grid.num_heads,
          .batch = is_packed ? 1 : grid.batch};
}

template <class Traits>
GlobalRows<Traits> global_values(FwdParams const& params) {
  GlobalRows<Traits> rows = global_keys<Traits>(params);
  rows.data = params.v;
  rows.strides = params.v_strides;
  rows.head_dim = params.head_dim_v;
  return rows;
}

// Upper bound of the number of work items; exact if the problem is not packed.
template <class Traits>
int max_items(FwdParams const& params) {
  int64_t const q_tiles =
      params.packed.is_packed()
          ? num_padded_tiles(params.packed.total_q, params.grid.batch, Traits::kBlockM)
          : int64_t{params.grid.num_m_blocks()} * params.grid.batch;
  int64_t const num_items = q_tiles * params.num_heads;
  // Correctness: tickets run up to num_items + num_ctas in a 32-bit counter.
  DASH_CHECK(num_items < (int64_t{1} << 30),
             "dash: the forward pass has " + std::to_string(num_items) +
                 " query tiles; at most 2^30 are supported. Split the batch.");
  return static_cast<int>(num_items);
}

template <class Traits>
FwdKernelArgs<Traits> make_kernel_args(FwdParams const& params) {
  bool const has_softcap = params.softcap > 0.f;
  return {.tma_q = make_tma_copy(SM90_TMA_LOAD{}, global_queries<Traits>(params).tensor(),
                                 typename Traits::SmemLayoutQ{}, typename Traits::TileShapeQ{},
                                 _1{}),
          .tma_k = make_tma_copy(SM90_TMA_LOAD{}, global_keys<Traits>(params).tensor(),
                                 typename Traits::SmemLayoutKStage{},
                                 typename Traits::TileShapeK{}, _1{}),
          .tma_vt = make_tma_copy(SM90_TMA_LOAD{}, global_values<Traits>(params).transposed(),
                                  typename Traits::SmemLayoutVtStage{},
                                  typename Traits::TileShapeVt{}, _1{}),
          .params = params,
          .score_scale = has_softcap ? params.softcap : params.softmax_scale,
          .tanh_scale = has_softcap ? kTanhScale * params.softmax_scale / params.softcap : 0.f,
          .heads_per_section = heads_per_section<Traits>(params),
          .num_items = max_items<Traits>(params),
          .bytes_q = box_bytes(Traits::kBlockM, params.head_dim, Traits::kAtomColumns),
          .bytes_k = box_bytes(Traits::kBlockN, params.head_dim, Traits::kAtomColumns),
          .bytes_v = box_bytes(Traits::kBlockN, params.head_dim_v, Traits::kAtomColumns),
          .has_missing_boxes = std::min(params.head_dim, params.head_dim_v) +
                                   Traits::kAtomColumns <= Traits::kHeadDim};
}

// What the main kernel needs of packed sequences, and what it does not write.
template <class Traits>
void prepare_sequences(FwdParams const& params, cudaStream_t stream) {
  order_sequences({.packed = params.packed,
                   .batch = params.grid.batch,
                   .tiles_of = TilesOf::kQueries,
                   .block = Traits::kBlockM,
                   .tickets_per_tile = params.num_heads,
                   .sequence_order = params.sequence_order,
                   .ticket_begin = params.ticket_begin},
                  stream);
  zero_unowned_rows({.cu_seqlens = params.packed.cu_seqlens_q,
                     .seqused = params.packed.seqused_q,
                     .total = params.packed.total_q,
                     .batch = params.grid.batch,
                     .targets = {{.data = params.o,
                                  .row_stride = params.o_strides.row,
                                  .head_stride = params.o_strides.head,
                                  .num_heads = params.num_heads,
                                  .head_dim = params.head_dim_v}},
                     .lse = params.lse,
                     .lse_num_heads = params.num_heads},
                    stream);
}

// The caller's parameters with the kernel's tiles; of a packed problem, with batch strides too.
template <class Traits>
FwdParams with_tiles(FwdParams params) {
  params.grid.block_m = Traits::kBlockM;
  params.grid.block_n = Traits::kBlockN;
  params.grid.schedule = schedule::ScheduleKind::kUnordered;
  params.grid.section = 1;
  if (params.packed.is_packed()) {
    // A descriptor wants a stride even for its one batch entry.
    for (Strides* strides : {&params.q_strides, &params.k_strides, &params.v_strides}) {
      strides->batch = strides->row;
    }
  }
  return params;
}

template <FwdConfig kConfig>
void launch(FwdParams const& caller_params, cudaStream_t stream) {
  using Traits = FwdTraits<kConfig>;
  constexpr int kSharedBytes = sizeof(typename Traits::SharedStorage);
  FwdParams const params = with_tiles<Traits>(caller_params);
  DASH_CHECK(!Traits::kIsDense || !params.packed.is_packed(),
             "dash: packed sequences were given to a kernel for (batch, seqlen) tensors");
  auto const kernel = fwd_kernel<Traits>;
  static OncePerDevice smem_is_allowed;
  allow_dynamic_smem(kernel, kSharedBytes, smem_is_allowed);
  DASH_CUDA_CHECK(cudaMemsetAsync(params.ticket, 0, sizeof(int), stream));
  if constexpr (!Traits::kIsDense) {
    if (params.packed.is_packed()) {
      prepare_sequences<Traits>(params, stream);
    }
  }
  // Correctness: after the first runtime call on the stream. Descriptors are made by the driver,
  // which needs a current context; in a thread of autograd's that call is what makes one current.
  FwdKernelArgs<Traits> const args = make_kernel_args<Traits>(params);
  int const num_ctas = std::min(params.num_ctas, args.num_items);
  kernel<<<num_ctas, Traits::kNumThreads, kSharedBytes, stream>>>(args);
  DASH_CUDA_CHECK(cudaGetLastError());
}

// What the driver says of the kernel; needs a device.
template <FwdConfig kConfig>
std::vector<KernelAttributes> attributes() {
  using Traits = FwdTraits<kConfig>;
  cudaFuncAttributes found;
  DASH_CUDA_CHECK(cudaFuncGetAttributes(&found, fwd_kernel<Traits>));
  int const dynamic_bytes = sizeof(typename Traits::SharedStorage);
  return {{.stage = "fwd",
           .registers = found.numRegs,
           .shared_bytes = static_cast<int>(found.sharedSizeBytes) + dynamic_bytes,
           .local_bytes = static_cast<int>(found.localSizeBytes)}};
}

}  // namespace dash::fwd
