// The turnstile's own GPU test: a fold that comes out differently in any other order.
#pragma once

struct CUstream_st;  // *: what cudaStream_t is

namespace dash::selftest {

inline constexpr int kFoldWidth = 256;  // floats of a chain

struct SemaphoreFold {
  float* chains;   // (num_chains, kFoldWidth), start values in, folded values out
  int* semaphore;  // (num_chains, 8), zeroes
  int num_chains;
  int contributors;  // CTAs that fold into each chain, in turn order: x = x / 2 + (turn + 1)
  int jitter;        // > 0: contributors are delayed by pseudo-random times seeded with it
};

// One CTA per (turn, chain), turn slowest. Launches on `stream`, does not wait.
void semaphore_fold(SemaphoreFold const& fold, CUstream_st* stream);

}  // namespace dash::selftest
