// DType -> the 16-bit element type of the kernels.
#pragma once

#include <cutlass/numeric_types.h>

#include <type_traits>

#include "config/kernel_key.hpp"

namespace dash {

template <DType kDType>
using Element =
    std::conditional_t<kDType == DType::kBf16, cutlass::bfloat16_t, cutlass::half_t>;

}  // namespace dash
