// Stage 3 where query groups are cut into parts, its own kernel: dkv_parts -> dk, dv. Two CTAs per
// KV tile, one for dk and one for dv. Adds the parts in their order, scales, rounds to 16 bits.
#pragma once

#include "bwd/accumulator_tile.cuh"
#include "bwd/cta_tile.cuh"
#include "bwd/traits.cuh"

namespace dash::bwd {

// (key, column of dk or dv) of the i-th accumulator value of a thread.
template <class Traits>
CUTE_DEVICE auto dkv_coordinates(int thread) {
  auto const coordinates = typename Traits::MmaDkv{}.get_slice(thread).partition_C(
      make_identity_tensor(typename Traits::AccumulatorShapeDkv{}));
  return [coordinates](int i) {
    auto const coordinate = coordinates(i);
    if constexpr (Traits::kDkvIsTransposed) {
      return make_coord(get<1>(coordinate), get<0>(coordinate));
    } else {
      return make_coord(get<0>(coordinate), get<1>(coordinate));
    }
  };
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kNumMmaThreads)
    add_dkv_parts_kernel(__grid_constant__ BwdParams const params) {
  using Element = typename Traits::Element;
  constexpr int kFloats = Traits::kDkvFloatsPerThread;
  using Side = KeySide<Traits>;
  CtaTile const tile = cta_tile<Side>(params);
  if (!Traits::kIsDense && tile.num_rows <= 0) {
    return;
  }
  bool const is_dv = blockIdx.y == 1;
  int64_t const tiles = tiles_of_a_head<Side>(params);
  int64_t const first_list = (int64_t{tile.index} / tiles) * params.group_parts;
  int64_t const first_tile = first_list * tiles + tile.index % tiles;
  float const* const first =
      params.dkv_parts + (2 * first_tile + is_dv) * int64_t{Traits::kDkvFloats};
  float values[kFloats] = {};
  for (int part = 0; part < params.group_parts; ++part) {
    auto const* const pieces = pieces_of_thread<kFloats>(
        first + part * tiles * (2 * Traits::kDkvFloats), threadIdx.x);
    CUTE_UNROLL
    for (int i = 0; i < kFloats; i += 4) {
      float4 const piece = pieces[(i / 4) * 128];
      values[i] += piece.x;
      values[i + 1] += piece.y;
      values[i + 2] += piece.z;
      values[i + 3] += piece.w;
    }
  }
  void* const tensor = is_dv ? params.dv : params.dk;
  Strides const& strides = is_dv ? params.dv_strides : params.dk_strides;
  auto const target = rows_of<Side>(tile, static_cast<Element*>(tensor), strides,
                                    is_dv ? params.head_dim_v : params.head_dim);
  write_rows<Traits::kBlockN, Traits::kHeadDim, Traits::kNumMmaThreads>(
      values, is_dv ? 1.f : params.softmax_scale, dkv_coordinates<Traits>(threadIdx.x), target);
}

}  // namespace dash::bwd
