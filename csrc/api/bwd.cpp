// Operator dash_attn::bwd in five paragraphs: check, choose key, allocate, fill params, launch.
// Runs on the host; reads dout, q, k, v, out, lse and dlse; writes dq, dk and dv on torch's current
// stream, without a sync. The workspace (bwd/workspace.hpp) lives until after the last launch.
// Invariant: no check fails after the first allocation.
#include "api/dispatch.hpp"
#include "api/new_empty.hpp"
#include "api/operators.hpp"
#include "api/problem.hpp"
#include "api/stream.hpp"
#include "bwd/workspace.hpp"
#include "common/check.hpp"
#include "schedule/any_of.hpp"

namespace dash::api {
namespace {

struct BackwardTensors {
  Tensor dout, q, k, v, out;  // addressable
  Tensor lse;                 // contiguous
  std::optional<Tensor> dlse;
  Tensor dq, dk, dv;  // contiguous
  Tensor workspace;   // bytes
};

// Whether the main kernel is to convert finished dQ tiles. An unordered schedule does not know when
// one is finished.
// Tuning, each on an H200: gangs finish all their tiles at the end of a round, and the conversions
// then delay the next round's beginning in all CTAs (1 %). Of few waves most tiles are finished
// when the kernel is, and with few contributors to a tile there is no time for them: 1 to 2 % lost
// at less than 4 waves, 1 % at 512 tokens under a causal mask.
bool has_converters(Problem const& problem, schedule::TileGrid const& grid) {
  constexpr int kMinWaves = 4;
  constexpr int kMinContributors = 4;  // to a Q tile in the middle
  int64_t const kv_tiles = bwd::kv_tiles_of_a_list(grid, problem.packed);
  return schedule::BuiltIn::is_ordered(grid) && problem.gang_size(problem.schedule) == 1 &&
         kv_tiles * grid.num_heads >= kMinWaves * problem.num_ctas &&
         grid.num_contributors(grid.num_m_blocks() / 2) >= kMinContributors;
}

bwd::BwdParams fill_params(Problem const& problem, schedule::TileGrid const& grid,
                           BackwardTensors const& tensors, bwd::WorkspaceLayout const& layout) {
  void* const workspace = tensors.workspace.mutable_data_ptr();
  return {.q = tensors.q.const_data_ptr(),
          .k = tensors.k.const_data_ptr(),
          .v = tensors.v.const_data_ptr(),
          .o = tensors.out.const_data_ptr(),
          .dout = tensors.dout.const_data_ptr(),
          .lse = static_cast<float const*>(tensors.lse.const_data_ptr()),
          .dlse = tensors.dlse.has_value()
                      ? static_cast<float const*>(tensors.dlse->const_data_ptr())
                      : nullptr,
          .dq = tensors.dq.mutable_data_ptr(),
          .dk = tensors.dk.mutable_data_ptr(),
          .dv = tensors.dv.mutable_data_ptr(),
          .q_strides = strides_of(tensors.q),
          .k_strides = strides_of(tensors.k),
          .v_strides = strides_of(tensors.v),
          .o_strides = strides_of(tensors.out),
          .do_strides = strides_of(tensors.dout),
          .dq_strides = strides_of(tensors.dq),
          .dk_strides = strides_of(tensors.dk),
          .dv_strides = strides_of(tensors.dv),
          .lse_log2 = part_at<float>(workspace, layout.lse_log2),
          .dpsum = part_at<float>(workspace, layout.dpsum),
          .dq_accum = part_at<float>(workspace, layout.dq_accum),
          .dq_semaphore = part_at<int>(workspace, layout.dq_semaphore),
          .dkv_parts = part_at<float>(workspace, layout.dkv_parts),
          .ticket = part_at<int>(workspace, layout.ticket),
          .finished = part_at<int>(workspace, layout.finished),
          .num_finished = part_at<int>(workspace, layout.num_finished),
          .num_claimed = part_at<int>(workspace, layout.num_claimed),
          .sequence_order = part_at<int>(workspace, layout.sequence_order),
          .ticket_begin = part_at<int>(workspace, layout.ticket_begin),
          .packed = problem.packed,
          .grid = grid,
          .num_heads = problem.num_heads,
          .num_heads_k = problem.num_heads_k,
          .group_parts = problem.group_parts,
          .part_size = problem.num_heads / (problem.num_heads_k * problem.group_parts),
          .head_dim = problem.head_dim,
          .head_dim_v = problem.head_dim_v,
          .gang_size = problem.gang_size(problem.schedule),
          .has_converters = has_converters(problem, grid),
          .softmax_scale = problem.softmax_scale,
          .softcap = problem.softcap,
          .num_ctas = problem.num_ctas};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> backward(
    Tensor const& dout, Tensor const& q, Tensor const& k, Tensor const& v, Tensor const& out,
    Tensor const& lse, std::optional<Tensor> const& dlse,
    std::optional<Tensor> const& cu_seqlens_q, std::optional<Tensor> const& cu_seqlens_k,
    std::optional<Tensor> const& seqused_q, std::optional<Tensor> const& seqused_k,
    int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale, int64_t window_size_left,
    int64_t window_size_right, double softcap, std::string const& schedule, int64_t sm_margin) {
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
  check_like_out({"dout", dout}, q, problem);
  check_like_out({"out", out}, q, problem);
  check_row_statistic({"lse", lse}, q, problem);
  if (dlse.has_value()) {
    check_row_statistic({"dlse", *dlse}, q, problem);
  }

  auto const& kernel = find_backward(problem.key);

  torch::stable::accelerator::DeviceGuard const guard(problem.device);
  if (problem.is_empty()) {
    return {torch::stable::new_zeros(q, q.sizes()), torch::stable::new_zeros(k, k.sizes()),
            torch::stable::new_zeros(v, v.sizes())};
  }
  schedule::TileGrid const grid = problem.grid();
  bwd::WorkspaceLayout const layout =
      bwd::workspace_layout(grid, problem.packed, {problem.num_heads, problem.group_parts},
                            problem.key.head_dim);
  BackwardTensors const tensors{
      .dout = addressable(dout),
      .q = addressable(q),
      .k = addressable(k),
      .v = addressable(v),
      .out = addressable(out),
      .lse = as_contiguous(lse),
      .dlse = dlse.has_value() ? std::optional(as_contiguous(*dlse)) : std::nullopt,
      .dq = new_empty_like(q),
      .dk = new_empty_like(k),
      .dv = new_empty_like(v),
      .workspace = new_workspace(problem.device, layout.bytes)};

  bwd::BwdParams const params = fill_params(problem, grid, tensors, layout);

  kernel.launch(params, current_stream(problem.device));
  return {tensors.dq, tensors.dk, tensors.dv};
}

}  // namespace dash::api
