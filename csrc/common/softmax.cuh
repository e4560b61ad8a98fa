// Online softmax over the two rows that a thread holds of a 64 x N WGMMA accumulator (rows r and
// r + 8; the four lanes of a quad share them). Registers only; the shuffles need whole warps.
//
// Any number near a row's maximum serves as its reference: it cancels in the end. So a row keeps
// the maximum of the first KV tile that it sees, and a later tile is exponentiated without a look
// at its scores (`exponentiate`). Only if the probabilities then turn out too large for the
// reference, which their sum shows, is the tile to be computed again and the reference to follow
// its maximum (`follow_maxima`, which is also for tiles with masked scores). Who cannot compute it
// again looks for the maxima of every tile (`update`).
// Invariant: O accumulated so far, and row_sum, are those of exp2(scale_log2 (s - row_reference)).
// tile_sum is this lane's part of the present tile's sum, row_sum of the sum of those before it.
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

struct OnlineSoftmax {
  // A lane's part of a tile's sum stays below this, and so does each probability: fp16 holds them,
  // and the sums in float lose nothing.
  static constexpr float kSumLimit = 8192.f;
  // In update(), a reference follows its maximum only when that has grown by this many powers of
  // two: until then nothing needs rescaling. (The lazy rescaling of FlashAttention-4.)
  static constexpr float kGrowthLog2 = 8.f;

  float scale_log2;        // softmax_scale * log2(e)
  float row_reference[2];  // a score near the row's maximum; -inf while no key was seen
  float row_sum[2];        // this lane's columns only, until finish()
  float tile_sum[2];

  CUTE_DEVICE explicit OnlineSoftmax(float scale_log2_) : scale_log2(scale_log2_) { reset(); }

  CUTE_DEVICE void reset() {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      row_reference[row] = -INFINITY;
      row_sum[row] = 0.f;
      tile_sum[row] = 0.f;
    }
  }

  // Scores to probabilities, by the references as they are. `between()` is called when the first
  // row is done; `report()` if they are too large, or NaN, and the tile is to be computed again.
  // Tuning: asked row by row, because ptxas (13.0) then leaves the exponentials in front of the
  // product that between() waits for: 7 % of the forward with two warpgroups (head dim 128, full,
  // H200). Three fill each other's gaps, and lose 3 % by it.
  template <bool kReportsByRow, class TensorS, class Between, class Report>
  CUTE_DEVICE void exponentiate(TensorS& tSrS, Between const& between, Report const& report) {
    exponentiate_row<0>(tSrS);
    if (kReportsByRow && !(tile_sum[0] < kSumLimit)) {
      report();
    }
    between();
    exponentiate_row<1>(tSrS);
    if (!((kReportsByRow || tile_sum[0] < kSumLimit) && tile_sum[1] < kSumLimit)) {
      report();
    }
  }

  // Scores to probabilities, the references after the maxima where those have grown by much, and O
  // rescaled then. `between()` is called when the first row is done; after it O may be touched.
  // Tuning: the special-function unit is the limit, so everything else is to run under its
  // exponentials: the second row's maximum under those of the first row, and what follows between()
  // under those of the second.
  template <class TensorS, class TensorO, class Between>
  CUTE_DEVICE void update(TensorS& tSrS, TensorO& tOrO, Between const& between) {
    float const scale_0 = follow_maximum<0>(tSrS, kGrowthLog2, -INFINITY);
    exponentiate_row<0>(tSrS);
    // Tuning: -inf, but not before the first row's maximum is known. Without it ptxas (13.0)
    // computes both maxima first: in the SASS of the loop, 64 FMNMX before the first MUFU.EX2.
    float const scale_1 =
        follow_maximum<1>(tSrS, kGrowthLog2, -fabsf(row_reference[0] * scale_log2) - INFINITY);
    // Tuning: a vote, because a branch that is uniform in the eyes of the compiler leaves the
    // descriptors of the products in uniform registers; otherwise R2UR in the SASS, and 4 % lost.
    bool const rescales = __any_sync(0xffffffffu, scale_0 != 1.f || scale_1 != 1.f);
    // Tuning: the branch keeps ptxas (13.0) from moving the first row's exponentials behind the
    // caller's wait, and, because it could change the second row's reference, that row's in front
    // of it: MUFU after and before WARPGROUP.DEPBAR.LE gsb0, 0x0. It is seldom taken.
    if (rescales) {
      asm volatile("nanosleep.u32 0;\n add.f32 %0, %0, 0f00000000;" : "+f"(row_reference[1]));
    }
    between();
    if (rescales) {
      rescale(tOrO, {scale_0, scale_1});
    }
    exponentiate_row<1>(tSrS);
    commit();
  }

  // Moves the references up to the tile's maxima. Returns what O is to be multiplied by.
  template <class TensorS>
  CUTE_DEVICE cute::array<float, 2> follow_maxima(TensorS const& tSrS) {
    return {follow_maximum<0>(tSrS, 0.f, -INFINITY), follow_maximum<1>(tSrS, 0.f, -INFINITY)};
  }

  template <class TensorO>
  CUTE_DEVICE static void rescale(TensorO& tOrO, cute::array<float, 2> const& row_scale) {
    CUTE_UNROLL
    for (int i = 0; i < decltype(cute::size(tOrO))::value; ++i) {
      tOrO(i) *= row_scale[accumulator_row_index(i)];
    }
  }

  // The present tile counts.
  CUTE_DEVICE void commit() {
    // Correctness: neither this sum nor the product in follow_maximum is left to the compiler to
    // fuse: kernels that serve the same sequence must agree to the bit.
    row_sum[0] = __fadd_rn(row_sum[0], tile_sum[0]);
    row_sum[1] = __fadd_rn(row_sum[1], tile_sum[1]);
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
  // Half of the comparisons start from `minus_infinity`, and so not before it is known.
  // Tuning: four chains, because one comparison waits four cycles for the one before it.
  template <int kRow, class TensorS>
  CUTE_DEVICE float row_max(TensorS const& tSrS, float minus_infinity) const {
    constexpr int kRowValues = decltype(cute::size(tSrS))::value / 2;
    float chain[4] = {row_reference[kRow], -INFINITY, minus_infinity, minus_infinity};
    CUTE_UNROLL
    for (int j = 0; j < kRowValues; ++j) {
      chain[j % 4] = fmaxf(chain[j % 4], tSrS(accumulator_value_of_row(kRow, j)));
    }
    float maximum = fmaxf(fmaxf(chain[0], chain[2]), fmaxf(chain[1], chain[3]));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
    return fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
  }

  // Moves a row's reference to its maximum if that is higher by more than min_growth powers of two.
  // Returns what its O is to be multiplied by, 1 if it does not move.
  template <int kRow, class TensorS>
  CUTE_DEVICE float follow_maximum(TensorS const& tSrS, float min_growth, float minus_infinity) {
    float const maximum = row_max<kRow>(tSrS, minus_infinity);
    // NaN, which grows nothing, if the row has seen no key yet.
    float const growth = (maximum - row_reference[kRow]) * scale_log2;
    bool const has_grown = growth > min_growth;
    float const row_scale = has_grown ? exp2_approx(-growth) : 1.f;
    row_reference[kRow] = has_grown ? maximum : row_reference[kRow];
    row_sum[kRow] = __fmul_rn(row_sum[kRow], row_scale);
    return row_scale;
  }

  template <int kRow, class TensorS>
  CUTE_DEVICE void exponentiate_row(TensorS& tSrS) {
    constexpr int kRowValues = decltype(cute::size(tSrS))::value / 2;
    // Correctness: -inf - -inf is NaN. Against the lowest finite number the scores of a row that
    // has seen no key give exp2(-inf) = 0 if it sees none here either, or else infinity.
    float const scaled_reference = fmaxf(row_reference[kRow] * scale_log2, -FLT_MAX);
    CUTE_UNROLL
    for (int j = 0; j < kRowValues; ++j) {
      float& value = tSrS(accumulator_value_of_row(kRow, j));
      value = exp2_approx(fmaf(value, scale_log2, -scaled_reference));
    }
    tile_sum[kRow] = tSrS(accumulator_value_of_row(kRow, 0));
    CUTE_UNROLL
    for (int j = 1; j < kRowValues; ++j) {
      tile_sum[kRow] += tSrS(accumulator_value_of_row(kRow, j));
    }
  }
};

}  // namespace dash
