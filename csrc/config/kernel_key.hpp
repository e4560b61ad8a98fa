// KernelKey: what a user can ask for, and what a compiled kernel is found by. The schedule is not
// part of it: policies that differ only in integers share a kernel (schedule/any_of.hpp).
#pragma once

#include <array>

#include "schedule/tile_grid.hpp"

namespace dash {

inline constexpr std::array kHeadDims = {64, 128};

enum class DType : int { kBf16 = 0, kFp16 = 1 };

struct KernelKey {
  DType dtype;
  int head_dim;
  MaskKind mask;

  friend constexpr bool operator==(KernelKey const&, KernelKey const&) = default;
};

}  // namespace dash
