// BwdTraits: what one BwdConfig and one schedule policy mean in CuTe terms. Matrix products, shared
// memory layouts, TMA descriptors, and the shared storage of the main kernel. No code runs here.
#pragma once

#include <cute/tensor.hpp>

#include "bwd/params.hpp"
#include "bwd/traits_wide.cuh"
#include "bwd/work.cuh"
#include "common/element.cuh"
#include "common/pipeline.cuh"
#include "common/tma_boxes.cuh"
#include "common/ragged_tma.cuh"
#include "common/warp_role.cuh"
#include "config/bwd_config.hpp"
#include "schedule/policy.hpp"

namespace dash::bwd {

using namespace cute;

// The product dQ = dS K of one tile, its operand majors and how the warpgroups share it.
template <class Element, BwdConfig kConfig>
constexpr auto make_dq_mma() {
  using M = Int<kConfig.block_m>;
  using N = Int<kConfig.block_n>;
  using D = Int<kConfig.key.head_dim>;
  if constexpr (kConfig.dq_product == DqProduct::kColumnsSplit) {
    using HalfD = Int<kConfig.key.head_dim / 2>;
    return make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<M, HalfD, N>,
                                               GMMA::Major::K, GMMA::Major::MN>(),
                          Layout<Shape<_1, _2, _1>>{});
  } else {
    return make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<M, D, N>,
                                               GMMA::Major::K, GMMA::Major::MN>(),
                          Layout<Shape<_2, _1, _1>>{});
  }
}

// From a product of q and k to the exponent of 2.
struct ScoreScale {
  float scale_log2;       // softmax_scale * log2(e); with softcap to the argument of tanh_of_scaled
  float softcap_log2;     // softcap * log2(e); 0: none
  float softcap_inverse;  // 1 / softcap_log2
};

// The matrix products where the registers hold 64 rows of dK and dV a warpgroup.
template <BwdConfig kConfig>
struct SwappedProducts {
  using Element = dash::Element<kConfig.key.dtype>;
  using AccumulatorShapeSdp = Shape<Int<kConfig.block_n>, Int<kConfig.block_m>>;
  using AccumulatorShapeDkv = Shape<Int<kConfig.block_n>, Int<kConfig.key.head_dim>>;
  using TileShapeSdp =
      Shape<Int<kConfig.block_n>, Int<kConfig.block_m>, Int<kConfig.key.head_dim>>;
  using TileShapeDkv =
      Shape<Int<kConfig.block_n>, Int<kConfig.key.head_dim>, Int<kConfig.block_m>>;
  static constexpr bool kDkvIsTransposed = false;
  static_assert(kConfig.block_n == 64 * kConfig.num_mma_warpgroups && kConfig.dq_parts == 1);

  // S^T = K Q^T and dP^T = V dO^T: transposed, so that P^T and dS^T are register A operands next.
  using MmaSdp =
      decltype(make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, TileShapeSdp,
                                                   GMMA::Major::K, GMMA::Major::K>(),
                              Layout<Shape<_2, _1, _1>>{}));
  // dV += P^T dO and dK += dS^T Q
  using MmaDkv =
      decltype(make_tiled_mma(GMMA::rs_op_selector<Element, Element, float, TileShapeDkv,
                                                   GMMA::Major::K, GMMA::Major::MN>(),
                              Layout<Shape<_2, _1, _1>>{}));
  using MmaDq = decltype(make_dq_mma<Element, kConfig>());
};

template <BwdConfig kConfig_, class Policy_>
struct BwdTraits {
  static_assert(schedule::Policy<Policy_>, "the second argument is a schedule policy");
  static constexpr BwdConfig kConfig = kConfig_;
  using Policy = Policy_;
  using Element = dash::Element<kConfig.key.dtype>;

  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kHeadDim = kConfig.key.head_dim;
  static constexpr int kHeadDimV = kHeadDim;  // see NarrowV
  static constexpr int kStagesQ = kConfig.stages_q;
  static constexpr int kStagesDo = kConfig.stages_do;
  static constexpr int kStagesDs = kConfig.stages_ds;
  static constexpr int kStagesDq = kConfig.stages_dq;
  static_assert(kStagesDq == 1 || kStagesDq == kNumDqWriters, "see the barriers of smem.dq");
  static_assert(kStagesDs == 2 || kConfig.dkv_product != DkvProduct::kRowsSplit,
                "see wait_for_ds: only the wide step knows how to share one stage");
  static constexpr int kStagesWork = 2;
  static constexpr int kNumMmaWarpgroups = kConfig.num_mma_warpgroups;
  static constexpr int kNumMmaThreads = 128 * kNumMmaWarpgroups;
  static constexpr int kNumMmaWarps = 4 * kNumMmaWarpgroups;
  static constexpr int kNumThreads = kConfig.num_threads();
  static constexpr bool kIsDense = kConfig.key.is_dense();
  static constexpr bool kIsGeneral = kConfig.key.variant == Variant::kGeneral;
  static constexpr bool kIsCausal = kConfig.key.variant == Variant::kCausal;
  // The load lane publishes each Q tile's mask with q. Else all of a work tile's are the same.
  static constexpr bool kPublishesMask = kConfig.key.variant != Variant::kFull;
  static constexpr bool kIsInTurns = kConfig.overlap == Overlap::kInTurns;
  static_assert(!kIsInTurns || (kNumMmaWarpgroups == 2 && kStagesDs == 2),
                "see mma_step_in_turns.cuh");

  // Floats of a dQ tile that one MMA warpgroup computes, in a part and in all, and a thread of it.
  static constexpr int kDqParts = kConfig.dq_parts;
  static constexpr int kDqFloatsPerWarpgroup = kBlockM * kHeadDim / kNumMmaWarpgroups;
  static constexpr int kDqFloatsPerPart = kDqFloatsPerWarpgroup / kDqParts;
  static constexpr int kDqFloatsPerThread = kDqFloatsPerWarpgroup / 128;
  static_assert(kDqFloatsPerThread % 4 == 0, "dQ moves in 16-byte pieces");
  static_assert(kDqParts == 1 || kStagesDq == 1, "see hand_over_dq");

  // P and dS go through shared memory, in products of their own.
  static constexpr bool kIsWide = kConfig.dkv_product != DkvProduct::kRowsSplit;
  using Products =
      cute::conditional_t<kIsWide, WideProducts<kConfig>, SwappedProducts<kConfig>>;
  using MmaSdp = typename Products::MmaSdp;
  using MmaDkv = typename Products::MmaDkv;
  using MmaDq = typename Products::MmaDq;
  // Floats of a dK or dV tile, in all and of a thread.
  static constexpr int kDkvFloats = kBlockN * kHeadDim;
  static constexpr int kDkvFloatsPerThread = kDkvFloats / kNumMmaThreads;
  static constexpr bool kDkvIsTransposed = Products::kDkvIsTransposed;
  using AccumulatorShapeSdp = typename Products::AccumulatorShapeSdp;
  using AccumulatorShapeDkv = typename Products::AccumulatorShapeDkv;
  using TileShapeDq = Shape<Int<kBlockM>, Int<kHeadDim>>;
  using PartShapeDq =
      decltype(make_shape(get<0>(TileShapeDq{}), get<1>(TileShapeDq{}) / Int<kDqParts>{}));

  // The widest swizzle whose columns divide what one product reads of a row.
  template <int kColumns>
  using SmemAtom = cute::conditional_t<
      box_columns(kColumns) == 64, GMMA::Layout_K_SW128_Atom<Element>,
      cute::conditional_t<box_columns(kColumns) == 32, GMMA::Layout_K_SW64_Atom<Element>,
                          GMMA::Layout_K_SW32_Atom<Element>>>;
  template <int kRows, int kColumns, int kStages>
  using SmemRing = decltype(tile_to_shape(SmemAtom<kColumns>{},
                                          Shape<Int<kRows>, Int<kColumns>, Int<kStages>>{}));
  // The same memory with rows and columns exchanged.
  template <int kRows, int kColumns, int kStages>
  using SmemRingTransposed = decltype(composition(
      SmemRing<kRows, kColumns, kStages>{},
      Layout<Shape<Int<kColumns>, Int<kRows>, Int<kStages>>,
             Stride<Int<kRows>, _1, Int<kRows * kColumns>>>{}));

  using SmemLayoutQ = SmemRing<kBlockM, kHeadDim, kStagesQ>;              // (BLK_M, D, PIPE)
  using SmemLayoutQt = SmemRingTransposed<kBlockM, kHeadDim, kStagesQ>;   // (D, BLK_M, PIPE)
  using SmemLayoutDo = SmemRing<kBlockM, kHeadDim, kStagesDo>;            // (BLK_M, D, PIPE)
  using SmemLayoutDot = SmemRingTransposed<kBlockM, kHeadDim, kStagesDo>; // (D, BLK_M, PIPE)
  using SmemLayoutV = decltype(tile_to_shape(SmemAtom<kHeadDim>{},
                                             Shape<Int<kBlockN>, Int<kHeadDim>>{}));  // (BLK_N, D)
  // The product dQ reads each warpgroup's columns of K by themselves, if columns are split.
  static constexpr int kColumnsOfK =
      kConfig.dq_product == DqProduct::kColumnsSplit ? kHeadDim / kNumMmaWarpgroups : kHeadDim;
  using SmemLayoutK = decltype(tile_to_shape(SmemAtom<kColumnsOfK>{},
                                             Shape<Int<kBlockN>, Int<kHeadDim>>{}));  // (BLK_N, D)
  using SmemLayoutKt = decltype(composition(
      SmemLayoutK{}, Layout<Shape<Int<kHeadDim>, Int<kBlockN>>,
                            Stride<Int<kBlockN>, _1>>{}));                 // (D, BLK_N)
  // dS; wide: P too, stage 2 s beside dS in stage 2 s + 1, and there queries are contiguous.
  static constexpr int kTilesDs = (kIsWide ? 2 : 1) * kStagesDs;
  static constexpr int kRowsDs = kIsWide ? kBlockN : kBlockM;
  static constexpr int kColumnsDs = kIsWide ? kBlockM : kBlockN;
  using RingDs = SmemRing<kRowsDs, kColumnsDs, kTilesDs>;
  using RingDsTransposed = SmemRingTransposed<kRowsDs, kColumnsDs, kTilesDs>;
  using SmemLayoutDs =
      cute::conditional_t<kIsWide, RingDsTransposed, RingDs>;              // (BLK_M, BLK_N, PIPE)
  using SmemLayoutDst =
      cute::conditional_t<kIsWide, RingDs, RingDsTransposed>;              // (BLK_N, BLK_M, PIPE)

  // A tensor in global memory, 64-bit strides: (seqlen, head_dim, heads, batch), or what
  // common/ragged_tma.cuh makes of it. TMA fills columns between its head dim and kHeadDim with 0.
  using GmemShape =
      cute::conditional_t<kIsDense, Shape<int32_t, int32_t, int32_t, int32_t>, RaggedShape>;
  using GmemStride =
      cute::conditional_t<kIsDense, Stride<int64_t, _1, int64_t, int64_t>, RaggedStride>;
  using GmemTensor =
      decltype(make_tensor(make_gmem_ptr(static_cast<Element const*>(nullptr)),
                           make_layout(GmemShape{}, GmemStride{})));
  using SmemTileM = decltype(tile_to_shape(SmemAtom<kHeadDim>{},
                                           Shape<Int<kBlockM>, Int<kHeadDim>>{}));  // (BLK_M, D)
  using TmaM = decltype(make_tma_copy(SM90_TMA_LOAD{}, GmemTensor{}, SmemTileM{}));
  using TmaK = decltype(make_tma_copy(SM90_TMA_LOAD{}, GmemTensor{}, SmemLayoutK{}));
  using TmaV = decltype(make_tma_copy(SM90_TMA_LOAD{}, GmemTensor{}, SmemLayoutV{}));

  static constexpr int kBoxColumns = box_columns(kHeadDim);      // of q, dout and v
  static constexpr int kBoxColumnsOfK = box_columns(kColumnsOfK);
  static constexpr uint32_t kBytesRow = kBlockM * sizeof(float);  // lse or dpsum of a Q tile
  static constexpr uint32_t kBytesDqPart = kDqFloatsPerPart * sizeof(float);

  CUTE_HOST_DEVICE static bool is_packed(BwdParams const& params) {
    return kConfig.key.variant == Variant::kPackedFull ||
           (kIsGeneral && params.packed.is_packed());
  }

  // The grid of a call, with what this kernel was compiled for as constants: the policy's divisions
  // become shifts and multiplications, its mask branches fold away.
  CUTE_HOST_DEVICE static schedule::TileGrid grid(BwdParams const& params) {
    schedule::TileGrid grid = params.grid;
    grid.block_m = kBlockM;
    grid.block_n = kBlockN;
    if constexpr (!kIsGeneral) {
      grid.mask =
          kConfig.key.variant == Variant::kCausal ? MaskKind::kCausal : MaskKind::kFull;
    }
    return grid;
  }

  // The grid of one sequence, as far as turns and Q tiles go: with its lengths. (batch, seqlen)
  // kernels know the lengths without looking.
  CUTE_HOST_DEVICE static schedule::TileGrid grid(BwdParams const& params,
                                                  Sequence const& sequence) {
    schedule::TileGrid grid = BwdTraits::grid(params);
    if constexpr (!kIsDense) {
      grid.seqlen_q = sequence.seqlen_q;
      grid.seqlen_k = sequence.seqlen_k;
    }
    return grid;
  }

  struct SharedStorage {
    alignas(1024) Element k[cosize_v<SmemLayoutK>];
    alignas(1024) Element v[cosize_v<SmemLayoutV>];
    alignas(1024) Element q[cosize_v<SmemLayoutQ>];
    alignas(1024) Element dout[cosize_v<SmemLayoutDo>];
    alignas(1024) Element ds[cosize_v<SmemLayoutDs>];
    alignas(128) float dq[kStagesDq][kNumMmaWarpgroups][kDqFloatsPerPart];
    alignas(16) float lse_log2[kStagesQ][kBlockM];
    alignas(16) float dpsum[kStagesDo][kBlockM];
    RingBarriers<1> ring_k;
    RingBarriers<1> ring_v;
    TileMask mask[kStagesQ];  // if kPublishesMask
    RingBarriers<kStagesQ> ring_q;    // also guards lse_log2 and mask
    RingBarriers<kStagesDo> ring_do;  // also guards dpsum
    RingBarriers<kStagesWork> ring_work;
    Work work[kStagesWork];
    // The load lane's own, of its last ticket: the rank of the sequence that it fell in, and the
    // ticket behind its gang's.
    int rank, gang_end;
    // Warpgroups in turns: dS of Q tile i is in stage i mod 2, phase i / 2.
    alignas(8) uint64_t ds_full[kStagesDs];
    alignas(8) uint64_t ds_empty[kStagesDs];
    // dq[..][wg] changes hands between MMA warpgroup wg and the two writer warps, which take
    // alternate Q tiles: tile i uses stage i mod kStagesDq, belongs to writer i mod 2, and its part
    // p is phase (i / 2) kDqParts + p of that writer's barriers.
    alignas(8) uint64_t dq_full[kNumDqWriters][kNumMmaWarpgroups];
    alignas(8) uint64_t dq_empty[kNumDqWriters][kNumMmaWarpgroups];
    alignas(8) uint64_t no_more_dq;  // its only phase: no work is left for this CTA
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024, "shared memory of one SM");

  // Kernel arguments of the main kernel.
  struct MainArguments {
    TmaM tma_q;
    TmaM tma_do;
    TmaK tma_k;
    TmaV tma_v;
    // That arrive for a tile. TMA counts whole boxes.
    uint32_t bytes_q, bytes_do, bytes_k, bytes_v;
    bool has_missing_boxes;  // some box of a tile is not loaded
    ScoreScale scores;      // read from the constant bank, costs no register
    int q_tiles_of_a_head;  // in the workspace: from a query head's Q tiles to the next one's
    BwdParams params;
  };
};

// The same kernel where head_dim_v is at most 128, as in DeepSeek's (192, 128): its products leave
// out the columns that v and dout don't have.
template <class Traits>
struct NarrowV : Traits {
  static constexpr int kHeadDimV = Traits::kHeadDim == 192 ? 128 : Traits::kHeadDim;
};

}  // namespace dash::bwd
