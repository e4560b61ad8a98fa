// FwdConfig and fwd_config(key): the only table of the forward kernel's tile sizes.
#pragma once

#include "config/kernel_key.hpp"

namespace dash {

struct FwdConfig {
  KernelKey key;
  int block_m;             // query rows of a CTA's tile
  int block_n;             // key rows of a KV tile
  int num_mma_warpgroups;  // each owns block_m / num_mma_warpgroups rows
  int stages_kv;           // K and V shared-memory buffers each
  int mma_registers;       // registers a thread after setmaxnreg: MMA warpgroups
  int load_registers;      // registers a thread after setmaxnreg: producer warpgroup

  constexpr int num_threads() const { return 128 * (num_mma_warpgroups + 1); }
};

// Tiles depend on the head dim alone, so that a sequence runs in the same ones whichever kernel
// serves it.
constexpr FwdConfig fwd_config(KernelKey key) {
  if (key.head_dim == 64) {
    // Tuning: three MMA warpgroups. 128 keys is what 160 registers hold with P in registers. Three
    // stages, because a tile's K is kept for as long as its scores may have to be computed again.
    return {.key = key, .block_m = 192, .block_n = 128,
            .num_mma_warpgroups = 3, .stages_kv = 3, .mma_registers = 160, .load_registers = 32};
  }
  if (key.head_dim == 96) {
    // Tuning: as at 64; a wider output leaves registers for fewer keys.
    return {.key = key, .block_m = 192, .block_n = 96,
            .num_mma_warpgroups = 3, .stages_kv = 3, .mma_registers = 160, .load_registers = 32};
  }
  if (key.head_dim == 192) {
    // Tuning: 112 keys is what two stages of K and V leave room for in shared memory.
    return {.key = key, .block_m = 128, .block_n = 112,
            .num_mma_warpgroups = 2, .stages_kv = 2, .mma_registers = 232, .load_registers = 40};
  }
  if (key.head_dim == 256) {
    // Tuning: 80 keys is what two stages of K and V leave room for in shared memory.
    return {.key = key, .block_m = 128, .block_n = 80,
            .num_mma_warpgroups = 2, .stages_kv = 2, .mma_registers = 232, .load_registers = 40};
  }
  // Tuning: head dim 128. 40 registers is what the load lane needs unspilled.
  return {.key = key, .block_m = 128, .block_n = 128,
          .num_mma_warpgroups = 2, .stages_kv = 3, .mma_registers = 232, .load_registers = 40};
}

}  // namespace dash
