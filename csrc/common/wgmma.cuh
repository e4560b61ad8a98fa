// One warpgroup-wide matrix product, issued and committed as one WGMMA group; the caller waits.
// `gemm_issue` returns while the tensor cores run: until `warpgroup_wait` the accumulator and a
// register A operand must not be touched, and the shared-memory operands must not be overwritten.
#pragma once

#include <cute/tensor.hpp>

namespace dash {

enum class Accumulate { kZeroFirst, kAdd };

// The same shared-memory operand, with its descriptor hidden from the optimiser at this point.
// Tuning: without it the compiler (nvcc 13.0) computes the descriptor of every K step before the
// loop and keeps all of them in registers, which spills; adding a constant in the loop is free. The
// build's spill gate watches it.
template <class Tensor>
CUTE_DEVICE auto rematerialize(Tensor const& operand) {
  auto iterator = operand.data();
  asm volatile("" : "+r"(iterator.desc_.reg32_[0]));
  return make_tensor(iterator, operand.layout());
}

template <Accumulate kMode, class TiledMma, class TensorA, class TensorB, class TensorC>
CUTE_DEVICE void gemm_issue(TiledMma& mma, TensorA const& tCrA, TensorB const& tCrB,
                            TensorC& tCrC) {
  using namespace cute;
  constexpr bool kIsRegisterA =
      !cute::is_base_of<GMMA::DescriptorIterator, typename TiledMma::FrgTypeA>::value;
  if constexpr (kIsRegisterA) {
    warpgroup_fence_operand(const_cast<TensorA&>(tCrA));
  }
  warpgroup_fence_operand(tCrC);
  warpgroup_arrive();
  if constexpr (kMode == Accumulate::kZeroFirst) {
    mma.accumulate_ = GMMA::ScaleOut::Zero;
  } else {
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  CUTE_UNROLL
  for (int k_block = 0; k_block < size<2>(tCrA); ++k_block) {
    cute::gemm(mma, tCrA(_, _, k_block), tCrB(_, _, k_block), tCrC);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

// Waits until at most kPending committed products are unfinished, and makes `tCrC` readable.
template <int kPending, class TensorC>
CUTE_DEVICE void gemm_wait(TensorC& tCrC) {
  cute::warpgroup_wait<kPending>();
  cute::warpgroup_fence_operand(tCrC);
}

}  // namespace dash
