// The queue from the dQ writers to the dQ converters of all CTAs: Q tiles whose dQ is complete, in
// the order in which they became so. Which CTA converts a tile changes no bit.
//   params.finished[slot]  kNotYet, set by preprocess; then the Q tile's index in the workspace,
//                          by the writer lane of its last contributor; then kConverted, by the
//                          converter that claimed the slot, if it got that far. Postprocess
//                          converts the tiles that are left.
// Only converters wait for a slot, and a converter stops when its CTA has no more work: nothing
// that a gradient needs ever waits for one.
#pragma once

#include "bwd/params.hpp"
#include "common/semaphore.cuh"

namespace dash::bwd {

inline constexpr int kNotYet = -1;
inline constexpr int kConverted = -2;

// One lane, all additions to the tile complete and observed: releases them to the converter.
__device__ __forceinline__ void push_finished(BwdParams const& params, int tile) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  int const slot = atomicAdd(params.num_finished, 1);
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(params.finished + slot), "r"(tile)
               : "memory");
}

// One lane: a slot that no other converter looks at. May be past the last one.
__device__ __forceinline__ int claim_finished(BwdParams const& params) {
  return atomicAdd(params.num_claimed, 1);
}

// The tile in the slot, or kNotYet. Guarantee: acquires what push_finished released.
__device__ __forceinline__ int poll_finished(BwdParams const& params, int slot) {
  return semaphore::load_acquire(params.finished + slot);
}

}  // namespace dash::bwd
