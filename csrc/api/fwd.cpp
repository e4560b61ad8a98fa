// Operator dash_attn::fwd in five paragraphs: check, choose key, allocate, fill params, launch.
// Runs on the host; reads q, k, v; writes out and lse on torch's current stream, without a sync.
// Invariant: no check fails after the first allocation.
#include <limits>

#include "api/dispatch.hpp"
#include "api/operators.hpp"
#include "api/stream.hpp"
#include "api/tensor_check.hpp"

namespace dash::api {
namespace {

struct ForwardTensors {
  Tensor q, k, v;  // addressable
  Tensor out;      // (batch, seqlen_q, num_heads, head_dim), contiguous
  Tensor lse;      // (batch, num_heads, seqlen_q), float32, contiguous
  Tensor ticket;   // (1), int32
};

ForwardTensors allocate(Problem const& problem, Tensor const& q, Tensor const& k,
                        Tensor const& v) {
  int64_t const out_shape[] = {problem.batch, problem.seqlen_q, problem.num_heads,
                               problem.key.head_dim};
  int64_t const lse_shape[] = {problem.batch, problem.num_heads, problem.seqlen_q};
  int64_t const ticket_shape[] = {1};
  return {.q = addressable(q),
          .k = addressable(k),
          .v = addressable(v),
          .out = torch::stable::new_empty(q, out_shape),
          .lse = torch::stable::new_empty(q, lse_shape, ScalarType::Float),
          .ticket = torch::stable::new_empty(q, ticket_shape, ScalarType::Int)};
}

// No key: every row's sum is empty.
void fill_empty(ForwardTensors& tensors) {
  torch::stable::zero_(tensors.out);
  torch::stable::fill_(tensors.lse, -std::numeric_limits<double>::infinity());
}

fwd::FwdParams fill_params(Problem const& problem, ForwardTensors const& tensors) {
  return {.q = tensors.q.const_data_ptr(),
          .k = tensors.k.const_data_ptr(),
          .v = tensors.v.const_data_ptr(),
          .o = tensors.out.mutable_data_ptr(),
          .lse = static_cast<float*>(tensors.lse.mutable_data_ptr()),
          .ticket = static_cast<int*>(tensors.ticket.mutable_data_ptr()),
          .q_strides = strides_of(tensors.q),
          .k_strides = strides_of(tensors.k),
          .v_strides = strides_of(tensors.v),
          .o_strides = strides_of(tensors.out),
          .batch = problem.batch,
          .seqlen_q = problem.seqlen_q,
          .seqlen_k = problem.seqlen_k,
          .num_heads = problem.num_heads,
          .num_heads_k = problem.num_heads_k,
          .softmax_scale = problem.softmax_scale,
          .num_ctas = problem.num_ctas};
}

}  // namespace

std::tuple<Tensor, Tensor> forward(Tensor const& q, Tensor const& k, Tensor const& v,
                                   double softmax_scale, int64_t window_size_left,
                                   int64_t window_size_right, double softcap,
                                   std::string const& schedule, int64_t sm_margin) {
  Problem const problem = check_problem(q, k, v,
                                        {.softmax_scale = softmax_scale,
                                         .window_size_left = window_size_left,
                                         .window_size_right = window_size_right,
                                         .softcap = softcap,
                                         .schedule = schedule,
                                         .sm_margin = sm_margin});

  auto const& kernel = find_forward(problem.key);

  torch::stable::accelerator::DeviceGuard const guard(problem.device);
  ForwardTensors tensors = allocate(problem, q, k, v);
  if (problem.is_empty()) {
    fill_empty(tensors);
    return {tensors.out, tensors.lse};
  }

  fwd::FwdParams const params = fill_params(problem, tensors);

  kernel.launch(params, current_stream(problem.device));
  return {tensors.out, tensors.lse};
}

}  // namespace dash::api
