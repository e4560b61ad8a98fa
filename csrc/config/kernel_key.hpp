// KernelKey: what a user can ask for, and what a compiled kernel is found by. The schedule is not
// part of it: policies that differ only in integers share a kernel (schedule/any_of.hpp).
#pragma once

#include <array>

#include "schedule/tile_grid.hpp"

namespace dash {

// Head dims that kernels are compiled for. Any multiple of 8 up to the last runs in the next larger
// one: TMA fills the missing columns with zeros, and they are not stored.
inline constexpr std::array kHeadDims = {64, 96, 128, 192, 256};
inline constexpr int kMaxHeadDim = kHeadDims.back();

enum class DType : int { kBf16 = 0, kFp16 = 1 };

// Which calls a compiled kernel serves.
enum class Variant : int {
  kFull = 0,        // (batch, seqlen) tensors, no mask
  kCausal = 1,      // (batch, seqlen) tensors, causal mask
  kPackedFull = 2,  // packed sequences, no mask, where that has a kernel of its own
  kGeneral = 3,     // all others: windows, softcap, packed sequences, under any mask
};

struct KernelKey {
  DType dtype;
  int head_dim;  // one of kHeadDims
  Variant variant;

  // In (batch, seqlen) kernels layout and mask are constants.
  constexpr bool is_dense() const {
    return variant == Variant::kFull || variant == Variant::kCausal;
  }

  friend constexpr bool operator==(KernelKey const&, KernelKey const&) = default;
};

// The compiled head dim that a head dim of q, k and one of v run in; 0: none is large enough.
constexpr int kernel_head_dim(int head_dim, int head_dim_v) {
  for (int const compiled : kHeadDims) {
    if (head_dim <= compiled && head_dim_v <= compiled) {
      return compiled;
    }
  }
  return 0;
}

// Tuning: at the commonest head dim; without masks in registers the backward's warpgroups can run
// in turns (bwd_config.hpp). A packed sequence gets the bits that it gets alone in either kernel.
constexpr bool has_packed_full(int head_dim) { return head_dim == 128; }

// The variant that serves a call; `head_dim` is one of kHeadDims.
constexpr Variant variant_of(int head_dim, MaskKind mask, bool is_packed, bool has_softcap) {
  if (mask == MaskKind::kWindow || has_softcap) {
    return Variant::kGeneral;
  }
  if (!is_packed) {
    return mask == MaskKind::kFull ? Variant::kFull : Variant::kCausal;
  }
  return mask == MaskKind::kFull && has_packed_full(head_dim) ? Variant::kPackedFull
                                                              : Variant::kGeneral;
}

}  // namespace dash
