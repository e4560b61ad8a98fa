// Online softmax over the two rows that a thread holds of a 64 x N WGMMA accumulator (rows r and
// r + 8; the four lanes of a quad share them). Registers only; the shuffles need whole warps.
// Invariant after update(): the accumulator holds exp2(scale_log2 (s - row_reference)), row_sum is
// this lane's part of its sum, and O accumulated before this tile is to be multiplied by row_scale,
// which is exactly 1 in most tiles.
#pragma once

#include <cute/tensor.hpp>

#include <cfloat>
#include <cmath>

#include "common/exp2.cuh"

namespace dash {

// Which of the thread's two rows accumulator value i belongs to.
CUTE_HOST_DEVICE constexpr int accumulator_row_index(int i) { return (i / 2) % 2; }

// Value j of a row, as an index into the accumulator.
CUTE_HOST_DEVICE constexpr int accumulator_value_of_row(int row, int j) {
  return 4 * (j / 2) + 2 * row + j % 2;
}

// kMaximaInTurns: the second row's maximum is held back until the first row's is known.
template <bool kMaximaInTurns>
struct OnlineSoftmax {
  // A row's reference follows its maximum only when that has grown by this many powers of two.
  // Until then probabilities are above 1, by so much at most, which fp16 and the sums in float hold
  // without loss, and nothing needs rescaling. (The lazy rescaling of FlashAttention-4.)
  static constexpr float kGrowthLog2 = 8.f;

  float scale_log2;        // softmax_scale * log2(e)
  float row_reference[2];  // a score near the row's maximum; -inf while no key was seen
  float row_sum[2];        // this lane's columns only, until finish()
  float row_scale[2];

  CUTE_DEVICE explicit OnlineSoftmax(float scale_log2_) : scale_log2(scale_log2_) { reset(); }

  CUTE_DEVICE void reset() {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      row_reference[row] = -INFINITY;
      row_sum[row] = 0.f;
      row_scale[row] = 0.f;
    }
  }

  // Scores to probabilities. `between(rescales)` is called when the first row is done; it gets
  // whether a row of this warp has a row_scale other than 1.
  // Tuning: the special-function unit is the limit, so everything else is to run under its
  // exponentials: the second row's maximum under those of the first row, and what the caller does
  // after between() under those of the second.
  template <class TensorS, class Between>
  CUTE_DEVICE void update(TensorS& tSrS, Between const& between) {
    float const reference_0 = update_reference<0>(tSrS, -INFINITY);
    exponentiate<0>(tSrS, reference_0);
    // Tuning: -inf, but not before the first row's maximum is known. Without it ptxas (13.0)
    // computes both maxima first: in the SASS of the loop, 64 FMNMX before the first MUFU.EX2.
    float const minus_infinity = kMaximaInTurns ? -fabsf(reference_0) - INFINITY : -INFINITY;
    float reference_1 = update_reference<1>(tSrS, minus_infinity);
    // Tuning: a vote, because a branch that is uniform in the eyes of the compiler leaves the
    // descriptors of the products in uniform registers; otherwise R2UR in the SASS, and 4 % lost.
    bool const rescales = __any_sync(0xffffffffu, row_scale[0] != 1.f || row_scale[1] != 1.f);
    // Tuning: the branch keeps ptxas (13.0) from moving the first row's exponentials behind the
    // caller's wait, and, because it could change reference_1, the second row's in front of it:
    // MUFU after and before WARPGROUP.DEPBAR.LE gsb0, 0x0. It is seldom taken.
    if (rescales) {
      asm volatile("nanosleep.u32 0;\n add.f32 %0, %0, 0f00000000;" : "+f"(reference_1));
    }
    between(rescales);
    exponentiate<1>(tSrS, reference_1);
  }

  // Of the first tile, which has nothing before it to rescale.
  template <class TensorS>
  CUTE_DEVICE void begin(TensorS& tSrS) {
    update(tSrS, [](bool) {});
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

 private:
  // The row's maximum over this tile and its reference. Half of the comparisons start from
  // `minus_infinity`, and so not before it is known; the others fill the time until then.
  // Tuning: four chains, because one comparison waits four cycles for the one before it.
  template <int kRow, class TensorS>
  CUTE_DEVICE float row_max(TensorS const& tSrS, float minus_infinity) const {
    constexpr int kRowValues = decltype(cute::size(tSrS))::value / 2;
    float chain[4];
    CUTE_UNROLL
    for (int j = 0; j < kRowValues; ++j) {
      float const score = tSrS(accumulator_value_of_row(kRow, j));
      float& maximum = chain[j % 4];
      if (j >= 4) {
        maximum = fmaxf(maximum, score);
      } else if (j == 0) {
        maximum = fmaxf(row_reference[kRow], score);
      } else {
        maximum = kMaximaInTurns && kRow == 1 && j >= 2 ? fmaxf(minus_infinity, score) : score;
      }
    }
    float maximum = fmaxf(fmaxf(chain[0], chain[2]), fmaxf(chain[1], chain[3]));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
    return fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
  }

  // Sets row_reference and row_scale; returns scale_log2 times the reference.
  template <int kRow, class TensorS>
  CUTE_DEVICE float update_reference(TensorS const& tSrS, float minus_infinity) {
    float const maximum = row_max<kRow>(tSrS, minus_infinity);
    // NaN, which grows nothing, if the row has seen no key yet.
    float const growth = (maximum - row_reference[kRow]) * scale_log2;
    bool const has_grown = growth > kGrowthLog2;
    row_scale[kRow] = has_grown ? exp2_approx(-growth) : 1.f;
    row_reference[kRow] = has_grown ? maximum : row_reference[kRow];
    // Correctness: -inf - -inf is NaN. Against the lowest finite number the scores of a row that
    // has seen no key, or none above -inf, give exp2(-inf) = 0.
    return fmaxf(row_reference[kRow] * scale_log2, -FLT_MAX);
  }

  // Tuning: in two loops. In one, ptxas (13.0) moves the wait for a product at the end of between()
  // behind half of the second row's MUFU.EX2: 2 % lost at head dim 128, causal.
  template <int kRow, class TensorS>
  CUTE_DEVICE void exponentiate(TensorS& tSrS, float scaled_reference) {
    constexpr int kRowValues = decltype(cute::size(tSrS))::value / 2;
    CUTE_UNROLL
    for (int j = 0; j < kRowValues; ++j) {
      float& value = tSrS(accumulator_value_of_row(kRow, j));
      value = exp2_approx(fmaf(value, scale_log2, -scaled_reference));
    }
    CUTE_UNROLL
    for (int j = 0; j < kRowValues; ++j) {
      float const value = tSrS(accumulator_value_of_row(kRow, j));
      // Correctness: the product with row_scale is fused by hand, because kernels that serve the
      // same sequence must agree to the bit, and the compiler may fuse it in one of them only.
      row_sum[kRow] = j == 0 ? fmaf(row_sum[kRow], row_scale[kRow], value) : row_sum[kRow] + value;
    }
  }
};

}  // namespace dash
