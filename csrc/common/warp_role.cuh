// Which role a warp of the backward's main kernel plays: a producer warpgroup, then the MMA
// warpgroups.
#pragma once

#include <cutlass/cutlass.h>

namespace dash {

enum class WarpRole { kLoad, kDqWriter, kDqConverter, kMma };

inline constexpr int kNumDqWriters = 2;
inline constexpr int kFirstMmaWarp = 4;

CUTLASS_DEVICE WarpRole warp_role(int warp) {
  if (warp >= kFirstMmaWarp) {
    return WarpRole::kMma;
  }
  if (warp == 0) {
    return WarpRole::kLoad;
  }
  return warp <= kNumDqWriters ? WarpRole::kDqWriter : WarpRole::kDqConverter;
}

}  // namespace dash
