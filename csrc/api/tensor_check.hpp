// Checks of one tensor argument, and what a kernel needs of a tensor: an address and strides.
// A failed check names the argument, what it must be, what it is and the way out.
// Reads tensor metadata only. Host only; one of the few files that include torch.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>

#include "fwd/params.hpp"

namespace dash::api {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A tensor argument with the name that the user knows it by.
struct NamedTensor {
  char const* name;
  Tensor const& tensor;
};

std::string shape_text(Tensor const& tensor);
std::string dtype_text(ScalarType dtype);

void check_on_device_of(NamedTensor const& named, NamedTensor const& reference);
void check_rank(NamedTensor const& named, int64_t rank, char const* layout);
void check_size(NamedTensor const& named, int64_t dim, int64_t expected, char const* meaning);
void check_dtype(NamedTensor const& named, ScalarType expected, char const* way_out);

// The tensor itself if a kernel can address it (last dim contiguous, base 16-byte aligned, other
// strides positive multiples of 8 elements), else a contiguous copy.
Tensor addressable(Tensor const& tensor);

// The tensor itself if it is contiguous, else a copy that is.
Tensor as_contiguous(Tensor const& tensor);

// Strides of a (batch, seqlen, heads, head_dim) tensor; of a packed (total, heads, head_dim) one
// with batch 0. A dim of size 1 gets the stride that it has in a contiguous tensor: torch leaves
// any number there, and a TMA descriptor must not hold it.
Strides strides_of(Tensor const& tensor);

}  // namespace dash::api
