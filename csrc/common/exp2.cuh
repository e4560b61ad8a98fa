// 2^x on the special-function unit: relative error below 2^-22, subnormal results flushed to 0,
// 2^-inf exactly 0.
#pragma once

namespace dash {

__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace dash
