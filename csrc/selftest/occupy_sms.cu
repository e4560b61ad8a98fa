// CTAs that take an SM's whole shared memory, so that no other CTA that needs some fits beside
// them, and spin until a flag or a time limit ends them.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/check.hpp"
#include "selftest/occupy_sms.hpp"

namespace dash::selftest {
namespace {

__device__ uint64_t nanoseconds_now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void occupy_kernel(OccupySms occupy) {
  uint64_t const end = nanoseconds_now() + uint64_t{1000} * occupy.microseconds;
  if (threadIdx.x == 0) {
    atomicAdd(occupy.flags + 1, 1);
  }
  int volatile const* const stop = occupy.flags;
  while (*stop == 0 && nanoseconds_now() < end) {
    __nanosleep(1000);
  }
}

}  // namespace

void occupy_sms(OccupySms const& occupy, cudaStream_t stream) {
  int device = 0, shared_bytes = 0;
  DASH_CUDA_CHECK(cudaGetDevice(&device));
  DASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  DASH_CUDA_CHECK(cudaFuncSetAttribute(
      occupy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  occupy_kernel<<<occupy.num_ctas, 32, shared_bytes, stream>>>(occupy);
  DASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dash::selftest
