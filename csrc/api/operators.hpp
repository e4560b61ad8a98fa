// The operators' entry points, bound in register.cpp. Schemas are defined in dash/_ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace dash::api {

// q (b, sq, h, d), k and v (b, sk, hk, d) -> out (b, sq, h, d), lse (b, h, sq) float32.
std::tuple<torch::stable::Tensor, torch::stable::Tensor> forward(
    torch::stable::Tensor const& q, torch::stable::Tensor const& k,
    torch::stable::Tensor const& v, double softmax_scale, int64_t window_size_left,
    int64_t window_size_right, double softcap, std::string const& schedule, int64_t sm_margin);

// dout, q, k, v, out, lse and the gradient of lse, if any -> dq, dk, dv.
std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> backward(
    torch::stable::Tensor const& dout, torch::stable::Tensor const& q,
    torch::stable::Tensor const& k, torch::stable::Tensor const& v,
    torch::stable::Tensor const& out, torch::stable::Tensor const& lse,
    std::optional<torch::stable::Tensor> const& dlse, double softmax_scale,
    int64_t window_size_left, int64_t window_size_right, double softcap,
    std::string const& schedule, int64_t sm_margin);

// Test operator: folds `contributors` turns into each chain through the turn semaphore.
void semaphore_fold(torch::stable::Tensor const& chains, torch::stable::Tensor const& semaphore,
                    int64_t contributors, int64_t jitter);

}  // namespace dash::api
