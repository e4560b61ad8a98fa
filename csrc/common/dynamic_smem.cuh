// A kernel's leave to use more dynamic shared memory than every kernel may: an attribute that the
// driver keeps for each kernel and device.
#pragma once

#include <cuda_runtime.h>

#include "common/check.hpp"
#include "common/once_per_device.hpp"

namespace dash {

// On the current device. `set` belongs to the kernel: one for each.
template <class Kernel>
void allow_dynamic_smem(Kernel* kernel, int bytes, OncePerDevice& set) {
  int device = 0;
  DASH_CUDA_CHECK(cudaGetDevice(&device));
  set.run(device, [&] {
    DASH_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  });
}

}  // namespace dash
