// A store to shared memory under a condition, without a branch.
#pragma once

#include <cute/arch/util.hpp>

namespace dash {

// Correctness: ptxas (13.0) serialises WGMMAs around a branch that reads accumulators (warning
// C7518, a build error in a hot kernel); a predicate is no branch.
CUTE_DEVICE void store_shared_if(bool condition, float4* target, float4 const& value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0;\n"
      "@p st.shared.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"r"(cute::cast_smem_ptr_to_uint(target)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(static_cast<int>(condition))
      : "memory");
}

}  // namespace dash
