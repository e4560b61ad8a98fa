// Operator dash_attn::fwd in five paragraphs: check, choose key, allocate, fill params, launch.
// Runs on the host; reads q, k, v; writes out and lse on torch's current stream, without a sync.
// Invariant: no check fails after the first allocation.
#include <limits>

#include "api/dispatch.hpp"
#include "api/new_empty.hpp"
#include "api/operators.hpp"
#include "api/problem.hpp"
#include "api/stream.hpp"
#include "config/fwd_config.hpp"
#include "fwd/workspace.hpp"

namespace dash::api {
namespace {

struct ForwardTensors {
  Tensor q, k, v;    // addressable
  Tensor out;        // like q, with the head dim of v; contiguous
  Tensor lse;        // (batch, num_heads, seqlen_q) or (num_heads, total_q), float32, contiguous
  Tensor workspace;  // bytes
};

Tensor new_out(Problem const& problem) {
  int64_t const rows[] = {problem.packed.total_q, problem.num_heads, problem.head_dim_v};
  int64_t const batches[] = {problem.batch, problem.seqlen_q, problem.num_heads,
                             problem.head_dim_v};
  int32_t const dtype =
      problem.key.dtype == DType::kBf16 ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float16();
  return problem.is_packed() ? new_empty(problem.device, rows, dtype)
                             : new_empty(problem.device, batches, dtype);
}

Tensor new_lse(Problem const& problem) {
  int64_t const rows[] = {problem.num_heads, problem.packed.total_q};
  int64_t const batches[] = {problem.batch, problem.num_heads, problem.seqlen_q};
  int32_t const dtype = aoti_torch_dtype_float32();
  return problem.is_packed() ? new_empty(problem.device, rows, dtype)
                             : new_empty(problem.device, batches, dtype);
}

// No key: every row's sum is empty.
void fill_empty(ForwardTensors& tensors) {
  torch::stable::zero_(tensors.out);
  torch::stable::fill_(tensors.lse, -std::numeric_limits<double>::infinity());
}

schedule::TileGrid forward_grid(Problem const& problem) {
  FwdConfig const config = fwd_config(problem.key);
  schedule::TileGrid grid = problem.grid();
  grid.block_m = config.block_m;
  grid.block_n = config.block_n;
  grid.num_heads = problem.num_heads_k;
  grid.schedule = schedule::ScheduleKind::kUnordered;
  grid.section = 1;
  return grid;
}

fwd::FwdParams fill_params(Problem const& problem, ForwardTensors const& tensors,
                           fwd::WorkspaceLayout const& layout) {
  void* const workspace = tensors.workspace.mutable_data_ptr();
  return {.q = tensors.q.const_data_ptr(),
          .k = tensors.k.const_data_ptr(),
          .v = tensors.v.const_data_ptr(),
          .o = tensors.out.mutable_data_ptr(),
          .lse = static_cast<float*>(tensors.lse.mutable_data_ptr()),
          .ticket = part_at<int>(workspace, layout.ticket),
          .sequence_order = part_at<int>(workspace, layout.sequence_order),
          .ticket_begin = part_at<int>(workspace, layout.ticket_begin),
          .q_strides = strides_of(tensors.q),
          .k_strides = strides_of(tensors.k),
          .v_strides = strides_of(tensors.v),
          .o_strides = strides_of(tensors.out),
          .packed = problem.packed,
          .grid = forward_grid(problem),
          .num_heads = problem.num_heads,
          .head_dim = problem.head_dim,
          .head_dim_v = problem.head_dim_v,
          .softmax_scale = problem.softmax_scale,
          .softcap = problem.softcap,
          .num_ctas = problem.num_ctas};
}

}  // namespace

std::tuple<Tensor, Tensor> forward(
    Tensor const& q, Tensor const& k, Tensor const& v, std::optional<Tensor> const& cu_seqlens_q,
    std::optional<Tensor> const& cu_seqlens_k, std::optional<Tensor> const& seqused_q,
    std::optional<Tensor> const& seqused_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
    double softmax_scale, int64_t window_size_left, int64_t window_size_right, double softcap,
    std::string const& schedule, int64_t sm_margin) {
  Problem const problem = check_problem(q, k, v,
                                        {.cu_seqlens_q = cu_seqlens_q,
                                         .cu_seqlens_k = cu_seqlens_k,
                                         .seqused_q = seqused_q,
                                         .seqused_k = seqused_k,
                                         .max_seqlen_q = max_seqlen_q,
                                         .max_seqlen_k = max_seqlen_k},
                                        {.softmax_scale = softmax_scale,
                                         .window_size_left = window_size_left,
                                         .window_size_right = window_size_right,
                                         .softcap = softcap,
                                         .schedule = schedule,
                                         .sm_margin = sm_margin});

  auto const& kernel = find_forward(problem.key);

  torch::stable::accelerator::DeviceGuard const guard(problem.device);
  fwd::WorkspaceLayout const layout = fwd::workspace_layout(problem.is_packed(), problem.batch);
  ForwardTensors tensors{.q = addressable(q),
                         .k = addressable(k),
                         .v = addressable(v),
                         .out = new_out(problem),
                         .lse = new_lse(problem),
                         .workspace = new_workspace(problem.device, layout.bytes)};
  if (problem.is_empty()) {
    fill_empty(tensors);
    return {tensors.out, tensors.lse};
  }

  fwd::FwdParams const params = fill_params(problem, tensors, layout);

  kernel.launch(params, current_stream(problem.device));
  return {tensors.out, tensors.lse};
}

}  // namespace dash::api
