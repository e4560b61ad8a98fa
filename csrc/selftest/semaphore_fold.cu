// The turnstile under test as the backward uses it: a contributor halves the chain through generic
// loads and stores, then adds its number with a bulk reduce-add, so that both proxies cross the
// hand-over. Each CTA takes its (turn, chain) from a ticket, as the backward does.
#include <cutlass/arch/barrier.h>

#include "common/bulk_reduce.cuh"
#include "common/check.hpp"
#include "common/semaphore.cuh"
#include "selftest/semaphore_fold.hpp"

namespace dash::selftest {
namespace {

constexpr int kSemaphoreStride = 8;

__device__ void delay(int jitter, int ticket) {
  if (jitter > 0) {
    uint32_t const mixed = (static_cast<uint32_t>(ticket) * 2654435761u) ^
                           (static_cast<uint32_t>(jitter) * 40503u);
    __nanosleep((mixed >> 16) % 4096);
  }
}

// One warp. Lane 0 holds the turn; __syncwarp carries its acquire to the other lanes and their
// stores to its release.
__global__ void fold_kernel(SemaphoreFold fold, int* ticket_counter) {
  __shared__ alignas(128) float addend[kFoldWidth];
  int const lane = threadIdx.x;
  int ticket = lane == 0 ? atomicAdd(ticket_counter, 1) : 0;
  ticket = __shfl_sync(0xffffffffu, ticket, 0);
  int const turn = ticket / fold.num_chains;
  int const chain = ticket % fold.num_chains;
  float* const values = fold.chains + int64_t{chain} * kFoldWidth;
  int* const counter = fold.semaphore + int64_t{chain} * kSemaphoreStride;
  for (int i = lane; i < kFoldWidth; i += 32) {
    addend[i] = static_cast<float>(turn + 1);
  }
  cutlass::arch::fence_view_async_shared();
  delay(fold.jitter, ticket);
  if (lane == 0) {
    semaphore::wait_turn(counter, turn);
  }
  __syncwarp();
  for (int i = lane; i < kFoldWidth; i += 32) {
    values[i] *= 0.5f;
  }
  // Correctness: each lane orders its generic stores before the copy engine's sum.
  semaphore::fence_generic_to_async();
  __syncwarp();
  if (lane == 0) {
    bulk::reduce_add(values, addend, sizeof(addend));
    bulk::commit();
    bulk::wait_complete();
    semaphore::pass_turn(counter);
  }
}

}  // namespace

void semaphore_fold(SemaphoreFold const& fold, cudaStream_t stream) {
  int* ticket_counter = nullptr;
  DASH_CUDA_CHECK(cudaMallocAsync(&ticket_counter, sizeof(int), stream));
  DASH_CUDA_CHECK(cudaMemsetAsync(ticket_counter, 0, sizeof(int), stream));
  fold_kernel<<<fold.num_chains * fold.contributors, 32, 0, stream>>>(fold, ticket_counter);
  DASH_CUDA_CHECK(cudaGetLastError());
  DASH_CUDA_CHECK(cudaFreeAsync(ticket_counter, stream));
}

}  // namespace dash::selftest
