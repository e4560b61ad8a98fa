// 2^x and log2(x) on the special-function unit, subnormal arguments and results flushed to 0.
#pragma once

namespace dash {

inline constexpr float kLog2e = 1.4426950408889634f;

// Relative error below 2^-22; 2^-inf is exactly 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Absolute error below 2^-22 near 1, else relative; log2(0) is -inf.
__device__ __forceinline__ float log2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace dash
