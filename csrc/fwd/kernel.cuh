// The forward kernel: barriers, then roles. No arithmetic.
//   warp 0, one lane          load_loop (load.cuh)
//   warps 1-3                 exit: the producer warpgroup gives its registers to the others
//   warps 4 and up            mma_loop (mma.cuh), 64 query rows a warpgroup
// One CTA per SM, persistent; work items come from params.ticket.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include "common/check.hpp"
#include "fwd/load.cuh"
#include "fwd/mma.cuh"
#include "fwd/traits.cuh"

namespace dash::fwd {

template <class Traits>
__global__ void __launch_bounds__(Traits::kNumThreads, 1)
    fwd_kernel(__grid_constant__ FwdKernelArgs<Traits> const args) {
  using SharedStorage = typename Traits::SharedStorage;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  DASH_DEVICE_CHECK(cast_smem_ptr_to_uint(shared_bytes) % 1024 == 0);

  if (threadIdx.x == 0) {
    prefetch_tma_descriptor(args.tma_q.get_tma_descriptor());
    prefetch_tma_descriptor(args.tma_k.get_tma_descriptor());
    prefetch_tma_descriptor(args.tma_vt.get_tma_descriptor());
    smem.q_ring.init(1, Traits::kNumMmaWarps);
    smem.k_ring.init(1, Traits::kNumMmaWarps);
    smem.v_ring.init(1, Traits::kNumMmaWarps);
    smem.item_ring.init(1, Traits::kNumMmaWarps);
    smem.outgrown.init();
    cutlass::arch::fence_barrier_init();
  }
  if (args.has_missing_boxes) {
    zero_boxes(smem.q, &smem.q_ring);
  }
  // All threads arrive and wait: after it the barriers above are initialised for everyone, and
  // boxes that are not loaded are zero.
  __syncthreads();

  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Traits::kConfig.load_registers>();
    if (cutlass::canonical_warp_idx() == 0 && cute::elect_one_sync()) {
      load_loop(args, smem);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Traits::kConfig.mma_registers>();
    if (args.params.head_dim_v <= Traits::kNarrowHeadDimV) {
      mma_loop<Traits, Traits::kNarrowHeadDimV>(args, smem);
    } else if constexpr (Traits::kNarrowHeadDimV < Traits::kHeadDim) {
      mma_loop<Traits, Traits::kHeadDim>(args, smem);
    }
  }
}

}  // namespace dash::fwd
