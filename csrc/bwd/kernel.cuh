// Stage 2, main kernel: barriers, then role dispatch; no arithmetic.
// Threads: load warp, two dQ writer warps, a dQ converter warp, two or three MMA warpgroups.
// Persistent: each CTA takes work tiles from a ticket counter until none is left.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "bwd/convert_dq.cuh"
#include "bwd/load.cuh"
#include "bwd/mma.cuh"
#include "bwd/store_dq.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

template <class Traits>
CUTE_DEVICE void init_barriers(typename Traits::SharedStorage& smem) {
  smem.ring_k.init(1, Traits::kNumMmaWarps);
  smem.ring_v.init(1, Traits::kNumMmaWarps);
  smem.ring_q.init(1, Traits::kNumMmaWarps);
  smem.ring_do.init(1, Traits::kNumMmaWarps);
  smem.ring_work.init(1, Traits::kNumMmaWarps + kNumDqWriters);
  for (int stage = 0; stage < Traits::kStagesDs; ++stage) {
    cutlass::arch::ClusterBarrier::init(&smem.ds_full[stage], Traits::kNumMmaWarps);
    cutlass::arch::ClusterBarrier::init(&smem.ds_empty[stage], Traits::kNumMmaWarps);
  }
  for (int writer = 0; writer < kNumDqWriters; ++writer) {
    for (int warpgroup = 0; warpgroup < Traits::kNumMmaWarpgroups; ++warpgroup) {
      cutlass::arch::ClusterBarrier::init(&smem.dq_full[writer][warpgroup], 4);
      cutlass::arch::ClusterBarrier::init(&smem.dq_empty[writer][warpgroup], 1);
    }
  }
  cutlass::arch::ClusterBarrier::init(&smem.no_more_dq, kNumDqWriters);
  // Makes the initialised barriers visible to the copy engine.
  cutlass::arch::fence_barrier_init();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kNumThreads, 1)
    main_kernel(__grid_constant__ typename Traits::MainArguments const arguments) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(shared_memory);
  int const warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    init_barriers<Traits>(smem);
  }
  if (arguments.has_missing_boxes) {
    zero_boxes(smem.k, smem.ds);
  }
  // Arrives and waits: all threads. Protects: the barriers until they are initialised, and boxes
  // that are not loaded until they are zeroed.
  __syncthreads();

  WarpRole const role = warp_role(warp);
  if (role == WarpRole::kMma) {
    cutlass::arch::warpgroup_reg_alloc<Traits::kConfig.mma_registers>();
    if (arguments.params.head_dim_v <= NarrowV<Traits>::kHeadDimV) {
      mma_work_loop<NarrowV<Traits>>(arguments, smem);
    } else if constexpr (NarrowV<Traits>::kHeadDimV < Traits::kHeadDim) {
      mma_work_loop<Traits>(arguments, smem);
    }
  } else {
    cutlass::arch::warpgroup_reg_dealloc<Traits::kConfig.load_registers>();
    bool const is_first_lane = threadIdx.x % 32 == 0;
    if (role == WarpRole::kLoad && is_first_lane) {
      Load<Traits>{arguments, smem}.run();
    } else if (role == WarpRole::kDqWriter && is_first_lane) {
      StoreDq<Traits>{arguments, smem, warp - 1}.run();
    } else if (role == WarpRole::kDqConverter) {
      ConvertDq<Traits>{arguments.params, smem}.run();
    }
  }
}

}  // namespace dash::bwd
