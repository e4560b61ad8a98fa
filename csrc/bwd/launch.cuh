// The backward of one configuration: its stages on one stream, no host synchronisation.
// Host code; the only place that builds TMA descriptors and launches backward kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "bwd/add_dkv_parts.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/kernel.cuh"
#include "bwd/postprocess.cuh"
#include "bwd/preprocess.cuh"
#include "common/check.hpp"
#include "common/dynamic_smem.cuh"
#include "common/kernel_attributes.hpp"
#include "common/sequence_order.cuh"
#include "common/unowned_rows.cuh"

namespace dash::bwd {

struct Extents {
  int rows;
  int head_dim;
  int num_heads;
  int batch;
};

// A descriptor for tiles of `tile`'s shape.
template <class Traits, class SmemTile>
auto make_tma(SmemTile const& tile, void const* pointer, Strides const& strides,
              Extents const& extents) {
  auto const* const data = static_cast<typename Traits::Element const*>(pointer);
  auto const [rows, head_dim, num_heads, batch] = extents;
  if constexpr (Traits::kIsDense) {
    return make_tma_copy(
        SM90_TMA_LOAD{},
        make_tensor(make_gmem_ptr(data),
                    make_layout(typename Traits::GmemShape{rows, head_dim, num_heads, batch},
                                make_stride(strides.row, _1{}, strides.head, strides.batch))),
        tile);
  } else {
    constexpr int kRows = size<0>(SmemTile{});
    // One batch entry, of any stride, has the rows'.
    int64_t const batch_stride = batch == 1 ? strides.row : strides.batch;
    return make_tma_copy(
        SM90_TMA_LOAD{},
        make_tensor(make_gmem_ptr(data - kRows * strides.row),
                    make_layout(RaggedShape{kRows, head_dim, rows + 1, num_heads, batch},
                                make_stride(strides.row, _1{}, strides.row, strides.head,
                                            batch_stride))),
        tile);
  }
}

inline ScoreScale score_scale(BwdParams const& params) {
  if (params.softcap > 0.f) {
    float const softcap_log2 = params.softcap * kLog2e;
    return {params.softmax_scale / params.softcap * kTanhScale, softcap_log2, 1.f / softcap_log2};
  }
  return {params.softmax_scale * kLog2e, 0.f, 0.f};
}

template <class Traits>
typename Traits::MainArguments make_main_arguments(BwdParams const& params) {
  schedule::TileGrid const& grid = params.grid;
  bool const is_packed = Traits::is_packed(params);
  int const batch = is_packed ? 1 : grid.batch;
  int const rows_q = is_packed ? params.packed.total_q : grid.seqlen_q;
  int const rows_k = is_packed ? params.packed.total_k : grid.seqlen_k;
  // A tensor without rows may have no address; its descriptor is not used, but must be valid.
  auto const address = [&](void const* tensor, int rows) {
    return rows == 0 ? static_cast<void const*>(params.lse_log2) : tensor;
  };
  typename Traits::SmemTileM const tile_m;
  return {make_tma<Traits>(tile_m, address(params.q, rows_q), params.q_strides,
                           {rows_q, params.head_dim, params.num_heads, batch}),
          make_tma<Traits>(tile_m, address(params.dout, rows_q), params.do_strides,
                           {rows_q, params.head_dim_v, params.num_heads, batch}),
          make_tma<Traits>(typename Traits::SmemLayoutK{}, address(params.k, rows_k),
                           params.k_strides, {rows_k, params.head_dim, params.num_heads_k, batch}),
          make_tma<Traits>(typename Traits::SmemLayoutV{}, address(params.v, rows_k),
                           params.v_strides,
                           {rows_k, params.head_dim_v, params.num_heads_k, batch}),
          box_bytes(Traits::kBlockM, params.head_dim, Traits::kBoxColumns),
          box_bytes(Traits::kBlockM, params.head_dim_v, Traits::kBoxColumns),
          box_bytes(Traits::kBlockN, params.head_dim, Traits::kBoxColumnsOfK),
          box_bytes(Traits::kBlockN, params.head_dim_v, Traits::kBoxColumns),
          std::min(params.head_dim, params.head_dim_v) + Traits::kBoxColumnsOfK <= Traits::kHeadDim,
          score_scale(params), tiles_of_a_head<QuerySide<Traits>>(params), params};
}

// An upper bound, as far as the host can know it.
template <class Traits>
int64_t num_tickets(BwdParams const& params) {
  if (Traits::is_packed(params)) {
    return kv_tiles_of_a_list(params.grid, params.packed) * params.grid.num_heads;
  }
  return Traits::Policy::num_tickets(params.grid);
}

template <class Traits>
void launch_main(typename Traits::MainArguments const& arguments, cudaStream_t stream) {
  BwdParams const& params = arguments.params;
  constexpr int kSharedBytes = sizeof(typename Traits::SharedStorage);
  static OncePerDevice smem_is_allowed;
  allow_dynamic_smem(main_kernel<Traits>, kSharedBytes, smem_is_allowed);
  int const num_ctas =
      static_cast<int>(std::min<int64_t>(params.num_ctas, num_tickets<Traits>(params)));
  // Correctness: a gang's CTAs wait for each other. A cooperative launch starts all CTAs or none,
  // whatever else occupies the device.
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(num_ctas);
  config.blockDim = dim3(Traits::kNumThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = params.gang_size > 1 ? 1 : 0;
  DASH_CUDA_CHECK(cudaLaunchKernelEx(&config, main_kernel<Traits>, arguments));
}

template <class Traits>
void launch_postprocess(BwdParams const& params, int num_q_tiles, cudaStream_t stream) {
  // Tuning: if the converter warps had most of the tiles, CTAs that find nothing to do cost more
  // than those that look at a few slots each.
  constexpr int kCtasPerSm = 4;
  int const num_ctas = params.has_converters
                           ? std::min(num_q_tiles, kCtasPerSm * params.num_ctas)
                           : num_q_tiles;
  postprocess_kernel<Traits><<<num_ctas, Traits::kNumMmaThreads, 0, stream>>>(params);
  DASH_CUDA_CHECK(cudaGetLastError());
}

// Stage 0, packed: who works on which sequence when.
template <class Traits>
void launch_order(BwdParams const& params, cudaStream_t stream) {
  order_sequences({.packed = params.packed,
                   .batch = params.grid.batch,
                   .tiles_of = TilesOf::kKeys,
                   .block = Traits::kBlockN,
                   .tickets_per_tile = params.grid.num_heads,
                   .sequence_order = params.sequence_order,
                   .ticket_begin = params.ticket_begin},
                  stream);
}

// Stage 4, packed: gradients of the rows that no sequence owns.
inline void launch_unowned_rows(BwdParams const& params, cudaStream_t stream) {
  PackedSequences const& packed = params.packed;
  int const batch = params.grid.batch;
  auto const target = [](void* data, Strides const& strides, int num_heads, int head_dim) {
    return UnownedTarget{data, strides.row, strides.head, num_heads, head_dim};
  };
  zero_unowned_rows(
      {.cu_seqlens = packed.cu_seqlens_q,
       .seqused = packed.seqused_q,
       .total = packed.total_q,
       .batch = batch,
       .targets = {target(params.dq, params.dq_strides, params.num_heads, params.head_dim), {}}},
      stream);
  zero_unowned_rows(
      {.cu_seqlens = packed.cu_seqlens_k,
       .seqused = packed.seqused_k,
       .total = packed.total_k,
       .batch = batch,
       .targets = {target(params.dk, params.dk_strides, params.num_heads_k, params.head_dim),
                   target(params.dv, params.dv_strides, params.num_heads_k,
                          params.head_dim_v)}},
      stream);
}

template <BwdConfig kConfig, class Policy>
void launch(BwdParams const& params, cudaStream_t stream) {
  using Traits = BwdTraits<kConfig, Policy>;
  bool const is_packed = Traits::is_packed(params);
  if (is_packed) {
    launch_order<Traits>(params, stream);
  }
  int const num_q_tiles = num_tiles_of<QuerySide<Traits>>(params);
  preprocess_kernel<Traits><<<num_q_tiles, kPreprocessThreads, 0, stream>>>(params);
  DASH_CUDA_CHECK(cudaGetLastError());
  // Correctness: after the first launch. Descriptors are made by the driver, which needs a current
  // context; in a thread of autograd's the first runtime call is what makes one current.
  auto const arguments = make_main_arguments<Traits>(params);
  launch_main<Traits>(arguments, stream);
  launch_postprocess<Traits>(params, num_q_tiles, stream);
  if (params.group_parts > 1) {
    dim3 const grid(num_tiles_of<KeySide<Traits>>(params), 2);
    add_dkv_parts_kernel<Traits><<<grid, Traits::kNumMmaThreads, 0, stream>>>(params);
    DASH_CUDA_CHECK(cudaGetLastError());
  }
  if (is_packed) {
    launch_unowned_rows(params, stream);
  }
}

template <BwdConfig kConfig, class Policy>
std::vector<KernelAttributes> attributes() {
  using Traits = BwdTraits<kConfig, Policy>;
  auto const ask = [](char const* stage, auto* kernel, int dynamic_bytes) {
    cudaFuncAttributes driver;
    DASH_CUDA_CHECK(cudaFuncGetAttributes(&driver, kernel));
    return KernelAttributes{stage, driver.numRegs,
                            static_cast<int>(driver.sharedSizeBytes) + dynamic_bytes,
                            static_cast<int>(driver.localSizeBytes)};
  };
  return {ask("bwd_preprocess", preprocess_kernel<Traits>, 0),
          ask("bwd_main", main_kernel<Traits>, sizeof(typename Traits::SharedStorage)),
          ask("bwd_postprocess", postprocess_kernel<Traits>, 0),
          ask("bwd_add_dkv_parts", add_dkv_parts_kernel<Traits>, 0)};
}

}  // namespace dash::bwd
