// Takes SMs away from other kernels for a while: what another process or library would do.
#pragma once

struct CUstream_st;  // *: what cudaStream_t is

namespace dash::selftest {

struct OccupySms {
  int* flags;  // [0]: the CTAs end as soon as it is not 0; [1]: each adds 1 when it runs
  int num_ctas;
  int microseconds;  // they end after this time at the latest
};

// One CTA an SM, each with all of the SM's shared memory. Launches on `stream`, does not wait.
void occupy_sms(OccupySms const& occupy, CUstream_st* stream);

}  // namespace dash::selftest
