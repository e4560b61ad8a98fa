// Stage 2d, epilogue of a work tile: dk and dv from the accumulators straight to global memory.
// Run by the MMA warpgroups. No shared memory is used, so the load warp can already fetch the next
// work tile's k and v. Writes every row below seqlen_k of the KV tile.
#pragma once

#include "bwd/traits.cuh"
#include "common/layout.cuh"

namespace dash::bwd {

// Rows of one warpgroup's 64 x head_dim accumulator; 16-byte stores, 64 contiguous bytes a quad.
// `target` is row 0 of the warpgroup's rows; rows at or past `num_rows` are not written.
template <class Element, int kHeadDim, class Acc>
CUTE_DEVICE void store_accumulator(Acc const& accumulator, float scale, Element* target,
                                   int64_t row_stride, int num_rows) {
  int const thread = threadIdx.x % 128;
  cutlass::NumericArrayConverter<Element, float, 2> convert;
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {  // rows r and r + 8
    int const row = accumulator_row(thread, 2 * half);
    CUTE_UNROLL
    for (int column = 0; column < kHeadDim; column += 32) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int block = 0; block < 4; ++block) {
        int const i = (column / 8 + block) * 4 + 2 * half;
        cutlass::Array<float, 2> pair;
        pair[0] = accumulator(i) * scale;
        pair[1] = accumulator(i + 1) * scale;
        auto const rounded = convert(pair);
        words[block] = reinterpret_cast<uint32_t const&>(rounded);
      }
      quad_transpose(words);
      if (row < num_rows) {
        *reinterpret_cast<uint4*>(target + row * row_stride + column + 8 * (thread % 4)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

template <class Traits, class AccDkv>
  requires(!Traits::kIsWide)
CUTE_DEVICE void store_dkv(BwdParams const& params, schedule::WorkTile const& tile,
                           AccDkv const& tdKrdK, AccDkv const& tdVrdV) {
  using Element = typename Traits::Element;
  int const warpgroup = threadIdx.x / 128 - 1;
  int const first_row = tile.n_block * Traits::kBlockN + warpgroup * 64;
  int const num_rows = params.grid.seqlen_k - first_row;
  auto const target = [&](void* tensor, Strides const& strides) {
    return static_cast<Element*>(tensor) + tile.bidb * strides.batch + tile.bidh * strides.head +
           first_row * strides.row;
  };
  store_accumulator<Element, Traits::kHeadDim>(
      tdVrdV, 1.f, target(params.dv, params.dv_strides), params.dv_strides.row, num_rows);
  store_accumulator<Element, Traits::kHeadDim>(tdKrdK, params.softmax_scale,
                                               target(params.dk, params.dk_strides),
                                               params.dk_strides.row, num_rows);
}

}  // namespace dash::bwd
