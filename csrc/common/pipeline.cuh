// A ring of shared-memory stages filled by TMA and read by MMA warps, on two mbarriers a stage.
//   full[s]   arrives: the load warp's elected lane (1) and TMA's byte count; waits: every reader.
//   empty[s]  arrives: lane 0 of each reading warp (kReaderWarps), after its warp's last read;
//             waits: the load warp. Protects stage s from being overwritten while it is read.
// Guarantee used: phase completion orders the reads before it with the TMA writes after it,
// and complete_tx makes TMA's writes visible to every thread that observes the phase.
#pragma once

#include <cutlass/arch/barrier.h>

namespace dash {

template <int kStages_>
struct RingBarriers {
  static constexpr int kStages = kStages_;
  alignas(8) uint64_t full[kStages];
  alignas(8) uint64_t empty[kStages];

  // One thread of the CTA; a barrier-init fence and a CTA barrier must follow.
  CUTLASS_DEVICE void init(int producers, int reader_warps) {
    for (int stage = 0; stage < kStages; ++stage) {
      cutlass::arch::ClusterBarrier::init(&full[stage], producers);
      cutlass::arch::ClusterBarrier::init(&empty[stage], reader_warps);
    }
  }
};

// A role's position in a ring. `phase` flips each time the ring wraps.
template <int kStages>
struct RingState {
  int stage = 0;
  uint32_t phase = 0;

  // The position after `count` stages: one counter serves rings that advance together.
  // Tuning: unsigned, so that a division by a power of two is one instruction.
  CUTLASS_DEVICE static RingState at(uint32_t count) {
    return {static_cast<int>(count % kStages), count / kStages & 1};
  }

  CUTLASS_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Load warp: waits until the stage is empty. A fresh ring counts as empty.
template <int kStages>
CUTLASS_DEVICE void producer_acquire(RingBarriers<kStages>& ring, RingState<kStages> state) {
  cutlass::arch::ClusterBarrier::wait(&ring.empty[state.stage], state.phase ^ 1);
}

// Load warp: arrives once and announces the bytes that TMA will write into the stage.
template <int kStages>
CUTLASS_DEVICE void producer_expect(RingBarriers<kStages>& ring, RingState<kStages> state,
                                    uint32_t bytes) {
  cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(&ring.full[state.stage], bytes);
}

template <int kStages>
CUTLASS_DEVICE void consumer_wait(RingBarriers<kStages>& ring, RingState<kStages> state) {
  cutlass::arch::ClusterBarrier::wait(&ring.full[state.stage], state.phase);
  // Correctness: the wrappers of the mbarrier instructions have no memory clobber; without one the
  // compiler may move reads of the stage above the wait, or below the release.
  asm volatile("" ::: "memory");
}

// Reader warps: the whole warp calls this after its last read of the stage.
template <int kStages>
CUTLASS_DEVICE void consumer_release(RingBarriers<kStages>& ring, RingState<kStages> state) {
  asm volatile("" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    cutlass::arch::ClusterBarrier::arrive(&ring.empty[state.stage]);
  }
}

// A role that runs on one lane releases the stage alone; it counts as one reader warp.
template <int kStages>
CUTLASS_DEVICE void consumer_release_by_lane(RingBarriers<kStages>& ring,
                                             RingState<kStages> state) {
  asm volatile("" ::: "memory");
  cutlass::arch::ClusterBarrier::arrive(&ring.empty[state.stage]);
}

}  // namespace dash
