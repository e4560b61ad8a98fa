// The named barriers of the kernels, by the fact they publish.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace dash {

enum class BwdBarrier : uint32_t {
  kDsReady = 1,  // the dS tile in shared memory is complete: all MMA threads arrive and wait
  kDsFree = 2,   // no product reads P and dS any more (one stage of them): all MMA threads likewise
  // + MMA warpgroup 0 or 1: it may issue S and dP. It waits, the other one arrives.
  kScoresTurn = 3,
};

// Arrives and waits: num_threads threads. CUTLASS keeps the ids below its reserved count.
template <class Barrier>
CUTLASS_DEVICE void named_barrier_sync(Barrier barrier, uint32_t num_threads) {
  cutlass::arch::NamedBarrier::sync(num_threads, static_cast<uint32_t>(barrier));
}

// Arrives without waiting; num_threads counts those that arrive and those that wait.
template <class Barrier>
CUTLASS_DEVICE void named_barrier_arrive(Barrier barrier, uint32_t num_threads) {
  cutlass::arch::NamedBarrier::arrive(num_threads, static_cast<uint32_t>(barrier));
}

}  // namespace dash
