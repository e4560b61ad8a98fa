// Online softmax over the two rows that a thread holds of a 64 x N WGMMA accumulator (rows r and
// r + 8; the four lanes of a quad share them). Registers only; the shuffles need whole warps.
// Invariant after update(): the accumulator holds exp2(scale_log2 (s - row_max)), row_sum is this
// lane's part of its sum, and everything accumulated earlier must be multiplied by row_scale.
#pragma once

#include <cute/tensor.hpp>

#include <cmath>

#include "common/exp2.cuh"

namespace dash {

// Which of the thread's two rows accumulator value i belongs to.
CUTE_HOST_DEVICE constexpr int accumulator_row_index(int i) { return (i / 2) % 2; }

struct OnlineSoftmax {
  float scale_log2;   // softmax_scale * log2(e)
  float row_max[2];   // of the unscaled scores; -inf while no key was seen
  float row_sum[2];   // this lane's columns only, until finish()
  float row_scale[2];

  CUTE_DEVICE explicit OnlineSoftmax(float scale_log2_) : scale_log2(scale_log2_) { reset(); }

  CUTE_DEVICE void reset() {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      row_max[row] = -INFINITY;
      row_sum[row] = 0.f;
      row_scale[row] = 0.f;
    }
  }

  template <class TensorS>
  CUTE_DEVICE void update(TensorS& tSrS) {
    constexpr int kSize = decltype(cute::size(tSrS))::value;
    float tile_max[2] = {row_max[0], row_max[1]};
    CUTE_UNROLL
    for (int i = 0; i < kSize; ++i) {
      int const row = accumulator_row_index(i);
      tile_max[row] = fmaxf(tile_max[row], tSrS(i));
    }
    float max_scaled[2];
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      tile_max[row] = fmaxf(tile_max[row], __shfl_xor_sync(0xffffffffu, tile_max[row], 2));
      tile_max[row] = fmaxf(tile_max[row], __shfl_xor_sync(0xffffffffu, tile_max[row], 1));
      // Correctness: a row that has seen no key has max -inf, and -inf - -inf is NaN. Against 0 its
      // masked scores give exp2(-inf) = 0.
      float const finite_max = tile_max[row] == -INFINITY ? 0.f : tile_max[row];
      row_scale[row] = exp2_approx((row_max[row] - finite_max) * scale_log2);
      max_scaled[row] = finite_max * scale_log2;
      row_max[row] = tile_max[row];
    }
    CUTE_UNROLL
    for (int i = 0; i < kSize; ++i) {
      int const row = accumulator_row_index(i);
      tSrS(i) = exp2_approx(fmaf(tSrS(i), scale_log2, -max_scaled[row]));
      // Correctness: the product with row_scale is fused by hand, because kernels that serve the
      // same sequence must agree to the bit, and the compiler may fuse it in one of them only.
      bool const is_first = i == 0 || i == 2;  // of its row
      row_sum[row] = is_first ? fmaf(row_sum[row], row_scale[row], tSrS(i))
                              : row_sum[row] + tSrS(i);
    }
  }

  template <class TensorO>
  CUTE_DEVICE void rescale(TensorO& tOrO) const {
    CUTE_UNROLL
    for (int i = 0; i < decltype(cute::size(tOrO))::value; ++i) {
      tOrO(i) *= row_scale[accumulator_row_index(i)];
    }
  }

  // Adds up the four lanes' parts of each row; every lane gets the whole sum.
  CUTE_DEVICE void finish() {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      row_sum[row] += __shfl_xor_sync(0xffffffffu, row_sum[row], 2);
      row_sum[row] += __shfl_xor_sync(0xffffffffu, row_sum[row], 1);
    }
  }
};

}  // namespace dash
