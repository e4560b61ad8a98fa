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
};

// When the MMA warpgroups use the tensor cores. Changes no bit.
enum class Overlap : int {
  kTogether = 0,  // all are in the same phase of a tile
  kInTurns = 1,   // two are half a tile apart: one's products run under the other's exponentials;
                  // dQ of a tile is computed in the next one
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
  Overlap overlap = Overlap::kTogether;

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
  // Tuning: warpgroups in turns, 2 to 9 % of the whole backward (H200). The masks and softcap of
  // kGeneral leave too few registers for it.
  Overlap const overlap =
      key.variant == Variant::kGeneral ? Overlap::kTogether : Overlap::kInTurns;
  // Tuning: a second dQ stage keeps the MMA warpgroups from waiting for the copy engine: 2 to 10 %
  // of the whole backward (H200). At head dims 96 and 128 it leaves room for 64 rows, which also
  // waste least on the diagonal.
  bool const is_64 = key.head_dim == 64;
  return {.key = key, .block_m = is_64 ? 128 : 64, .block_n = 128, .stages_q = 2, .stages_do = 2,
          .stages_ds = 2, .stages_dq = 2,
          .dq_product = is_64 ? DqProduct::kRowsSplit : DqProduct::kColumnsSplit,
          .mma_registers = 232, .load_registers = 40, .overlap = overlap};
}

}  // namespace dash
