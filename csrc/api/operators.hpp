// The operators' entry points, bound in register.cpp. Schemas are defined in dash/_ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace dash::api {

// q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv) -> out (b, sq, h, dv), lse (b, h, sq)
// float32. Packed, with cu_seqlens: q (total_q, h, d), k and v (total_k, hk, ..) -> out
// (total_q, h, dv), lse (h, total_q).
std::tuple<torch::stable::Tensor, torch::stable::Tensor> forward(
    torch::stable::Tensor const& q, torch::stable::Tensor const& k,
    torch::stable::Tensor const& v, std::optional<torch::stable::Tensor> const& cu_seqlens_q,
    std::optional<torch::stable::Tensor> const& cu_seqlens_k,
    std::optional<torch::stable::Tensor> const& seqused_q,
    std::optional<torch::stable::Tensor> const& seqused_k, int64_t max_seqlen_q,
    int64_t max_seqlen_k, double softmax_scale, int64_t window_size_left,
    int64_t window_size_right, double softcap, std::string const& schedule, int64_t sm_margin);

// dout, q, k, v, out, lse and the gradient of lse, if any -> dq, dk, dv.
std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> backward(
    torch::stable::Tensor const& dout, torch::stable::Tensor const& q,
    torch::stable::Tensor const& k, torch::stable::Tensor const& v,
    torch::stable::Tensor const& out, torch::stable::Tensor const& lse,
    std::optional<torch::stable::Tensor> const& dlse,
    std::optional<torch::stable::Tensor> const& cu_seqlens_q,
    std::optional<torch::stable::Tensor> const& cu_seqlens_k,
    std::optional<torch::stable::Tensor> const& seqused_q,
    std::optional<torch::stable::Tensor> const& seqused_k, int64_t max_seqlen_q,
    int64_t max_seqlen_k, double softmax_scale, int64_t window_size_left,
    int64_t window_size_right, double softcap, std::string const& schedule, int64_t sm_margin);

// Test operator: folds `contributors` turns into each chain through the turn semaphore.
void semaphore_fold(torch::stable::Tensor const& chains, torch::stable::Tensor const& semaphore,
                    int64_t contributors, int64_t jitter);

}  // namespace dash::api
