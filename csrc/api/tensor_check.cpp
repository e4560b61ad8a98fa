// Implementation of tensor_check.hpp.
#include "api/tensor_check.hpp"

#include "common/check.hpp"

namespace dash::api {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kAlignmentElements = 8;

std::string device_text(Tensor const& tensor) {
  if (tensor.is_cuda()) {
    return "cuda:" + std::to_string(tensor.get_device_index());
  }
  return tensor.is_cpu() ? "cpu" : "another device";
}

}  // namespace

std::string shape_text(Tensor const& tensor) {
  std::string text = "(";
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(tensor.size(dim));
  }
  return text + ")";
}

std::string dtype_text(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16:
      return "torch.bfloat16";
    case ScalarType::Half:
      return "torch.float16";
    case ScalarType::Float:
      return "torch.float32";
    case ScalarType::Double:
      return "torch.float64";
    case ScalarType::Int:
      return "torch.int32";
    case ScalarType::Long:
      return "torch.int64";
    default:
      return std::string("dtype ") + torch::headeronly::toString(dtype);
  }
}

void check_on_device_of(NamedTensor const& named, NamedTensor const& reference) {
  DASH_CHECK(named.tensor.is_cuda(),
             std::string("dash_attn: ") + named.name + " is on " + device_text(named.tensor) +
                 " but another argument is on a CUDA device; move all tensors to one device");
  DASH_CHECK(named.tensor.get_device_index() == reference.tensor.get_device_index(),
             std::string("dash_attn: ") + named.name + " is on " + device_text(named.tensor) +
                 " but " + reference.name + " is on " + device_text(reference.tensor) +
                 "; move all tensors to one device");
}

void check_rank(NamedTensor const& named, int64_t rank, char const* layout) {
  DASH_CHECK(named.tensor.dim() == rank,
             std::string("dash_attn: ") + named.name + " must have " + std::to_string(rank) +
                 " dimensions " + layout + ", got shape " + shape_text(named.tensor));
}

void check_size(NamedTensor const& named, int64_t dim, int64_t expected, char const* meaning) {
  DASH_CHECK(named.tensor.size(dim) == expected,
             std::string("dash_attn: ") + named.name + " must have size " +
                 std::to_string(expected) + " in dimension " + std::to_string(dim) + " (" +
                 meaning + "), got shape " + shape_text(named.tensor));
}

void check_dtype(NamedTensor const& named, ScalarType expected, char const* way_out) {
  ScalarType const dtype = named.tensor.scalar_type();
  DASH_CHECK(dtype == expected, std::string("dash_attn: ") + named.name + " must be " +
                                    dtype_text(expected) + ", got " + dtype_text(dtype) + "; " +
                                    way_out);
}

Tensor addressable(Tensor const& tensor) {
  int64_t const last = tensor.dim() - 1;
  bool is_addressable =
      tensor.stride(last) == 1 &&
      reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignmentBytes == 0;
  for (int64_t dim = 0; dim < last; ++dim) {
    bool const is_valid_stride =
        tensor.stride(dim) > 0 && tensor.stride(dim) % kAlignmentElements == 0;
    is_addressable = is_addressable && (tensor.size(dim) <= 1 || is_valid_stride);
  }
  if (is_addressable) {
    return tensor;
  }
  // A contiguous tensor at a misaligned address is the case that contiguous() would not copy.
  return tensor.is_contiguous() ? torch::stable::clone(tensor) : torch::stable::contiguous(tensor);
}

Tensor as_contiguous(Tensor const& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

Strides strides_of(Tensor const& tensor) {
  int64_t const head = tensor.dim() - 2;
  int64_t const row = tensor.dim() - 3;
  int64_t const contiguous_head = tensor.size(head + 1);
  int64_t const contiguous_row = contiguous_head * tensor.size(head);
  Strides strides{.batch = 0,
                  .row = tensor.size(row) == 1 ? contiguous_row : tensor.stride(row),
                  .head = tensor.size(head) == 1 ? contiguous_head : tensor.stride(head)};
  if (tensor.dim() == 4) {
    int64_t const contiguous_batch = contiguous_row * tensor.size(row);
    strides.batch = tensor.size(0) == 1 ? contiguous_batch : tensor.stride(0);
  }
  return strides;
}

}  // namespace dash::api
