// The named barriers of the kernels, by the fact they publish.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace dash {

enum class BwdBarrier : uint32_t {
  kDsReady = 1,  // the dS tile in shared memory is complete: all MMA threads arrive and wait
  kDsFree = 2,   // no product reads P and dS any more (one stage of them): all MMA threads likewise
};

// Arrives and waits: num_threads threads. CUTLASS keeps the ids below its reserved count.
template <class Barrier>
CUTLASS_DEVICE void named_barrier_sync(Barrier barrier, uint32_t num_threads) {
  cutlass::arch::NamedBarrier::sync(num_threads, static_cast<uint32_t>(barrier));
}

}  // namespace dash
