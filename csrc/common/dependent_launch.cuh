// Programmatic dependent launch: the CTAs of a kernel may take their place while the kernel before
// it in the stream still runs, so that launch latency and prologues are hidden.
//   allow_next_kernel        every CTA of the first kernel; the next one's CTAs may then start
//                            where there is room. Says nothing about memory.
//   wait_for_previous_kernel every thread of the next kernel, before its first access to global
//                            memory. Waits until the first kernel has ended and its writes are
//                            visible. Every CTA calls it: a kernel all of whose CTAs left without
//                            waiting would end, and the one after it start, before the first ended.
#pragma once

#include <cuda_runtime.h>

#include "common/check.hpp"

namespace dash {

__device__ __forceinline__ void allow_next_kernel() {
  cudaTriggerProgrammaticLaunchCompletion();
}

__device__ __forceinline__ void wait_for_previous_kernel() {
  cudaGridDependencySynchronize();
}

enum class LaunchKind {
  kDependent,    // may start early; the kernel calls wait_for_previous_kernel
  kCooperative,  // starts all its CTAs or none, and after the kernel before it has ended
};

struct LaunchShape {
  int num_ctas;
  int num_threads;
  int dynamic_shared_bytes;
};

template <class Kernel, class Arguments>
void launch_kernel(LaunchKind kind, Kernel* kernel, LaunchShape shape, Arguments const& arguments,
                   cudaStream_t stream) {
  cudaLaunchAttribute attribute;
  if (kind == LaunchKind::kCooperative) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  } else {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.num_ctas);
  config.blockDim = dim3(shape.num_threads);
  config.dynamicSmemBytes = shape.dynamic_shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  DASH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments));
}

}  // namespace dash
