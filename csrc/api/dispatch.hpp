// The compiled kernels: a table from KernelKey to launch function, built from the manifest that
// csrc/instantiate.py writes beside the kernels' sources, so code and table cannot drift.
// Knows neither torch nor CuTe.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <string>
#include <vector>

#include "bwd/params.hpp"
#include "common/kernel_attributes.hpp"
#include "config/kernel_key.hpp"
#include "fwd/params.hpp"

namespace dash::api {

template <class Params>
struct CompiledKernel {
  char const* name;
  KernelKey key;
  void (*launch)(Params const&, cudaStream_t);
  std::vector<KernelAttributes> (*attributes)();
};

std::span<CompiledKernel<fwd::FwdParams> const> forward_kernels();
std::span<CompiledKernel<bwd::BwdParams> const> backward_kernels();

// The kernel of that key; throws with the list of what was built if there is none.
CompiledKernel<fwd::FwdParams> const& find_forward(KernelKey const& key);
CompiledKernel<bwd::BwdParams> const& find_backward(KernelKey const& key);

// "bf16"; "packed_full": the words that kernel names are made of.
char const* dtype_word(DType dtype);
char const* variant_word(Variant variant);

}  // namespace dash::api
