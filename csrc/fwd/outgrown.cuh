// How an MMA warpgroup learns that some lane of it found a KV tile's probabilities too large for
// their row's reference (common/softmax.cuh): the lane sets a flag, the warpgroup meets at a named
// barrier, everyone reads the flag.
// Tuning: seldom set, so that what counts is the read: a load and a vote a tile.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute/tensor.hpp>

namespace dash::fwd {

// In shared memory, zero at first. Of KV tiles with even and with odd index.
// Correctness: two, because a warp may already report on the next tile while another one has not
// asked about this one. Not on the tile after that: a warpgroup meets once a tile.
template <int kWarpgroups>
struct OutgrownFlags {
  int flags[2][kWarpgroups];

  // One thread, before the CTA's first barrier.
  CUTE_DEVICE void init() {
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      flags[0][warpgroup] = 0;
      flags[1][warpgroup] = 0;
    }
  }

  // A lane of the warpgroup.
  CUTE_DEVICE void report(int warpgroup, int n_block) { set(warpgroup, n_block, 1); }

  // Arrives and waits: the warpgroup. Named barriers behind those of the issue turns.
  CUTE_DEVICE static void meet(int warpgroup) {
    cutlass::arch::NamedBarrier::sync(128, static_cast<uint32_t>(kWarpgroups + warpgroup));
  }

  // Whether some lane reported. The warpgroup has met since it computed the tile, here or at its
  // issue turn; the same answer for all of it. The flag is clear again before it next meets.
  CUTE_DEVICE bool was_reported(int warpgroup, int n_block) {
    int flag;
    // Correctness: volatile, like the barrier in front of it, whose asm does not mention memory.
    asm volatile("ld.volatile.shared.s32 %0, [%1];"
                 : "=r"(flag)
                 : "r"(address(warpgroup, n_block)));
    // Tuning: a vote makes the branch uniform for the compiler; otherwise R2UR in the SASS.
    if (!__any_sync(0xffffffffu, flag != 0)) {
      return false;
    }
    // Protects: the flag, until all have read it.
    meet(warpgroup);
    if (threadIdx.x % 128 == 0) {
      set(warpgroup, n_block, 0);
    }
    return true;
  }

 private:
  CUTE_DEVICE uint32_t address(int warpgroup, int n_block) const {
    return cute::cast_smem_ptr_to_uint(&flags[n_block % 2][warpgroup]);
  }

  CUTE_DEVICE void set(int warpgroup, int n_block, int value) {
    asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(address(warpgroup, n_block)), "r"(value));
  }
};

}  // namespace dash::fwd
