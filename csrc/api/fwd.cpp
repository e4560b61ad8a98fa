// Operator dash_attn::fwd in five paragraphs: check, choose key, allocate, fill params, launch.
// Runs on the host; reads q, k, v; writes out and lse on torch's current stream, without a sync.
// Invariant: no check fails after the first allocation.
#include <limits>
#include <vector>

#include "api/dispatch.hpp"
#include "api/operators.hpp"
#include "api/problem.hpp"
#include "api/stream.hpp"
#include "config/fwd_config.hpp"

namespace dash::api {
namespace {

struct ForwardTensors {
  Tensor q, k, v;  // addressable
  Tensor out;      // like q, with the head dim of v; contiguous
  Tensor lse;      // (batch, num_heads, seqlen_q) or (num_heads, total_q), float32, contiguous
  Tensor ticket;   // (1), int32
  Tensor sequence_order, ticket_begin;  // packed: (batch), (batch + 1), int32
};

ForwardTensors allocate(Problem const& problem, Tensor const& q, Tensor const& k,
                        Tensor const& v) {
  std::vector<int64_t> out_shape(q.sizes().begin(), q.sizes().end());
  out_shape.back() = problem.head_dim_v;
  std::vector<int64_t> const lse_shape =
      problem.is_packed()
          ? std::vector<int64_t>{problem.num_heads, problem.packed.total_q}
          : std::vector<int64_t>{problem.batch, problem.num_heads, problem.seqlen_q};
  auto const ints = [&](int64_t elements) {
    int64_t const shape[] = {elements};
    return torch::stable::new_empty(q, shape, ScalarType::Int);
  };
  return {.q = addressable(q),
          .k = addressable(k),
          .v = addressable(v),
          .out = torch::stable::new_empty(q, out_shape),
          .lse = torch::stable::new_empty(q, lse_shape, ScalarType::Float),
          .ticket = ints(1),
          .sequence_order = ints(problem.is_packed() ? problem.batch : 0),
          .ticket_begin = ints(problem.is_packed() ? int64_t{problem.batch} + 1 : 0)};
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
  grid.schedule = schedule::ScheduleKind::kUnordered;
  grid.section = 1;
  return grid;
}

fwd::FwdParams fill_params(Problem const& problem, ForwardTensors const& tensors) {
  auto const ints = [](Tensor const& tensor) {
    return static_cast<int*>(tensor.mutable_data_ptr());
  };
  return {.q = tensors.q.const_data_ptr(),
          .k = tensors.k.const_data_ptr(),
          .v = tensors.v.const_data_ptr(),
          .o = tensors.out.mutable_data_ptr(),
          .lse = static_cast<float*>(tensors.lse.mutable_data_ptr()),
          .ticket = ints(tensors.ticket),
          .sequence_order = ints(tensors.sequence_order),
          .ticket_begin = ints(tensors.ticket_begin),
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
