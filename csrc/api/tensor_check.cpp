// Implementation of tensor_check.hpp: device, rank, dtype, shape, window, schedule and GPU checks,
// in the order in which a user would want to hear of them. Reads metadata and device attributes.
#include "api/tensor_check.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "common/check.hpp"

namespace dash::api {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kAlignmentElements = 8;

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
    default:
      return std::string("dtype ") + torch::headeronly::toString(dtype);
  }
}

std::string device_text(Tensor const& tensor) {
  if (tensor.is_cuda()) {
    return "cuda:" + std::to_string(tensor.get_device_index());
  }
  return tensor.is_cpu() ? "cpu" : "another device";
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

// q, k and v: device, rank, dtype, head dim, then the sizes that must agree.
void check_qkv(NamedTensor const& q, NamedTensor const& k, NamedTensor const& v) {
  for (NamedTensor const* named : {&q, &k, &v}) {
    check_on_device_of(*named, q);
    check_rank(*named, 4, "(batch, seqlen, heads, head_dim)");
  }
  ScalarType const dtype = q.tensor.scalar_type();
  DASH_CHECK(dtype == ScalarType::BFloat16 || dtype == ScalarType::Half,
             "dash_attn: q must be torch.bfloat16 or torch.float16, got " + dtype_text(dtype) +
                 "; cast q, k and v to one of them");
  check_dtype(k, dtype, "q, k and v must have one dtype");
  check_dtype(v, dtype, "q, k and v must have one dtype");

  int64_t const head_dim = q.tensor.size(3);
  DASH_CHECK(head_dim == 64 || head_dim == 128,
             "dash_attn: q has head dim " + std::to_string(head_dim) +
                 "; the kernels support 64 and 128: pad q, k and v with zeros to the next of them "
                 "and pass softmax_scale for the unpadded size");
  check_size(k, 3, head_dim, "head dim of q");
  check_size(v, 3, head_dim, "head dim of q");
  check_size(k, 0, q.tensor.size(0), "batch size of q");
  check_size(v, 0, q.tensor.size(0), "batch size of q");
  check_size(v, 1, k.tensor.size(1), "sequence length of k");
  check_size(v, 2, k.tensor.size(2), "number of heads of k");

  int64_t const num_heads = q.tensor.size(2);
  int64_t const num_heads_k = k.tensor.size(2);
  DASH_CHECK(num_heads_k == 0 ? num_heads == 0 : num_heads % num_heads_k == 0,
             "dash_attn: the number of heads of k must divide that of q, got q with " +
                 std::to_string(num_heads) + " and k with " + std::to_string(num_heads_k) +
                 " heads");
}

// Every count that the kernels hold in 32 bits.
void check_int32(Tensor const& q, Tensor const& k) {
  for (NamedTensor const& named : {NamedTensor{"q", q}, NamedTensor{"k", k}}) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      DASH_CHECK(named.tensor.size(dim) < kMaxInt / 2,
                 std::string("dash_attn: ") + named.name + " has shape " +
                     shape_text(named.tensor) + "; each dimension must be below " +
                     std::to_string(kMaxInt / 2));
    }
  }
  // Correctness: tiles have 64 rows or more, so this bounds every tile count and ticket.
  constexpr int64_t kSmallestTile = 64;
  for (NamedTensor const& named : {NamedTensor{"q", q}, NamedTensor{"k", k}}) {
    int64_t const tiles_of_a_list = named.tensor.size(1) / kSmallestTile + 1;
    int64_t const lists = named.tensor.size(0) * named.tensor.size(2);
    DASH_CHECK(lists <= kMaxInt / tiles_of_a_list,
               std::string("dash_attn: ") + named.name + " has shape " + shape_text(named.tensor) +
                   "; batch * heads * seqlen / 64 must be below 2^31: split the batch");
  }
}

MaskKind check_window(Options const& options) {
  DASH_CHECK(options.softcap == 0.0, "dash_attn: softcap=" + std::to_string(options.softcap) +
                                         " is not yet supported; pass softcap=0.0");
  int64_t const left = options.window_size_left;
  int64_t const right = options.window_size_right;
  DASH_CHECK(left == -1 && (right == -1 || right == 0),
             "dash_attn: window_size=(" + std::to_string(left) + ", " + std::to_string(right) +
                 ") is not yet supported; supported are (-1, -1), no limit, and (-1, 0), which is "
                 "causal=True");
  return right == 0 ? MaskKind::kCausal : MaskKind::kFull;
}

char const* mask_name(MaskKind mask) { return mask == MaskKind::kCausal ? "causal" : "full"; }

// `num_ctas`: how many CTAs can be resident at once.
schedule::ScheduleKind check_schedule(std::string_view name, schedule::GridShape const& shape,
                                      int num_ctas) {
  if (name == "auto") {
    return schedule::choose_schedule(shape, num_ctas).kind;
  }
  std::string legal = "\"auto\"";
  for (schedule::NamedPolicy const& policy : schedule::kNamedPolicies) {
    schedule::TileGrid const grid = schedule::make_grid(shape, policy.kind);
    int const gang = schedule::BuiltIn::gang_size(grid);
    bool const is_legal = schedule::BuiltIn::is_legal(grid);
    if (is_legal && gang <= num_ctas) {
      if (policy.name == name) {
        return policy.kind;
      }
      legal += ", \"" + std::string(policy.name) + "\"";
    } else if (policy.name == name) {
      DASH_CHECK(is_legal, "dash_attn: schedule=\"" + std::string(name) + "\" is legal for " +
                               std::string(policy.legal_for) + " only; here the mask is " +
                               mask_name(shape.key.mask) + " and there are " +
                               std::to_string(grid.num_m_blocks()) + " Q tiles and " +
                               std::to_string(grid.num_n_blocks()) +
                               " KV tiles: use \"auto\" or \"band\", which is always legal");
      DASH_CHECK(gang <= num_ctas,
                 "dash_attn: schedule=\"" + std::string(name) + "\" needs " +
                     std::to_string(gang) + " SMs at once, but " + std::to_string(num_ctas) +
                     " are free (SMs of the GPU minus sm_margin): use \"auto\" or \"band\", "
                     "which needs one");
    }
  }
  throw std::runtime_error("dash_attn: schedule=\"" + std::string(name) +
                           "\" is unknown; legal for a " + mask_name(shape.key.mask) +
                           " mask of this shape are " + legal +
                           " (\"unordered\" is what deterministic=False asks for)");
}

struct DeviceFacts {
  int major;
  int minor;
  int num_sms;
};

int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  cudaError_t const error = cudaDeviceGetAttribute(&value, attribute, device);
  DASH_CHECK(error == cudaSuccess, std::string("dash_attn: cudaDeviceGetAttribute failed: ") +
                                       cudaGetErrorString(error));
  return value;
}

DeviceFacts device_facts(int device) {
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  std::lock_guard<std::mutex> const lock(mutex);
  auto const found = known.find(device);
  if (found != known.end()) {
    return found->second;
  }
  DeviceFacts const facts{
      .major = device_attribute(cudaDevAttrComputeCapabilityMajor, device),
      .minor = device_attribute(cudaDevAttrComputeCapabilityMinor, device),
      .num_sms = device_attribute(cudaDevAttrMultiProcessorCount, device)};
  known.emplace(device, facts);
  return facts;
}

// Returns the number of CTAs to launch.
int check_device(int device, int64_t sm_margin) {
  DeviceFacts const facts = device_facts(device);
  DASH_CHECK(facts.major == 9 && facts.minor == 0,
             "dash_attn: q is on cuda:" + std::to_string(device) + ", compute capability " +
                 std::to_string(facts.major) + "." + std::to_string(facts.minor) +
                 "; the kernels need 9.0 (H100, H200, H20, GH200): move the tensors to such a "
                 "GPU, or to the CPU for the slow reference path");
  DASH_CHECK(0 <= sm_margin && sm_margin < facts.num_sms,
             "dash_attn: sm_margin=" + std::to_string(sm_margin) +
                 " must be at least 0 and below " + std::to_string(facts.num_sms) +
                 ", the number of SMs of cuda:" + std::to_string(device));
  return facts.num_sms - static_cast<int>(sm_margin);
}

}  // namespace

Problem check_problem(Tensor const& q, Tensor const& k, Tensor const& v, Options const& options) {
  check_qkv({"q", q}, {"k", k}, {"v", v});
  check_int32(q, k);
  MaskKind const mask = check_window(options);
  DASH_CHECK(std::isfinite(options.softmax_scale) && options.softmax_scale > 0.0,
             "dash_attn: softmax_scale=" + std::to_string(options.softmax_scale) +
                 " must be positive and finite; None means 1 / sqrt(head_dim)");
  int const device = q.get_device_index();
  int const num_ctas = check_device(device, options.sm_margin);
  DType const dtype = q.scalar_type() == ScalarType::BFloat16 ? DType::kBf16 : DType::kFp16;
  Problem problem{.key = {.dtype = dtype, .head_dim = static_cast<int>(q.size(3)), .mask = mask},
                  .device = device,
                  .batch = static_cast<int>(q.size(0)),
                  .seqlen_q = static_cast<int>(q.size(1)),
                  .seqlen_k = static_cast<int>(k.size(1)),
                  .num_heads = static_cast<int>(q.size(2)),
                  .num_heads_k = static_cast<int>(k.size(2)),
                  .softmax_scale = static_cast<float>(options.softmax_scale),
                  .schedule = schedule::ScheduleKind::kBand,
                  .section = 0,
                  .num_ctas = num_ctas};
  auto const [name, section] = schedule::split_schedule(options.schedule);
  DASH_CHECK(section >= 0, "dash_attn: schedule=\"" + std::string(options.schedule) +
                               "\": a number of at least 1 must follow the @");
  problem.schedule = check_schedule(name, problem.shape(), num_ctas);
  problem.section = section;
  return problem;
}

void check_like_q(NamedTensor const& named, Tensor const& q) {
  check_on_device_of(named, {"q", q});
  check_rank(named, 4, "(batch, seqlen_q, heads, head_dim)");
  check_dtype(named, q.scalar_type(), "it must have q's dtype");
  constexpr char const* kMeanings[] = {"batch size of q", "sequence length of q",
                                       "number of heads of q", "head dim of q"};
  for (int64_t dim = 0; dim < 4; ++dim) {
    check_size(named, dim, q.size(dim), kMeanings[dim]);
  }
}

void check_row_statistic(NamedTensor const& named, Problem const& problem) {
  DASH_CHECK(named.tensor.is_cuda() && named.tensor.get_device_index() == problem.device,
             std::string("dash_attn: ") + named.name + " is on " + device_text(named.tensor) +
                 " but q is on cuda:" + std::to_string(problem.device) +
                 "; move all tensors to one device");
  check_rank(named, 3, "(batch, heads, seqlen_q)");
  check_dtype(named, ScalarType::Float, "row statistics are float32, as the forward returns lse");
  check_size(named, 0, problem.batch, "batch size of q");
  check_size(named, 1, problem.num_heads, "number of heads of q");
  check_size(named, 2, problem.seqlen_q, "sequence length of q");
}

Tensor addressable(Tensor const& tensor) {
  bool is_addressable =
      tensor.stride(3) == 1 &&
      reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignmentBytes == 0;
  for (int64_t dim = 0; dim < 3; ++dim) {
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

Strides strides_of(Tensor const& tensor) {
  int64_t const contiguous_head = tensor.size(3);
  int64_t const contiguous_row = contiguous_head * tensor.size(2);
  int64_t const contiguous_batch = contiguous_row * tensor.size(1);
  return {.batch = tensor.size(0) == 1 ? contiguous_batch : tensor.stride(0),
          .row = tensor.size(1) == 1 ? contiguous_row : tensor.stride(1),
          .head = tensor.size(2) == 1 ? contiguous_head : tensor.stride(2)};
}

}  // namespace dash::api
