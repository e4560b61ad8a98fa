// FwdTraits<kConfig>: what the forward kernel is made of: element type, WGMMA products,
// shared-memory layouts, TMA descriptors, and SharedStorage. FwdKernelArgs is what the launch hands
// to the kernel. Nothing here runs. Invariant: every shared-memory tile starts on a 1,024-byte
// boundary, which the 128-byte swizzle of TMA and WGMMA needs.
#pragma once

#include <cute/tensor.hpp>
#include <cute/atom/copy_traits_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>

#include "common/element.cuh"
#include "common/pipeline.cuh"
#include "common/softmax.cuh"
#include "common/tma_boxes.cuh"
#include "common/ragged_tma.cuh"
#include "config/fwd_config.hpp"
#include "fwd/outgrown.cuh"
#include "fwd/params.hpp"
#include "schedule/tile_grid.hpp"

namespace dash::fwd {

using namespace cute;

// One unit of work: a Q tile of one (batch, query head), swept over its KV tiles by one CTA.
struct WorkItem {
  int m_block;  // < 0: there is no more work
  int bidh;     // query head
  int bidb;     // batch entry, or sequence of a packed problem
  int n_end;    // KV tiles n_begin .. n_end - 1 are visited; n_end is 0 if no row sees a key
};

template <FwdConfig kConfig_>
struct FwdTraits {
  static constexpr FwdConfig kConfig = kConfig_;
  static constexpr Variant kVariant = kConfig.key.variant;
  static constexpr bool kIsDense = kConfig.key.is_dense();
  // The masks of kGeneral kernels, and softcap, are only known at run time.
  static constexpr bool kIsGeneral = kVariant == Variant::kGeneral;
  // The mask of the others.
  static constexpr MaskKind kMask =
      kVariant == Variant::kCausal ? MaskKind::kCausal : MaskKind::kFull;
  static constexpr int kHeadDim = kConfig.key.head_dim;
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kStages = kConfig.stages_kv;
  static constexpr int kItemStages = 2;  // the load warp runs one work item ahead of the MMA warps
  static constexpr int kNumMmaWarpgroups = kConfig.num_mma_warpgroups;
  static constexpr int kNumMmaWarps = 4 * kNumMmaWarpgroups;
  static constexpr int kNumThreads = kConfig.num_threads();
  static constexpr int kRowsPerWarpgroup = 64;  // M of one WGMMA
  // Whether KV tiles are exponentiated without a look for their maxima; see mma.cuh. Tuning: of two
  // stages of K, one that is kept for long gets its next tile too late (10 % slower, head dim 128,
  // H200).
  static constexpr bool kGuessesReferences = kStages > 2;
  // Whether a warpgroup leaves out KV tiles that none of its rows sees. Tuning: a general kernel of
  // head dim 256 has no register left for it.
  static constexpr bool kLeavesOutTiles = !kIsGeneral || kHeadDim < 256;

  static_assert(kBlockM == kRowsPerWarpgroup * kNumMmaWarpgroups,
                "each MMA warpgroup owns 64 query rows");
  // A swizzled row of shared memory: 128 bytes, or 64 where the head dim has an odd half.
  static constexpr int kAtomColumns = kHeadDim % 64 == 0 ? 64 : 32;
  static_assert(kHeadDim % kAtomColumns == 0, "shared-memory tiles are made of whole atoms");
  static_assert(kBlockN % 16 == 0 && kBlockN <= 256,
                "K of a PV step is 16; a TMA box is at most 256");

  using Element = dash::Element<kConfig.key.dtype>;

  // S = Q K^T: both operands in shared memory, both K-major (head_dim contiguous).
  using TiledMmaQk = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<_64, Int<kBlockN>, Int<kHeadDim>>>()));
  // O += P V: P in registers; V is MN-major (head_dim contiguous is the N of this product). Of all
  // columns of V or, if head_dim_v is no larger, of the first kNarrowHeadDimV.
  static constexpr int kNarrowHeadDimV = kHeadDim == 192 ? 128 : kHeadDim;
  template <int kHeadDimV>
  using TiledMmaPv = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, Shape<_64, Int<kHeadDimV>, Int<kBlockN>>,
                           GMMA::Major::K, GMMA::Major::MN>()));

  using RowsAtom = std::conditional_t<kAtomColumns == 64, GMMA::Layout_K_SW128_Atom<Element>,
                                      GMMA::Layout_K_SW64_Atom<Element>>;      // (8, kAtomColumns)
  using ColumnsAtom = std::conditional_t<kAtomColumns == 64, GMMA::Layout_MN_SW128_Atom<Element>,
                                         GMMA::Layout_MN_SW64_Atom<Element>>;  // (kAtomColumns, 8)

  using SmemLayoutQ =
      decltype(tile_to_shape(RowsAtom{}, Shape<Int<kBlockM>, Int<kHeadDim>>{}));
  using SmemLayoutKStage =
      decltype(tile_to_shape(RowsAtom{}, Shape<Int<kBlockN>, Int<kHeadDim>>{}));
  using SmemLayoutK =
      decltype(tile_to_shape(RowsAtom{}, Shape<Int<kBlockN>, Int<kHeadDim>, Int<kStages>>{}));
  // Tuning: atoms run along the keys first, so that one TMA box carries an atom's columns of
  // every key.
  using SmemLayoutVtStage = decltype(tile_to_shape(
      ColumnsAtom{}, Shape<Int<kHeadDim>, Int<kBlockN>>{}, Step<_2, _1>{}));
  using SmemLayoutVt = decltype(tile_to_shape(
      ColumnsAtom{}, Shape<Int<kHeadDim>, Int<kBlockN>, Int<kStages>>{}, Step<_2, _1, _3>{}));

  using TileShapeQ = Shape<Int<kBlockM>, Int<kHeadDim>>;
  using TileShapeK = Shape<Int<kBlockN>, Int<kHeadDim>>;
  using TileShapeVt = Shape<Int<kHeadDim>, Int<kBlockN>>;

  // Global tensors, and V with its first two modes exchanged. The head dim is a run-time number:
  // TMA fills columns beyond it with zeros. The kernels that serve packed problems describe their
  // tensors as ragged_tma.cuh says.
  using GmemShape = std::conditional_t<kIsDense, Shape<int, int, int, int>, RaggedShape>;
  using GmemStride =
      std::conditional_t<kIsDense, Stride<int64_t, _1, int64_t, int64_t>, RaggedStride>;
  using GmemShapeT = std::conditional_t<kIsDense, Shape<int, int, int, int>, RaggedShape>;
  using GmemStrideT =
      std::conditional_t<kIsDense, Stride<_1, int64_t, int64_t, int64_t>, RaggedStrideT>;
  using GmemTensor = decltype(make_tensor(make_gmem_ptr(static_cast<Element const*>(nullptr)),
                                          GmemShape{}, GmemStride{}));
  using GmemTensorT = decltype(make_tensor(make_gmem_ptr(static_cast<Element const*>(nullptr)),
                                           GmemShapeT{}, GmemStrideT{}));

  using TmaQ = decltype(make_tma_copy(SM90_TMA_LOAD{}, std::declval<GmemTensor>(), SmemLayoutQ{},
                                      TileShapeQ{}, _1{}));
  using TmaK = decltype(make_tma_copy(SM90_TMA_LOAD{}, std::declval<GmemTensor>(),
                                      SmemLayoutKStage{}, TileShapeK{}, _1{}));
  using TmaVt = decltype(make_tma_copy(SM90_TMA_LOAD{}, std::declval<GmemTensorT>(),
                                       SmemLayoutVtStage{}, TileShapeVt{}, _1{}));

  struct SharedStorage {
    alignas(1024) Element q[cosize_v<SmemLayoutQ>];
    alignas(1024) Element k[cosize_v<SmemLayoutK>];
    alignas(1024) Element v[cosize_v<SmemLayoutVt>];
    RingBarriers<1> q_ring;
    RingBarriers<kStages> k_ring;
    RingBarriers<kStages> v_ring;
    RingBarriers<kItemStages> item_ring;
    OutgrownFlags<kNumMmaWarpgroups> outgrown;
    alignas(16) WorkItem items[kItemStages];
    alignas(16) Sequence sequences[kItemStages];  // of the items; dense kernels do not use it
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024, "shared memory of one SM");
};

template <class Traits>
struct FwdKernelArgs {
  typename Traits::TmaQ tma_q;
  typename Traits::TmaK tma_k;
  typename Traits::TmaVt tma_vt;
  FwdParams params;       // with the kernel's tiles in its grid
  float score_scale;      // of the numbers that the softmax sees: softmax_scale, or softcap
  float tanh_scale;       // kTanhScale * softmax_scale / softcap
  int heads_per_section;  // query heads whose Q tiles are handed out together
  int num_items;          // not read if the problem is packed
  // TMA counts whole boxes, what is outside the tensor included (it arrives as zeros).
  uint32_t bytes_q, bytes_k, bytes_v;
  bool has_missing_boxes;  // some box of a tile is not loaded
};

}  // namespace dash::fwd
