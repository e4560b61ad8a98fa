// Builds the tables of dispatch.hpp from manifest.inc: one line a kernel, key and function name.
#include "api/dispatch.hpp"

#include <stdexcept>

// First reading of the manifest: declarations.
#define DASH_FWD_KERNEL(name, dtype, head_dim, variant)             \
  namespace dash::fwd {                                             \
  void name(FwdParams const& params, cudaStream_t stream);          \
  std::vector<KernelAttributes> name##_attributes();                \
  }
#define DASH_BWD_KERNEL(name, dtype, head_dim, variant)             \
  namespace dash::bwd {                                             \
  void name(BwdParams const& params, cudaStream_t stream);          \
  std::vector<KernelAttributes> name##_attributes();                \
  }
#include "manifest.inc"
#undef DASH_FWD_KERNEL
#undef DASH_BWD_KERNEL

namespace dash::api {
namespace {

using ForwardKernel = CompiledKernel<fwd::FwdParams>;
using BackwardKernel = CompiledKernel<bwd::BwdParams>;

// Second and third reading: one table a pass.
std::vector<ForwardKernel> const kForwardKernels = {
#define DASH_FWD_KERNEL(name, dtype, head_dim, variant)             \
  ForwardKernel{#name, {DType::dtype, head_dim, Variant::variant},  \
                &fwd::name, &fwd::name##_attributes},
#define DASH_BWD_KERNEL(name, dtype, head_dim, variant)
#include "manifest.inc"
#undef DASH_FWD_KERNEL
#undef DASH_BWD_KERNEL
};

std::vector<BackwardKernel> const kBackwardKernels = {
#define DASH_FWD_KERNEL(name, dtype, head_dim, variant)
#define DASH_BWD_KERNEL(name, dtype, head_dim, variant)             \
  BackwardKernel{#name, {DType::dtype, head_dim, Variant::variant}, \
                 &bwd::name, &bwd::name##_attributes},
#include "manifest.inc"
#undef DASH_FWD_KERNEL
#undef DASH_BWD_KERNEL
};

template <class Kernel>
[[noreturn]] void throw_not_built(std::vector<Kernel> const& kernels, KernelKey const& key) {
  std::string built;
  for (Kernel const& kernel : kernels) {
    built += (built.empty() ? "" : ", ") + std::string(kernel.name);
  }
  throw std::runtime_error(std::string("dash_attn: no kernel was built for dtype ") +
                           dtype_word(key.dtype) + ", head dim " + std::to_string(key.head_dim) +
                           ", variant " + variant_word(key.variant) + "; built were: " +
                           (built.empty() ? "none" : built) +
                           ". Rebuild with a DASH_KERNELS filter that includes it, or with none");
}

template <class Kernel>
Kernel const& find(std::vector<Kernel> const& kernels, KernelKey const& key) {
  for (Kernel const& kernel : kernels) {
    if (kernel.key == key) {
      return kernel;
    }
  }
  throw_not_built(kernels, key);
}

}  // namespace

std::span<ForwardKernel const> forward_kernels() { return kForwardKernels; }
std::span<BackwardKernel const> backward_kernels() { return kBackwardKernels; }

ForwardKernel const& find_forward(KernelKey const& key) { return find(kForwardKernels, key); }
BackwardKernel const& find_backward(KernelKey const& key) { return find(kBackwardKernels, key); }

char const* dtype_word(DType dtype) { return dtype == DType::kBf16 ? "bf16" : "fp16"; }
char const* variant_word(Variant variant) {
  constexpr char const* kWords[] = {"full", "causal", "packed_full", "general"};
  return kWords[static_cast<int>(variant)];
}

}  // namespace dash::api
