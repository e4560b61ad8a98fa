// Stage 2b at head dims 192 and 256, the arithmetic of one Q tile that is done per score: S -> P,
// dP -> dS, and the masks, as in scores.cuh. Accumulators in registers; rows are queries, two a
// thread, columns are keys.
// Invariant: what a mask hides is set, never multiplied away: P is exactly 0 there.
#pragma once

#include "bwd/scores.cuh"

namespace dash::bwd {

// Where this thread's values of a warpgroup's accumulator of S or dP lie in the tile. Value i is in
// row(half_of(i)).
template <class Traits>
struct ScorePlace {
  int thread;

  static constexpr int kKeys = Traits::kBlockN / Traits::kNumMmaWarpgroups;
  CUTE_DEVICE static constexpr int half_of(int i) { return (i / 2) % 2; }
  CUTE_DEVICE int row(int half) const { return accumulator_row(thread % 128, 2 * half); }
  CUTE_DEVICE int column(int i) const {
    return thread / 128 * kKeys + accumulator_column(thread % 128, i);
  }
};

// S -> P = exp2(S * scale_log2 - lse_log2), in place; with softcap as in scores.cuh.
template <class Traits, class Acc>
CUTE_DEVICE void compute_p_by_rows(Acc& tSrS, float const* lse_log2, ScoreScale const& scores,
                                   int thread) {
  using Place = ScorePlace<Traits>;
  Place const at{thread};
  float const lse[2] = {lse_log2[at.row(0)], lse_log2[at.row(1)]};
  if (Traits::kIsGeneral && scores.softcap_log2 > 0.f) {
    CUTE_UNROLL
    for (int i = 0; i < size(tSrS); ++i) {
      tSrS(i) = capped_p(tSrS(i), lse[Place::half_of(i)], scores);
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < size(tSrS); ++i) {
      tSrS(i) = exp2_approx(fmaf(tSrS(i), scores.scale_log2, -lse[Place::half_of(i)]));
    }
  }
}

// P of a query and a key that don't see each other, or of a key past the end, is 0. Unlike in
// scores.cuh under a full mask too: P reaches products of other warpgroups.
// Correctness: set after the exponential, because a zero-filled tail key scores 0, and
// exp2(0 - lse_log2) overflows for a very negative lse.
template <class Traits, class Acc>
CUTE_DEVICE void mask_p_by_rows(Acc& tSrP, TileMask mask, int thread) {
  using Place = ScorePlace<Traits>;
  Place const at{thread};
  // A row's visible keys, counted from the thread's first column: begin .. end - 1.
  int begin[2] = {};
  int end[2];
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    end[half] = mask.num_keys - at.column(0);
    if constexpr (Traits::kIsGeneral || Traits::kIsCausal) {
      end[half] = min(end[half], at.row(half) + mask.diagonal - at.column(0));
    }
    if constexpr (Traits::kIsGeneral) {
      begin[half] = at.row(half) + mask.first - at.column(0);
    }
  }
  CUTE_UNROLL
  for (int i = 0; i < size(tSrP); ++i) {
    int const half = Place::half_of(i);
    int const column = accumulator_column(0, i);
    tSrP(i) = column >= begin[half] && column < end[half] ? tSrP(i) : 0.f;
  }
}

// dP -> dS = P o (dP - dpsum), in place; with softcap as in scores.cuh.
template <class Traits, class Acc>
CUTE_DEVICE void compute_ds_by_rows(Acc& tdPrdP, Acc const& tSrP, DsTerms const& terms,
                                    int thread) {
  using Place = ScorePlace<Traits>;
  Place const at{thread};
  float const sum[2] = {terms.dpsum[at.row(0)], terms.dpsum[at.row(1)]};
  CUTE_UNROLL
  for (int i = 0; i < size(tdPrdP); ++i) {
    tdPrdP(i) = tSrP(i) * (tdPrdP(i) - sum[Place::half_of(i)]);
  }
  if (Traits::kIsGeneral && terms.scores.softcap_log2 > 0.f) {
    float const lse[2] = {terms.lse_log2[at.row(0)], terms.lse_log2[at.row(1)]};
    CUTE_UNROLL
    for (int i = 0; i < size(tdPrdP); ++i) {
      tdPrdP(i) = capped_ds(tdPrdP(i), tSrP(i), lse[Place::half_of(i)], terms.scores);
    }
  }
}

}  // namespace dash::bwd
