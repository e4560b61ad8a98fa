// Uninitialised contiguous tensors, from torch's allocator on the current stream.
// Tuning: torch::stable::new_empty goes through the dispatcher by name, with boxed arguments, and
// then through it again; the C function is about four times as fast.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "api/tensor_check.hpp"

namespace dash::api {

// At most 4 dimensions. `dtype` is a number of aoti_torch_dtype_*.
inline Tensor new_empty(int device, std::span<int64_t const> sizes, int32_t dtype) {
  std::array<int64_t, 4> strides{};
  int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides.at(dim) = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
      aoti_torch_device_type_cuda(), device, &handle));
  return Tensor(handle);
}

// Of a tensor's device, shape and dtype.
inline Tensor new_empty_like(Tensor const& tensor) {
  int32_t dtype = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  auto const sizes = tensor.sizes();
  return new_empty(tensor.get_device_index(), {sizes.data(), sizes.size()}, dtype);
}

// Of that many bytes.
inline Tensor new_workspace(int device, int64_t bytes) {
  int64_t const sizes[] = {bytes};
  return new_empty(device, sizes, aoti_torch_dtype_uint8());
}

}  // namespace dash::api
