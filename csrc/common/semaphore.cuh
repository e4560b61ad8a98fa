// A turnstile in global memory: contributors to one piece of memory pass in the order of their
// turns 0, 1, 2, ... The counter holds the number of contributors that are done.
//
// Memory-order contract of one hand-over, contributor t to contributor t + 1:
//   1. t + 1 acquires: ld.acquire.gpu until the counter equals its turn;
//   2. t + 1 orders its own accesses after the acquire: nothing more for generic loads and stores;
//      `fence.proxy.async.global` if it accesses through the bulk-copy engine (another proxy);
//   3. t completes its accesses before it releases: bulk operations with `wait_group 0`, the full
//      completion. `wait_group.read` only says that shared memory may be reused, not that the sum
//      has reached global memory: releasing on it lets t + 1 overtake t;
//   4. t releases: fence.acq_rel.gpu, then a relaxed add of 1.
// One thread does all of it. Whoever launches the kernel sees to it that the counter starts at 0.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

namespace dash::semaphore {

__device__ __forceinline__ int load_acquire(int const* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Orders generic-proxy accesses of global memory that this thread has made or acquired before its
// async-proxy (bulk copy) ones.
__device__ __forceinline__ void fence_generic_to_async() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Arrives: the contributor with turn `turn - 1`, through pass_turn. Waits: one thread.
// Protects: the memory the counter guards. Guarantee: acquire at GPU scope.
__device__ __forceinline__ void wait_turn(int const* counter, int turn) {
#if defined(DASH_DEBUG)
  constexpr long long kSpinLimit = 1ll << 28;
  long long spins = 0;
#endif
  int seen = load_acquire(counter);
  while (seen != turn) {
#if defined(DASH_DEBUG)
    if (++spins == kSpinLimit) {
      printf("dash: CTA %d waits for turn %d, sees %d\n", blockIdx.x, turn, seen);
      __trap();
    }
#endif
    seen = load_acquire(counter);
  }
}

// Releases everything this thread did, and everything it observed, to whoever waits for turn + 1.
__device__ __forceinline__ void pass_turn(int* counter) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

}  // namespace dash::semaphore
