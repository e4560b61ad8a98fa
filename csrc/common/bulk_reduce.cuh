// Bulk copies and bulk sums from shared to global memory: one thread issues, the copy engine runs.
// Sizes are in bytes, multiples of 16; both addresses are 16-byte aligned.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/tensor.hpp>

namespace dash::bulk {

// target[i] = source[i]
CUTE_DEVICE void store(float* target, float const* source_smem, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
               "r"(cute::cast_smem_ptr_to_uint(source_smem)), "r"(bytes)
               : "memory");
}

// target[i] += source[i], each sum in fp32
CUTE_DEVICE void reduce_add(float* target, float const* source_smem, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   target),
               "r"(cute::cast_smem_ptr_to_uint(source_smem)), "r"(bytes)
               : "memory");
}

CUTE_DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// The source buffers of all committed groups but the last kPending may be overwritten. Says nothing
// of global memory.
template <int kPending>
CUTE_DEVICE void wait_source_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// All committed groups have written global memory, visible to this thread.
CUTE_DEVICE void wait_complete() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Global -> shared, completing on an mbarrier's transaction count.
CUTE_DEVICE void load(void const* source, uint64_t* mbarrier, void* target_smem, uint32_t bytes) {
  cute::SM90_BULK_COPY_G2S::copy(source, mbarrier, target_smem, static_cast<int32_t>(bytes));
}

}  // namespace dash::bulk
