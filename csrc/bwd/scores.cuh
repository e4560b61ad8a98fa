// Stage 2b, the arithmetic of one Q tile that is done per score: S^T -> P^T, dP^T -> dS^T, and the
// masks. Accumulators in registers; rows are keys, columns are queries.
// Invariant: what a mask hides is set, never multiplied away: P is exactly 0 there.
#pragma once

#include "bwd/traits.cuh"
#include "common/exp2.cuh"
#include "common/layout.cuh"
#include "common/tanh.cuh"

namespace dash::bwd {

// The lse_log2 or dpsum of the two queries that accumulator values i .. i + 3 belong to.
CUTE_DEVICE float2 column_pair(float const* values, int thread, int i) {
  return *reinterpret_cast<float2 const*>(values + accumulator_column(thread, i));
}

// S^T -> P^T = exp2(S^T * scale_log2 - lse_log2), in place.
template <class Acc>
CUTE_DEVICE void compute_plain_p(Acc& tSrS, float const* lse_log2, float scale_log2, int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tSrS); i += 4) {
    float2 const lse = column_pair(lse_log2, thread, i);
    CUTE_UNROLL
    for (int half = 0; half < 4; half += 2) {
      tSrS(i + half) = exp2_approx(fmaf(tSrS(i + half), scale_log2, -lse.x));
      tSrS(i + half + 1) = exp2_approx(fmaf(tSrS(i + half + 1), scale_log2, -lse.y));
    }
  }
}

// P of one score softcap * tanh(s * softmax_scale / softcap).
CUTE_DEVICE float capped_p(float s, float lse_log2, ScoreScale const& scores) {
  return exp2_approx(fmaf(tanh_of_scaled(s * scores.scale_log2), scores.softcap_log2, -lse_log2));
}

// dS of that score from `ds`, what it would be without softcap: times 1 - tanh^2.
// Tuning: tanh is found again from P, log2(P) = softcap_log2 * tanh - lse_log2: kept, it would need
// as many registers as P.
CUTE_DEVICE float capped_ds(float ds, float p, float lse_log2, ScoreScale const& scores) {
  float const tanh = (log2_approx(p) + lse_log2) * scores.softcap_inverse;
  // Correctness: rounding of lse, divided by a small softcap, may lead out of -1 .. 1.
  float const derivative = fmaxf(fmaf(-tanh, tanh, 1.f), 0.f);
  // Correctness: by selection, because the logarithm of a masked P is -inf.
  return p > 0.f ? ds * derivative : 0.f;
}

// compute_plain_p with softcap.
template <class Acc>
CUTE_DEVICE void compute_capped_p(Acc& tSrS, float const* lse_log2, ScoreScale const& scores,
                                  int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tSrS); ++i) {
    tSrS(i) = capped_p(tSrS(i), lse_log2[accumulator_column(thread, i)], scores);
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

// Scores of a key and a query that don't see each other become -inf, so that their P is exactly 0
// whatever the lse. Not where scores are capped: the tangent would make them finite again.
// Tuning: before the exponentials. A branch after them keeps the compiler from running them under
// the arithmetic of dS: 3 to 7 % of the whole backward (H200).
template <class Traits, class Acc>
CUTE_DEVICE void mask_scores(Acc& tSrS, TileMask mask, int thread) {
  int const warpgroup_row = (thread / 128) * 64;
  int const column = accumulator_column(thread, 0);
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    // This row's first visible column, counted from the thread's first one.
    int const row = warpgroup_row + accumulator_row(thread % 128, 2 * half);
    int const first = Traits::kIsCausal ? row - mask.diagonal + 1 - column : 0;
    int const begin = row < mask.num_keys ? first : Traits::kBlockM;
    CUTE_UNROLL
    for (int i = 2 * half; i < size(tSrS); i += 4) {
      CUTE_UNROLL
      for (int j = 0; j < 2; ++j) {
        tSrS(i + j) = accumulator_column(0, i + j) >= begin ? tSrS(i + j) : -INFINITY;
      }
    }
  }
}

// General kernels: P of a key and a query that don't see each other is 0.
template <class Acc>
CUTE_DEVICE void mask_p(Acc& tSrP, TileMask mask, int thread) {
  int const warpgroup_row = (thread / 128) * 64;
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
}

// What dS needs of each query, and of the scores.
struct DsTerms {
  float const* dpsum;
  float const* lse_log2;
  ScoreScale const& scores;
};

// dP^T -> dS^T = P^T o (dP^T - dpsum), in place.
template <class Acc>
CUTE_DEVICE void compute_plain_ds(Acc& tdPrdP, Acc const& tSrP, float const* dpsum, int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tdPrdP); i += 4) {
    float2 const sum = column_pair(dpsum, thread, i);
    CUTE_UNROLL
    for (int half = 0; half < 4; half += 2) {
      tdPrdP(i + half) = tSrP(i + half) * (tdPrdP(i + half) - sum.x);
      tdPrdP(i + half + 1) = tSrP(i + half + 1) * (tdPrdP(i + half + 1) - sum.y);
    }
  }
}

// compute_plain_ds with softcap.
template <class Acc>
CUTE_DEVICE void compute_capped_ds(Acc& tdPrdP, Acc const& tSrP, DsTerms const& terms,
                                   int thread) {
  CUTE_UNROLL
  for (int i = 0; i < size(tdPrdP); ++i) {
    int const column = accumulator_column(thread, i);
    float const ds = tSrP(i) * (tdPrdP(i) - terms.dpsum[column]);
    tdPrdP(i) = capped_ds(ds, tSrP(i), terms.lse_log2[column], terms.scores);
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
