// tanh on the special-function unit, through 2^x and 1 / x: absolute error below 4e-7, exactly +-1 for
// large arguments. tanh.approx would be one instruction, but is only good to 5e-4.
#pragma once

#include "common/exp2.cuh"

namespace dash {

// `x_scaled` is 2 log2(e) x, so that the caller folds the factor into its own scale.
__device__ __forceinline__ float tanh_of_scaled(float x_scaled) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.f + exp2_approx(x_scaled)));
  return fmaf(-2.f, reciprocal, 1.f);
}

inline constexpr float kTanhScale = 2.8853900817779268f;  // 2 log2(e)

}  // namespace dash
