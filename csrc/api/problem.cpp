// Implementation of problem.hpp: device, rank, dtype, shape, window, schedule and GPU checks, in
// the order in which a user would want to hear of them.
#include "api/problem.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "common/check.hpp"

namespace dash::api {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
// Correctness: tickets run up to their number plus that of the CTAs, in 32 bits.
constexpr int64_t kMaxTiles = int64_t{1} << 30;
// Correctness: no tile of either pass has fewer rows, so this bounds every tile count and ticket.
constexpr int64_t kSmallestTile = 64;

char const* mask_name(MaskKind mask) {
  return mask == MaskKind::kFull ? "full" : mask == MaskKind::kCausal ? "causal" : "window";
}

void check_head_dim(NamedTensor const& named) {
  int64_t const head_dim = named.tensor.size(named.tensor.dim() - 1);
  DASH_CHECK(8 <= head_dim && head_dim <= kMaxHeadDim && head_dim % 8 == 0,
             std::string("dash_attn: ") + named.name + " has head dim " +
                 std::to_string(head_dim) + "; multiples of 8 up to " +
                 std::to_string(kMaxHeadDim) +
                 " are supported: pad with zeros to the next of them, and pass softmax_scale for "
                 "the unpadded size");
}

// q, k and v: device, rank, dtype, head dims, then the sizes that must agree. Rows are dimension 1
// of (batch, seqlen) tensors and dimension 0 of packed ones.
void check_qkv(NamedTensor const& q, NamedTensor const& k, NamedTensor const& v, bool is_packed) {
  int64_t const row = is_packed ? 0 : 1;
  for (NamedTensor const* named : {&q, &k, &v}) {
    check_on_device_of(*named, q);
    check_rank(*named, row + 3,
               is_packed ? "(total, heads, head_dim), because cu_seqlens_q is given"
                         : "(batch, seqlen, heads, head_dim)");
  }
  ScalarType const dtype = q.tensor.scalar_type();
  DASH_CHECK(dtype == ScalarType::BFloat16 || dtype == ScalarType::Half,
             "dash_attn: q must be torch.bfloat16 or torch.float16, got " + dtype_text(dtype) +
                 "; cast q, k and v to one of them");
  check_dtype(k, dtype, "q, k and v must have one dtype");
  check_dtype(v, dtype, "q, k and v must have one dtype");
  check_head_dim(q);
  check_head_dim(v);
  check_size(k, row + 2, q.tensor.size(row + 2), "head dim of q");
  if (!is_packed) {
    check_size(k, 0, q.tensor.size(0), "batch size of q");
    check_size(v, 0, q.tensor.size(0), "batch size of q");
  }
  check_size(v, row, k.tensor.size(row), is_packed ? "rows of k" : "sequence length of k");
  check_size(v, row + 1, k.tensor.size(row + 1), "number of heads of k");

  int64_t const num_heads = q.tensor.size(row + 1);
  int64_t const num_heads_k = k.tensor.size(row + 1);
  DASH_CHECK(num_heads > 0 && num_heads_k > 0 && num_heads % num_heads_k == 0,
             "dash_attn: the number of heads of k must divide that of q, and both be at least 1; "
             "got q with " + std::to_string(num_heads) + " and k with " +
                 std::to_string(num_heads_k) + " heads");
}

void check_index(NamedTensor const& named, NamedTensor const& q, int64_t size,
                 char const* meaning) {
  check_on_device_of(named, q);
  check_rank(named, 1, meaning);
  check_dtype(named, ScalarType::Int, "cast it to torch.int32");
  check_size(named, 0, size, meaning);
  DASH_CHECK(named.tensor.is_contiguous(),
             std::string("dash_attn: ") + named.name + " must be contiguous");
}

// Returns the number of sequences. What the tensors hold stays on the device.
int64_t check_packing(NamedTensor const& q, Packing const& packing) {
  DASH_CHECK(packing.cu_seqlens_k.has_value(),
             "dash_attn: cu_seqlens_q is given without cu_seqlens_k; a packed call needs both");
  NamedTensor const cu_q{"cu_seqlens_q", *packing.cu_seqlens_q};
  check_rank(cu_q, 1, "(number of sequences + 1)");
  int64_t const entries = cu_q.tensor.size(0);
  DASH_CHECK(entries >= 1, "dash_attn: cu_seqlens_q is empty; it starts with a 0");
  check_index(cu_q, q, entries, "number of sequences + 1");
  check_index({"cu_seqlens_k", *packing.cu_seqlens_k}, q, entries, "size of cu_seqlens_q");
  if (packing.seqused_q.has_value()) {
    check_index({"seqused_q", *packing.seqused_q}, q, entries - 1, "number of sequences");
  }
  if (packing.seqused_k.has_value()) {
    check_index({"seqused_k", *packing.seqused_k}, q, entries - 1, "number of sequences");
  }
  for (int64_t const length : {packing.max_seqlen_q, packing.max_seqlen_k}) {
    DASH_CHECK(0 <= length && length < kMaxInt / 2,
               "dash_attn: max_seqlen_q=" + std::to_string(packing.max_seqlen_q) +
                   ", max_seqlen_k=" + std::to_string(packing.max_seqlen_k) +
                   "; both must be at least 0 and below " + std::to_string(kMaxInt / 2));
  }
  return entries - 1;
}

void check_no_packing(Packing const& packing) {
  DASH_CHECK(!packing.cu_seqlens_k.has_value() && !packing.seqused_q.has_value() &&
                 !packing.seqused_k.has_value(),
             "dash_attn: cu_seqlens_k, seqused_q or seqused_k is given without cu_seqlens_q; a "
             "packed call needs both cu_seqlens");
}

// Every count that the kernels hold in 32 bits. `named` is q or k; sequences: of a packed problem.
void check_int32(NamedTensor const& named, bool is_packed, int64_t sequences) {
  Tensor const& tensor = named.tensor;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    DASH_CHECK(tensor.size(dim) < kMaxInt / 2,
               std::string("dash_attn: ") + named.name + " has shape " + shape_text(tensor) +
                   "; each dimension must be below " + std::to_string(kMaxInt / 2));
  }
  DASH_CHECK(sequences < kMaxInt / 4, "dash_attn: cu_seqlens_q has " + std::to_string(sequences) +
                                          " sequences; there must be below " +
                                          std::to_string(kMaxInt / 4));
  int64_t const tiles = is_packed
                            ? tensor.size(0) / kSmallestTile + sequences
                            : (tensor.size(1) / kSmallestTile + 1) * std::max<int64_t>(
                                                                         tensor.size(0), 1);
  int64_t const heads = tensor.size(tensor.dim() - 2);
  DASH_CHECK(tiles <= (kMaxTiles - 1) / heads,
             std::string("dash_attn: ") + named.name + " has shape " + shape_text(tensor) +
                 (is_packed ? " and " + std::to_string(sequences) +
                                  " sequences; heads * (rows / 64 + sequences)"
                            : "; batch * heads * (seqlen / 64 + 1)") +
                 " must be below 2^30: split the batch");
}

// Sets mask and window. A bound that no key of the longest sequences exceeds is no limit.
void set_window(Problem& problem, Options const& options) {
  int64_t const left = options.window_size_left;
  int64_t const right = options.window_size_right;
  DASH_CHECK(left >= -1 && right >= -1,
             "dash_attn: window_size=(" + std::to_string(left) + ", " + std::to_string(right) +
                 "); a bound is at least 0, or -1 for no limit");
  bool const is_open_left = left < 0 || left >= problem.seqlen_k - 1;
  bool const is_open_right = right < 0 || (right > 0 && right >= problem.seqlen_q - 1);
  problem.window_left = is_open_left ? -1 : static_cast<int>(left);
  problem.window_right = is_open_right ? -1 : static_cast<int>(right);
  problem.mask = schedule::mask_of(problem.window_left, problem.window_right);
}

// What a named schedule is legal for, against what is asked for; "" if it is legal.
std::string why_not_legal(schedule::NamedPolicy const& policy, Problem const& problem) {
  schedule::TileGrid const grid = schedule::make_grid(problem.shape(), policy.kind);
  if (!schedule::is_legal(problem.shape(), policy.kind)) {
    std::string const here =
        problem.is_packed()
            ? "and packed sequences may have any lengths"
            : "and there are " + std::to_string(grid.num_m_blocks()) + " Q tiles and " +
                  std::to_string(grid.num_n_blocks()) + " KV tiles";
    return "is legal for " + std::string(policy.legal_for) + " only; here the mask is " +
           mask_name(problem.mask) + " " + here +
           ": use \"auto\" or \"band\", which is always legal";
  }
  int const gang = problem.gang_size(policy.kind);
  if (gang > problem.num_ctas) {
    return "needs " + std::to_string(gang) + " SMs at once, but " +
           std::to_string(problem.num_ctas) +
           " are free (SMs of the GPU minus sm_margin): use \"auto\" or \"band\", which needs one";
  }
  return "";
}

std::string legal_schedules(Problem const& problem) {
  std::string legal = "\"auto\"";
  for (schedule::NamedPolicy const& policy : schedule::kNamedPolicies) {
    bool const is_legal = why_not_legal(policy, problem).empty();
    legal += is_legal ? ", \"" + std::string(policy.name) + "\"" : "";
  }
  return legal;
}

// The number of parts that each KV head's query heads are cut into.
int check_group_parts(schedule::ScheduleText const& text, Problem const& problem) {
  int const group = problem.num_heads / problem.num_heads_k;
  int const parts = schedule::group_parts_of(problem.shape(), text);
  DASH_CHECK(parts <= group && group % parts == 0,
             "dash_attn: schedule=\"" + std::string(text.name) + "/" + std::to_string(parts) +
                 "\" cuts the " + std::to_string(group) +
                 " query heads of each KV head into " + std::to_string(parts) +
                 " parts; the number of parts must divide them");
  return parts;
}

// `problem` has its group_parts.
schedule::ScheduleKind check_schedule(std::string_view name, Problem const& problem) {
  if (name == "auto") {
    return schedule::choose_kind(problem.shape(), problem.num_ctas);
  }
  std::optional<schedule::ScheduleKind> const kind = schedule::find_schedule(name);
  DASH_CHECK(kind.has_value(), "dash_attn: schedule=\"" + std::string(name) +
                                   "\" is unknown; legal for a " + mask_name(problem.mask) +
                                   " mask of this shape are " + legal_schedules(problem) +
                                   " (\"unordered\" is what deterministic=False asks for)");
  std::string const reason = why_not_legal(schedule::named(*kind), problem);
  DASH_CHECK(reason.empty(), "dash_attn: schedule=\"" + std::string(name) + "\" " + reason);
  return *kind;
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

std::string number_text(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

// Factors are float32 in the kernels: what rounds to 0 or overflows there is no factor.
void check_scale(Options const& options) {
  bool const is_scale = options.softmax_scale > 1e-30 && options.softmax_scale < 1e30;
  DASH_CHECK(is_scale, "dash_attn: softmax_scale=" + number_text(options.softmax_scale) +
                           " must be between 1e-30 and 1e30; None means 1 / sqrt(head_dim)");
  // Correctness: the backward finds tanh(score / softcap) again from the probability and lse, whose
  // rounding a smaller softcap would multiply too much.
  bool const is_cap = options.softcap >= 1e-2 && options.softcap <= 1e30;
  DASH_CHECK(options.softcap == 0.0 || is_cap,
             "dash_attn: softcap=" + number_text(options.softcap) +
                 " must be 0.0, which is none, or between 1e-2 and 1e30");
}

// A max_seqlen, if it is wrong at least one that grids can be made of.
int longest(int64_t max_seqlen, Tensor const& packed) {
  return static_cast<int>(std::max<int64_t>(std::min(max_seqlen, packed.size(0)), 1));
}

PackedSequences packed_sequences(Tensor const& q, Tensor const& k, Packing const& packing) {
  if (!packing.is_packed()) {
    return {};
  }
  auto const pointer = [](std::optional<Tensor> const& tensor) {
    return tensor.has_value() ? static_cast<int const*>(tensor->const_data_ptr()) : nullptr;
  };
  return {.cu_seqlens_q = pointer(packing.cu_seqlens_q),
          .cu_seqlens_k = pointer(packing.cu_seqlens_k),
          .seqused_q = pointer(packing.seqused_q),
          .seqused_k = pointer(packing.seqused_k),
          .total_q = static_cast<int>(q.size(0)),
          .total_k = static_cast<int>(k.size(0))};
}

}  // namespace

schedule::GridShape Problem::shape() const {
  schedule::GridShape shape{};
  shape.key = key;
  shape.mask = mask;
  shape.window_left = window_left;
  shape.window_right = window_right;
  shape.is_packed = is_packed();
  shape.batch = batch;
  shape.seqlen_q = seqlen_q;
  shape.seqlen_k = seqlen_k;
  shape.num_heads = num_heads;
  shape.num_heads_k = num_heads_k;
  shape.group_parts = group_parts;
  return shape;
}

schedule::TileGrid Problem::grid() const {
  schedule::TileGrid grid = schedule::make_grid(shape(), schedule, section);
  if (is_packed() && mask == MaskKind::kWindow) {
    // As wide as all rows: a max_seqlen that is too small must not become a limit.
    grid.window_left = window_left < 0 ? packed.total_k : window_left;
    grid.window_right = window_right < 0 ? packed.total_q : window_right;
  }
  return grid;
}

int Problem::gang_size(schedule::ScheduleKind kind) const {
  return is_packed() ? 1 : schedule::BuiltIn::gang_size(schedule::make_grid(shape(), kind));
}

Problem check_problem(Tensor const& q, Tensor const& k, Tensor const& v, Packing const& packing,
                      Options const& options) {
  bool const is_packed = packing.is_packed();
  check_qkv({"q", q}, {"k", k}, {"v", v}, is_packed);
  int64_t sequences = 0;
  if (is_packed) {
    sequences = check_packing({"q", q}, packing);
  } else {
    check_no_packing(packing);
  }
  check_int32({"q", q}, is_packed, sequences);
  check_int32({"k", k}, is_packed, sequences);
  check_scale(options);
  int64_t const row = is_packed ? 0 : 1;
  Problem problem{};
  problem.group_parts = 1;
  problem.device = q.get_device_index();
  problem.num_ctas = check_device(problem.device, options.sm_margin);
  problem.packed = packed_sequences(q, k, packing);
  problem.batch = static_cast<int>(is_packed ? sequences : q.size(0));
  problem.seqlen_q =
      is_packed ? longest(packing.max_seqlen_q, q) : static_cast<int>(q.size(1));
  problem.seqlen_k =
      is_packed ? longest(packing.max_seqlen_k, k) : static_cast<int>(k.size(1));
  problem.num_heads = static_cast<int>(q.size(row + 1));
  problem.num_heads_k = static_cast<int>(k.size(row + 1));
  problem.head_dim = static_cast<int>(q.size(row + 2));
  problem.head_dim_v = static_cast<int>(v.size(row + 2));
  problem.softmax_scale = static_cast<float>(options.softmax_scale);
  problem.softcap = static_cast<float>(options.softcap);
  set_window(problem, options);
  problem.key.dtype = q.scalar_type() == ScalarType::BFloat16 ? DType::kBf16 : DType::kFp16;
  problem.key.head_dim = kernel_head_dim(problem.head_dim, problem.head_dim_v);
  problem.key.variant =
      variant_of(problem.key.head_dim, problem.mask, is_packed, options.softcap != 0.0);
  schedule::ScheduleText const text = schedule::split_schedule(options.schedule);
  DASH_CHECK(text.is_well_formed(),
             "dash_attn: schedule=\"" + std::string(options.schedule) +
                 "\": a number of at least 1 must follow the / (parts of a query group) and the @ "
                 "(lists of a section)");
  bool const is_bare = text.name == options.schedule;
  DASH_CHECK(text.name != "auto" || is_bare,
             "dash_attn: schedule=\"" + std::string(options.schedule) +
                 "\": \"auto\" chooses parts and sections itself; name a schedule to choose them");
  if (text.name == "auto" || schedule::find_schedule(text.name).has_value()) {
    problem.group_parts = check_group_parts(text, problem);
  }
  problem.schedule = check_schedule(text.name, problem);
  problem.section = text.section;
  return problem;
}

void check_like_out(NamedTensor const& named, Tensor const& q, Problem const& problem) {
  check_on_device_of(named, {"q", q});
  check_rank(named, q.dim(), problem.is_packed() ? "(total_q, heads, head_dim_v)"
                                                 : "(batch, seqlen_q, heads, head_dim_v)");
  check_dtype(named, q.scalar_type(), "it must have q's dtype");
  for (int64_t dim = 0; dim + 1 < q.dim(); ++dim) {
    check_size(named, dim, q.size(dim), "that of q");
  }
  check_size(named, q.dim() - 1, problem.head_dim_v, "head dim of v");
}

void check_row_statistic(NamedTensor const& named, Tensor const& q, Problem const& problem) {
  check_on_device_of(named, {"q", q});
  check_dtype(named, ScalarType::Float, "row statistics are float32, as the forward returns lse");
  if (problem.is_packed()) {
    check_rank(named, 2, "(heads, total_q)");
    check_size(named, 0, problem.num_heads, "number of heads of q");
    check_size(named, 1, problem.packed.total_q, "rows of q");
    return;
  }
  check_rank(named, 3, "(batch, heads, seqlen_q)");
  check_size(named, 0, problem.batch, "batch size of q");
  check_size(named, 1, problem.num_heads, "number of heads of q");
  check_size(named, 2, problem.seqlen_q, "sequence length of q");
}

}  // namespace dash::api
