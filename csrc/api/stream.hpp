// The stream that torch would launch on. Current device must be the tensor's (DeviceGuard).
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "common/check.hpp"

namespace dash::api {

inline cudaStream_t current_stream(int device) {
  void* stream = nullptr;
  DASH_CHECK(aoti_torch_get_current_cuda_stream(device, &stream) == AOTI_TORCH_SUCCESS,
             "dash_attn: torch has no current stream for cuda:" + std::to_string(device));
  return static_cast<cudaStream_t>(stream);
}

}  // namespace dash::api
