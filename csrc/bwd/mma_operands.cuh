// Stage 2b, what the five products of a tile read: shared memory as tensors, and as operands of one
// MMA warpgroup.
#pragma once

#include "bwd/traits.cuh"

namespace dash::bwd {

// Operands of the five products as one warpgroup sees them, made once per CTA.
template <class K, class V, class Q, class Do, class Dot, class Qt, class Ds, class Kt>
struct StepOperands {
  K tSrK;              // A of S^T
  V tdPrV;             // A of dP^T
  Q tSrQ;              // B of S^T                          (..., PIPE)
  Do tdPrdO;           // B of dP^T                         (..., PIPE)
  Dot tdVrdO;          // B of dV                           (..., PIPE)
  Qt tdKrQ;            // B of dK                           (..., PIPE)
  Ds tdQrdS;           // A of dQ                           (..., PIPE)
  Kt tdQrK;            // B of dQ
};

template <class... Operands>
StepOperands(Operands...) -> StepOperands<Operands...>;

// Shared memory as tensors; those that end in t have rows and columns exchanged.
template <class Traits>
struct SmemTensors {
  typename Traits::SharedStorage& smem;

  CUTE_DEVICE auto k() const { return view<typename Traits::SmemLayoutK>(smem.k); }
  CUTE_DEVICE auto kt() const { return view<typename Traits::SmemLayoutKt>(smem.k); }
  CUTE_DEVICE auto v() const { return view<typename Traits::SmemLayoutV>(smem.v); }
  CUTE_DEVICE auto q() const { return view<typename Traits::SmemLayoutQ>(smem.q); }
  CUTE_DEVICE auto qt() const { return view<typename Traits::SmemLayoutQt>(smem.q); }
  CUTE_DEVICE auto dout() const { return view<typename Traits::SmemLayoutDo>(smem.dout); }
  CUTE_DEVICE auto dout_t() const { return view<typename Traits::SmemLayoutDot>(smem.dout); }
  CUTE_DEVICE auto ds() const { return view<typename Traits::SmemLayoutDs>(smem.ds); }
  CUTE_DEVICE auto ds_t() const { return view<typename Traits::SmemLayoutDst>(smem.ds); }

 private:
  template <class Layout, class Element>
  CUTE_DEVICE static auto view(Element* data) {
    return make_tensor(make_smem_ptr(data), Layout{});
  }
};

// First thread of this thread's warpgroup.
// Tuning: operands in shared memory are descriptors, the same for all threads of a warpgroup. The
// index is made warp-uniform so that they live in uniform registers.
CUTE_DEVICE int uniform_first_thread(int thread) {
  return __shfl_sync(0xffffffffu, thread / 128, 0) * 128;
}

template <class Traits>
  requires(!Traits::kIsWide)
CUTE_DEVICE auto make_step_operands(typename Traits::SharedStorage& smem, int thread) {
  SmemTensors<Traits> const tensors{smem};
  int const first_thread = uniform_first_thread(thread);
  auto const sdp = typename Traits::MmaSdp{}.get_slice(first_thread);
  auto const dkv = typename Traits::MmaDkv{}.get_slice(first_thread);
  auto const dq = typename Traits::MmaDq{}.get_slice(first_thread);
  return StepOperands{sdp.partition_fragment_A(tensors.k()),
                      sdp.partition_fragment_A(tensors.v()),
                      sdp.partition_fragment_B(tensors.q()),
                      sdp.partition_fragment_B(tensors.dout()),
                      dkv.partition_fragment_B(tensors.dout_t()),
                      dkv.partition_fragment_B(tensors.qt()),
                      dq.partition_fragment_A(tensors.ds()),
                      dq.partition_fragment_B(tensors.kt())};
}

}  // namespace dash::bwd
