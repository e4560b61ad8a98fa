// The matrix products of a head dim whose dK and dV don't fit the registers as 64 key rows a
// warpgroup (192, 256). S and dP are not transposed: rows are queries, and each warpgroup has some
// of the keys; P and dS go through shared memory, because every warpgroup needs all of them to
// compute its share of the head dim in dK, dV and dQ.
#pragma once

#include <cute/tensor.hpp>

#include "common/element.cuh"
#include "config/bwd_config.hpp"

namespace dash::bwd {

using namespace cute;

template <BwdConfig kConfig>
struct WideProducts {
  using Element = dash::Element<kConfig.key.dtype>;
  static constexpr int kWarpgroups = kConfig.num_mma_warpgroups;
  static constexpr bool kDkvIsTransposed = kConfig.dkv_product == DkvProduct::kTransposed;
  using M = Int<kConfig.block_m>;
  using N = Int<kConfig.block_n>;
  using D = Int<kConfig.key.head_dim>;
  using ShareOfN = Int<kConfig.block_n / kWarpgroups>;
  using ShareOfD = Int<kConfig.key.head_dim / kWarpgroups>;
  using DqPart = Int<kConfig.key.head_dim / kWarpgroups / kConfig.dq_parts>;
  using SplitRows = Layout<Shape<Int<kWarpgroups>, _1, _1>>;
  using SplitColumns = Layout<Shape<_1, Int<kWarpgroups>, _1>>;
  static_assert(kConfig.block_m == 64, "one warpgroup computes all rows of S, dP and dQ");
  static_assert(kConfig.block_n % (16 * kWarpgroups) == 0, "P and dS are stored 16 keys at a time");
  static_assert(kConfig.dq_product == DqProduct::kColumnsSplit);
  static_assert(kDkvIsTransposed ? kConfig.key.head_dim % (64 * kWarpgroups) == 0
                                 : kConfig.block_n == 64,
                "a warpgroup computes whole 64-row products");

  // S = Q K^T and dP = dO V^T
  using MmaSdp = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<M, ShareOfN, D>, GMMA::Major::K,
                           GMMA::Major::K>(),
      SplitColumns{}));
  using AccumulatorShapeSdp = Shape<M, N>;

  // dV^T += dO^T P and dK^T += Q^T dS, or dV += P^T dO and dK += dS^T Q. Tuning: the latter reads
  // less shared memory: where N is 64, all of P^T is one 64-row operand.
  static constexpr auto make_dkv() {
    if constexpr (kDkvIsTransposed) {
      return make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<D, N, M>,
                                                 GMMA::Major::MN, GMMA::Major::K>(),
                            SplitRows{});
    } else {
      return make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<N, ShareOfD, M>,
                                                 GMMA::Major::K, GMMA::Major::MN>(),
                            SplitColumns{});
    }
  }
  using MmaDkv = decltype(make_dkv());
  using AccumulatorShapeDkv =
      cute::conditional_t<kDkvIsTransposed, Shape<D, N>, Shape<N, D>>;

  // dQ = dS K. A part of dQ is one instruction's columns in each warpgroup: accumulators of the
  // parts follow each other in MMA_N.
  using MmaDq = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<M, DqPart, N>, GMMA::Major::MN,
                           GMMA::Major::MN>(),
      SplitColumns{}));
};

}  // namespace dash::bwd
