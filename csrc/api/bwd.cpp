// Operator dash_attn::bwd in five paragraphs: check, choose key, allocate, fill params, launch.
// Runs on the host; reads dout, q, k, v, out, lse and dlse; writes dq, dk and dv on torch's current
// stream, without a sync. The workspace (bwd/workspace.hpp) lives until after the last launch.
// Invariant: no check fails after the first allocation.
#include "api/dispatch.hpp"
#include "api/operators.hpp"
#include "api/problem.hpp"
#include "api/stream.hpp"
#include "bwd/workspace.hpp"
#include "common/check.hpp"

namespace dash::api {
namespace {

struct BackwardTensors {
  Tensor dout, q, k, v, out;  // addressable
  Tensor lse;                 // contiguous
  std::optional<Tensor> dlse;
  Tensor dq, dk, dv;  // contiguous
};

struct Workspace {
  Tensor lse_log2, dpsum, dq_accum;  // float32
  Tensor dq_semaphore, ticket, sequence_order, ticket_begin;  // int32
};

Tensor new_gradient(Tensor const& like) {
  return torch::stable::new_empty(like, like.sizes());
}

Workspace allocate_workspace(Problem const& problem, Tensor const& q) {
  bwd::WorkspaceSizes const sizes =
      bwd::workspace_sizes(problem.grid(), problem.packed, problem.num_heads,
                           problem.key.head_dim);
  auto const buffer = [&](int64_t elements, ScalarType dtype) {
    int64_t const shape[] = {elements};
    return torch::stable::new_empty(q, shape, dtype);
  };
  return {.lse_log2 = buffer(sizes.lse_log2, ScalarType::Float),
          .dpsum = buffer(sizes.dpsum, ScalarType::Float),
          .dq_accum = buffer(sizes.dq_accum, ScalarType::Float),
          .dq_semaphore = buffer(sizes.dq_semaphore, ScalarType::Int),
          .ticket = buffer(sizes.ticket, ScalarType::Int),
          .sequence_order = buffer(sizes.sequence_order, ScalarType::Int),
          .ticket_begin = buffer(sizes.ticket_begin, ScalarType::Int)};
}

bwd::BwdParams fill_params(Problem const& problem, BackwardTensors const& tensors,
                           Workspace const& workspace) {
  auto const floats = [](Tensor const& tensor) {
    return static_cast<float*>(tensor.mutable_data_ptr());
  };
  auto const ints = [](Tensor const& tensor) {
    return static_cast<int*>(tensor.mutable_data_ptr());
  };
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
          .lse_log2 = floats(workspace.lse_log2),
          .dpsum = floats(workspace.dpsum),
          .dq_accum = floats(workspace.dq_accum),
          .dq_semaphore = ints(workspace.dq_semaphore),
          .ticket = ints(workspace.ticket),
          .sequence_order = ints(workspace.sequence_order),
          .ticket_begin = ints(workspace.ticket_begin),
          .packed = problem.packed,
          .grid = problem.grid(),
          .num_heads = problem.num_heads,
          .group_size = problem.num_heads / problem.num_heads_k,
          .head_dim = problem.head_dim,
          .head_dim_v = problem.head_dim_v,
          .gang_size = problem.gang_size(problem.schedule),
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
  std::optional<Tensor> contiguous_dlse;
  if (dlse.has_value()) {
    contiguous_dlse = torch::stable::contiguous(*dlse);
  }
  BackwardTensors const tensors{.dout = addressable(dout),
                                .q = addressable(q),
                                .k = addressable(k),
                                .v = addressable(v),
                                .out = addressable(out),
                                .lse = torch::stable::contiguous(lse),
                                .dlse = contiguous_dlse,
                                .dq = new_gradient(q),
                                .dk = new_gradient(k),
                                .dv = new_gradient(v)};
  Workspace const workspace = allocate_workspace(problem, q);

  bwd::BwdParams const params = fill_params(problem, tensors, workspace);

  kernel.launch(params, current_stream(problem.device));
  return {tensors.dq, tensors.dk, tensors.dv};
}

}  // namespace dash::api
