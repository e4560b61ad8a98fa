// BwdConfig and bwd_config(key): the only table of the backward kernel's tile sizes. Allocator,
// kernels, CPU path and tests read the same numbers from here.
#pragma once

#include "config/kernel_key.hpp"

namespace dash {

// How the MMA warpgroups share the products dK = dS^T Q and dV = P^T dO of one tile, and where P
// and dS come from.
enum class DkvProduct : int {
  kRowsSplit = 0,     // each computes 64 key rows; S and dP are computed transposed, so that P^T
                      // and dS^T are register operands
  kColumnsSplit = 1,  // each computes some columns; P and dS come from shared memory
  kTransposed = 2,    // dK^T = Q^T dS and dV^T, each computes 64 rows; from shared memory
};

// How the MMA warpgroups share the product dQ = dS K of one tile.
enum class DqProduct : int {
  kRowsSplit = 0,     // each computes some rows
  kColumnsSplit = 1,  // each computes some columns
  kTransposed = 2,    // dQ^T = K^T dS^T, each computes some rows of it
};

struct BwdConfig {
  KernelKey key;
  int block_m;  // query rows of a Q tile
  int block_n;  // key rows of a KV tile
  int stages_q;
  int stages_do;
  int stages_ds;  // of P too, where it goes through shared memory
  int stages_dq;  // 1, or 2: one for each dQ writer warp
  DqProduct dq_product;
  int mma_registers;   // registers a thread after setmaxnreg: MMA warpgroups
  int load_registers;  // registers a thread after setmaxnreg: load and dQ writer warps

  int num_mma_warpgroups = 2;
  DkvProduct dkv_product = DkvProduct::kRowsSplit;
  int dq_parts = 1;  // products, one after the other through one stage, that make a dQ tile

  constexpr int num_threads() const { return 128 * (num_mma_warpgroups + 1); }
};

// Head dims whose dK and dV don't fit the registers as 64 key rows a warpgroup. One tile for all
// variants.
constexpr BwdConfig wide_bwd_config(KernelKey key) {
  if (key.head_dim == 192) {
    // Tuning: 96 keys, a third of them a warpgroup, are what shared memory holds.
    return {.key = key, .block_m = 64, .block_n = 96, .stages_q = 2, .stages_do = 1,
            .stages_ds = 1, .stages_dq = 1, .dq_product = DqProduct::kColumnsSplit,
            .mma_registers = 160, .load_registers = 32, .num_mma_warpgroups = 3,
            .dkv_product = DkvProduct::kTransposed};
  }
  // Tuning: 64 keys with two stages of Q. A whole dQ tile beside them would not fit.
  return {.key = key, .block_m = 64, .block_n = 64, .stages_q = 2, .stages_do = 1,
          .stages_ds = 2, .stages_dq = 1, .dq_product = DqProduct::kColumnsSplit,
          .mma_registers = 232, .load_registers = 40,
          .dkv_product = DkvProduct::kColumnsSplit, .dq_parts = 2};
}

constexpr BwdConfig bwd_config(KernelKey key) {
  if (key.head_dim > 128) {
    return wide_bwd_config(key);
  }
  // Tuning: a second dQ stage, where it fits, keeps the MMA warpgroups from waiting for the copy
  // engine: 2 to 10 % of the whole backward for a causal mask, 3 to 5 % for a full one at head
  // dim 64 (H200).
  if (key.head_dim == 64) {
    return {.key = key, .block_m = 128, .block_n = 128, .stages_q = 2, .stages_do = 2,
            .stages_ds = 2, .stages_dq = 2, .dq_product = DqProduct::kRowsSplit,
            .mma_registers = 232, .load_registers = 40};
  }
  if (key.head_dim == 96) {
    // Tuning: 80 rows would not leave registers for three quarters of the accumulators that head
    // dim 128 has; 64 is also best on the diagonal.
    return {.key = key, .block_m = 64, .block_n = 128, .stages_q = 2, .stages_do = 2,
            .stages_ds = 2, .stages_dq = 2, .dq_product = DqProduct::kColumnsSplit,
            .mma_registers = 232, .load_registers = 40};
  }
  if (key.variant == Variant::kCausal || key.variant == Variant::kGeneral) {
    // Tuning: head dim 128. A 64-row tile wastes least on the diagonal.
    return {.key = key, .block_m = 64, .block_n = 128, .stages_q = 2, .stages_do = 2,
            .stages_ds = 2, .stages_dq = 2, .dq_product = DqProduct::kColumnsSplit,
            .mma_registers = 232, .load_registers = 40};
  }
  // Tuning: head dim 128. 80 rows are what registers and shared memory hold; the taller tile
  // amortises the shared-memory traffic of K and V.
  return {.key = key, .block_m = 80, .block_n = 128, .stages_q = 2, .stages_do = 2,
          .stages_ds = 2, .stages_dq = 1, .dq_product = DqProduct::kTransposed,
          .mma_registers = 240, .load_registers = 24};
}

}  // namespace dash
