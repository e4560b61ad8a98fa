// worked_out_here(...): the values are worked out before what follows.
#pragma once

namespace dash {

// Tuning: for what a warp needs behind a wait. The optimiser moves arithmetic to where its result
// is used; here it would move it from the time in which the warp waits anyway to the time in which
// others wait for the warp.
template <class... T>
__device__ __forceinline__ void worked_out_here(T&... values) {
  static_assert(((sizeof(T) == sizeof(int)) && ...));
  auto const hold = [](auto& value) { asm volatile("" : "+r"(value)); };
  (hold(values), ...);
}

}  // namespace dash
