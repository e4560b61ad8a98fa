// Stage 2b, the arithmetic of one Q tile that is done per score: S^T -> P^T, dP^T -> dS^T, and the
// masks. Accumulators in registers; rows are keys, columns are queries.
// Invariant: what a mask hides is set, never multiplied away: P is exactly 0 there.
#pragma once

#include "bwd/traits.cuh"
#include "common/exp2.cuh"
#include "common/layout.cuh"
#include "common/tanh.cuh"

namespace dash::bwd {

// S^T -> P^T = exp2(S^T * scale_log2 - lse_log2), in place.
template <class Acc>
CUTE_DEVICE void compute_plain_p(Acc& tSrS, float const* lse_log2, float scale_log2, int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tSrS); i += 4) {
    float2 const lse =
        *reinterpret_cast<float2 const*>(lse_log2 + accumulator_column(thread, i));
    CUTE_UNROLL
    for (int half = 0; half < 4; half += 2) {
      tSrS(i + half) = exp2_approx(fmaf(tSrS(i + half), scale_log2, -lse.x));
      tSrS(i + half + 1) = exp2_approx(fmaf(tSrS(i + half + 1), scale_log2, -lse.y));
    }
  }
}

// The same with scores softcap * tanh(S^T * softmax_scale / softcap).
template <class Acc>
CUTE_DEVICE void compute_capped_p(Acc& tSrS, float const* lse_log2, ScoreScale const& scores,
                                  int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tSrS); ++i) {
    float const tanh = tanh_of_scaled(tSrS(i) * scores.scale_log2);
    tSrS(i) = exp2_approx(
        fmaf(tanh, scores.softcap_log2, -lse_log2[accumulator_column(thread, i)]));
  }
}

template <class Traits, class Acc>
CUTE_DEVICE void compute_p(Acc& tSrS, float const* lse_log2, ScoreScale const& scores,
                           int thread) {
  if (Traits::kIsGeneral && scores.softcap_log2 > 0.f) {
    compute_capped_p(tSrS, lse_log2, scores, thread);
  } else {
    compute_plain_p(tSrS, lse_log2, scores.scale_log2, thread);
  }
}

// P of a key and a query that don't see each other is 0.
// Correctness: set after the exponential, because a zero-filled tail row scores 0, and
// exp2(0 - lse_log2) overflows for a very negative lse.
template <class Traits, class Acc>
CUTE_DEVICE void mask_p(Acc& tSrP, TileMask mask, int thread) {
  int const warpgroup_row = (thread / 128) * 64;
  if constexpr (Traits::kIsGeneral) {
    int const column = accumulator_column(thread, 0);
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      // This row's visible columns, counted from the thread's first one: begin .. end - 1.
      int const row = warpgroup_row + accumulator_row(thread % 128, 2 * half);
      int const begin = row - mask.diagonal + 1 - column;
      int const end = row < mask.num_keys ? row - mask.first + 1 - column : 0;
      CUTE_UNROLL
      for (int i = 2 * half; i < size(tSrP); i += 4) {
        CUTE_UNROLL
        for (int j = 0; j < 2; ++j) {
          int const place = accumulator_column(0, i + j);
          tSrP(i + j) = place >= begin && place < end ? tSrP(i + j) : 0.f;
        }
      }
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < size(tSrP); ++i) {
      int const row = warpgroup_row + accumulator_row(thread % 128, i);
      int const limit = min(mask.num_keys, accumulator_column(thread, i) + mask.diagonal);
      tSrP(i) = row < limit ? tSrP(i) : 0.f;
    }
  }
}

// Full mask: dS of keys past seqlen_k is 0. Their P may be anything, it reaches only dV rows that
// are not stored. Tuning: packed pairs, after P and dP are rounded, because masking P spills in the
// 80-row tile.
template <class RegisterDs>
CUTE_DEVICE void mask_tail_ds(RegisterDs& rdS, int num_keys, int thread) {
  Tensor pairs = recast<uint32_t>(rdS);
  int const warpgroup_row = (thread / 128) * 64;
  CUTE_UNROLL
  for (int i = 0; i < size(pairs); ++i) {
    int const row = warpgroup_row + accumulator_row(thread % 128, 2 * i);
    pairs(i) = row < num_keys ? pairs(i) : 0u;
  }
}

// dP^T -> dS^T = P^T o (dP^T - dpsum), in place.
template <class Acc>
CUTE_DEVICE void compute_plain_ds(Acc& tdPrdP, Acc const& tSrP, float const* dpsum, int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tdPrdP); i += 4) {
    float2 const sum = *reinterpret_cast<float2 const*>(dpsum + accumulator_column(thread, i));
    CUTE_UNROLL
    for (int half = 0; half < 4; half += 2) {
      tdPrdP(i + half) = tSrP(i + half) * (tdPrdP(i + half) - sum.x);
      tdPrdP(i + half + 1) = tSrP(i + half + 1) * (tdPrdP(i + half + 1) - sum.y);
    }
  }
}

// What dS needs of each query, and of the scores.
struct DsTerms {
  float const* dpsum;
  float const* lse_log2;
  ScoreScale const& scores;
};

// The same times the derivative of the capped score, 1 - tanh^2.
// Tuning: tanh is found again from P, log2(P) = softcap_log2 * tanh - lse_log2: kept, it would need
// as many registers as P.
template <class Acc>
CUTE_DEVICE void compute_capped_ds(Acc& tdPrdP, Acc const& tSrP, DsTerms const& terms,
                                   int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tdPrdP); ++i) {
    int const column = accumulator_column(thread, i);
    float const tanh =
        (log2_approx(tSrP(i)) + terms.lse_log2[column]) * terms.scores.softcap_inverse;
    float const ds = tSrP(i) * (tdPrdP(i) - terms.dpsum[column]);
    // Correctness: by selection, because the logarithm of a masked P is -inf.
    tdPrdP(i) = tSrP(i) > 0.f ? fmaf(-tanh * tanh, ds, ds) : 0.f;
  }
}

template <class Traits, class Acc>
CUTE_DEVICE void compute_ds(Acc& tdPrdP, Acc const& tSrP, DsTerms const& terms, int thread) {
  if (Traits::kIsGeneral && terms.scores.softcap_log2 > 0.f) {
    compute_capped_ds(tdPrdP, tSrP, terms, thread);
  } else {
    compute_plain_ds(tdPrdP, tSrP, terms.dpsum, thread);
  }
}

}  // namespace dash::bwd
