// Binds the CUDA implementations of the operators whose schemas dash/_ops.py defines, and the test
// operators semaphore_fold and occupy_sms. Through the stable ABI: the library loads under any
// torch >= 2.10.
#include <torch/csrc/stable/library.h>

#include "api/operators.hpp"
#include "api/stream.hpp"
#include "api/tensor_check.hpp"
#include "bwd/workspace.hpp"
#include "common/check.hpp"
#include "selftest/occupy_sms.hpp"
#include "selftest/semaphore_fold.hpp"

namespace dash::api {

void semaphore_fold(Tensor const& chains, Tensor const& semaphore, int64_t contributors,
                    int64_t jitter) {
  DASH_CHECK(chains.is_cuda() && chains.scalar_type() == ScalarType::Float && chains.dim() == 2 &&
                 0 < chains.size(0) && chains.size(0) <= 4096 &&
                 chains.size(1) == selftest::kFoldWidth && chains.is_contiguous(),
             "dash_attn: chains must be a contiguous CUDA float32 tensor (1 to 4096, 256)");
  DASH_CHECK(semaphore.is_cuda() && semaphore.scalar_type() == ScalarType::Int &&
                 semaphore.get_device_index() == chains.get_device_index() &&
                 semaphore.numel() == chains.size(0) * bwd::kSemaphoreStride &&
                 semaphore.is_contiguous(),
             "dash_attn: semaphore must be a contiguous CUDA int32 tensor of num_chains * 8 "
             "elements on the device of chains");
  DASH_CHECK(0 < contributors && contributors <= 65536,
             "dash_attn: contributors must be 1 to 65536, got " + std::to_string(contributors));
  DASH_CHECK(0 <= jitter && jitter <= 1000000,
             "dash_attn: jitter must be 0 to 1000000, got " + std::to_string(jitter));
  int const device = chains.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device);
  selftest::semaphore_fold({.chains = static_cast<float*>(chains.mutable_data_ptr()),
                            .semaphore = static_cast<int*>(semaphore.mutable_data_ptr()),
                            .num_chains = static_cast<int>(chains.size(0)),
                            .contributors = static_cast<int>(contributors),
                            .jitter = static_cast<int>(jitter)},
                           current_stream(device));
}

void occupy_sms(Tensor const& flags, int64_t num_ctas, int64_t microseconds) {
  DASH_CHECK(flags.is_cuda() && flags.scalar_type() == ScalarType::Int && flags.dim() == 1 &&
                 flags.size(0) == 2 && flags.is_contiguous(),
             "dash_attn: flags must be a contiguous CUDA int32 tensor (2)");
  DASH_CHECK(0 < num_ctas && num_ctas <= 1024,
             "dash_attn: num_ctas must be 1 to 1024, got " + std::to_string(num_ctas));
  DASH_CHECK(0 < microseconds && microseconds <= 60'000'000,
             "dash_attn: microseconds must be 1 to 60000000, got " + std::to_string(microseconds));
  int const device = flags.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device);
  selftest::occupy_sms({.flags = static_cast<int*>(flags.mutable_data_ptr()),
                        .num_ctas = static_cast<int>(num_ctas),
                        .microseconds = static_cast<int>(microseconds)},
                       current_stream(device));
}

}  // namespace dash::api

STABLE_TORCH_LIBRARY_IMPL(dash_attn, CUDA, m) {
  m.impl("fwd", TORCH_BOX(&dash::api::forward));
  m.impl("bwd", TORCH_BOX(&dash::api::backward));
  m.impl("semaphore_fold", TORCH_BOX(&dash::api::semaphore_fold));
  m.impl("occupy_sms", TORCH_BOX(&dash::api::occupy_sms));
}
