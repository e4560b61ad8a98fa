// Host side of the forward pass: TMA descriptors, ticket reset, one kernel launch.
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
#include "common/kernel_attributes.hpp"
#include "fwd/kernel.cuh"
#include "fwd/params.hpp"
#include "fwd/traits.cuh"

namespace dash::fwd {

// Query heads whose Q tiles are handed out together. Without a mask all items are equally long, and
// one head after the other keeps the fewest K and V bytes in use. A causal mask wants many heads
// side by side, so that the longest items of all of them come first.
template <class Traits>
int heads_per_section(FwdParams const& params) {
  if constexpr (Traits::kMask == MaskKind::kFull) {
    return 1;
  } else {
    // Tuning: K and V bytes that stay in the 50 MB L2 beside the streams of Q and O.
    constexpr int64_t kL2Bytes = 32 << 20;
    int64_t const bytes_per_kv_head = int64_t{2} * params.seqlen_k * Traits::kHeadDim *
                                      static_cast<int64_t>(sizeof(typename Traits::Element));
    int64_t const kv_heads = std::max<int64_t>(kL2Bytes / bytes_per_kv_head, 1);
    int64_t const group = params.num_heads / params.num_heads_k;
    int64_t const total_heads = int64_t{params.num_heads} * params.batch;
    return static_cast<int>(std::min(kv_heads * group, total_heads));
  }
}

template <class Traits>
FwdKernelArgs<Traits> make_kernel_args(FwdParams const& params) {
  using Element = typename Traits::Element;
  auto const rows = [](void const* data, int seqlen, int heads, int batch, Strides const& s) {
    return make_tensor(make_gmem_ptr(static_cast<Element const*>(data)),
                       typename Traits::GmemShape{seqlen, {}, heads, batch},
                       typename Traits::GmemStride{s.row, {}, s.head, s.batch});
  };
  Tensor mQ = rows(params.q, params.seqlen_q, params.num_heads, params.batch, params.q_strides);
  Tensor mK = rows(params.k, params.seqlen_k, params.num_heads_k, params.batch, params.k_strides);
  Tensor mVt = make_tensor(
      make_gmem_ptr(static_cast<Element const*>(params.v)),
      typename Traits::GmemShapeT{{}, params.seqlen_k, params.num_heads_k, params.batch},
      typename Traits::GmemStrideT{{}, params.v_strides.row, params.v_strides.head,
                                   params.v_strides.batch});
  schedule::TileGrid const grid{.seqlen_q = params.seqlen_q,
                                .seqlen_k = params.seqlen_k,
                                .block_m = Traits::kBlockM,
                                .block_n = Traits::kBlockN,
                                .num_heads = params.num_heads_k,
                                .batch = params.batch,
                                .mask = Traits::kMask,
                                .schedule = schedule::ScheduleKind::kUnordered,
                                .section = 1};
  int64_t const num_items = int64_t{grid.num_m_blocks()} * params.num_heads * params.batch;
  // Correctness: tickets run up to num_items + num_ctas in a 32-bit counter.
  DASH_CHECK(num_items < (int64_t{1} << 30),
             "dash: the forward pass has " + std::to_string(num_items) +
                 " query tiles; at most 2^30 are supported. Split the batch.");
  return {.tma_q = make_tma_copy(SM90_TMA_LOAD{}, mQ, typename Traits::SmemLayoutQ{},
                                 typename Traits::TileShapeQ{}, _1{}),
          .tma_k = make_tma_copy(SM90_TMA_LOAD{}, mK, typename Traits::SmemLayoutKStage{},
                                 typename Traits::TileShapeK{}, _1{}),
          .tma_vt = make_tma_copy(SM90_TMA_LOAD{}, mVt, typename Traits::SmemLayoutVtStage{},
                                  typename Traits::TileShapeVt{}, _1{}),
          .params = params,
          .grid = grid,
          .heads_per_section = heads_per_section<Traits>(params),
          .num_items = static_cast<int>(num_items)};
}

template <FwdConfig kConfig>
void launch(FwdParams const& params, cudaStream_t stream) {
  using Traits = FwdTraits<kConfig>;
  constexpr int kSharedBytes = sizeof(typename Traits::SharedStorage);
  auto const kernel = fwd_kernel<Traits>;
  DASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kSharedBytes));
  DASH_CUDA_CHECK(cudaMemsetAsync(params.ticket, 0, sizeof(int), stream));
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
