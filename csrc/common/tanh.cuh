// tanh on the special-function unit, through 2^x and 1 / x: relative error below 3e-6, exactly +-1
// for large arguments. tanh.approx would be one instruction, but is only good to 5e-4.
#pragma once

#include "common/exp2.cuh"

namespace dash {

inline constexpr float kTanhScale = 2.8853900817779268f;  // 2 log2(e)

// `x_scaled` is 2 log2(e) x, so that the caller folds the factor into its own scale.
__device__ __forceinline__ float tanh_of_scaled(float x_scaled) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.f + exp2_approx(x_scaled)));
  float const large = fmaf(-2.f, reciprocal, 1.f);
  // Correctness: near 0 that difference has lost its digits, and a large softcap multiplies them.
  // x - x^3 / 3 + 2 x^5 / 15.
  float const x = x_scaled * (1.f / kTanhScale);
  float const square = x * x;
  float const small = x * fmaf(square, fmaf(square, 2.f / 15.f, -1.f / 3.f), 1.f);
  return square < 0.01f ? small : large;
}

}  // namespace dash
