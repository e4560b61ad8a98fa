// The backward of one configuration: stages 1, 2, 3 on one stream, no host synchronisation.
// Host code; the only place that builds TMA descriptors and launches backward kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "bwd/kernel.cuh"
#include "bwd/postprocess.cuh"
#include "bwd/preprocess.cuh"
#include "common/check.hpp"
#include "common/kernel_attributes.hpp"

namespace dash::bwd {

inline constexpr float kLog2e = 1.4426950408889634f;

template <class Traits>
auto make_gmem_tensor(void const* pointer, Strides const& strides, int seqlen, int num_heads,
                      int batch) {
  return make_tensor(make_gmem_ptr(static_cast<typename Traits::Element const*>(pointer)),
                     make_layout(make_shape(seqlen, Int<Traits::kHeadDim>{}, num_heads, batch),
                                 make_stride(strides.row, _1{}, strides.head, strides.batch)));
}

template <class Traits>
typename Traits::MainArguments make_main_arguments(BwdParams const& params) {
  schedule::TileGrid const& grid = params.grid;
  typename Traits::template SmemTile<Traits::kBlockM, Traits::kHeadDim> const tile_m;
  typename Traits::SmemLayoutKv const tile_n;
  auto const tma = [&](auto const& tile, void const* pointer, Strides const& strides, int seqlen,
                       int num_heads) {
    return make_tma_copy(
        SM90_TMA_LOAD{},
        make_gmem_tensor<Traits>(pointer, strides, seqlen, num_heads, grid.batch), tile);
  };
  return {tma(tile_m, params.q, params.q_strides, grid.seqlen_q, params.num_heads),
          tma(tile_m, params.dout, params.do_strides, grid.seqlen_q, params.num_heads),
          tma(tile_n, params.k, params.k_strides, grid.seqlen_k, grid.num_heads),
          tma(tile_n, params.v, params.v_strides, grid.seqlen_k, grid.num_heads),
          params.softmax_scale * kLog2e, params};
}

template <class Traits>
void launch_main(typename Traits::MainArguments const& arguments, cudaStream_t stream) {
  BwdParams const& params = arguments.params;
  constexpr int kSharedBytes = sizeof(typename Traits::SharedStorage);
  DASH_CUDA_CHECK(cudaFuncSetAttribute(main_kernel<Traits>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  int const num_ctas = std::min(params.num_ctas, Traits::Policy::num_tickets(params.grid));
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

template <BwdConfig kConfig, class Policy>
void launch(BwdParams const& params, cudaStream_t stream) {
  using Traits = BwdTraits<kConfig, Policy>;
  int const num_q_tiles =
      params.grid.batch * params.num_heads * params.grid.num_m_blocks();
  preprocess_kernel<Traits><<<num_q_tiles, kPreprocessThreads, 0, stream>>>(params);
  DASH_CUDA_CHECK(cudaGetLastError());
  // Correctness: after the first launch. Descriptors are made by the driver, which needs a current
  // context; in a thread of autograd's the first runtime call is what makes one current.
  auto const arguments = make_main_arguments<Traits>(params);
  launch_main<Traits>(arguments, stream);
  postprocess_kernel<Traits><<<num_q_tiles, Traits::kNumMmaThreads, 0, stream>>>(params);
  DASH_CUDA_CHECK(cudaGetLastError());
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
          ask("bwd_postprocess", postprocess_kernel<Traits>, 0)};
}

}  // namespace dash::bwd
