// A product's accumulators in global memory, as its threads hold them: a warpgroup's share after
// the other, of each share the threads' first 16 bytes side by side, then the second ones. Stored
// without a transpose; the kernel that reads them turns them into rows of a 16-bit tensor.
#pragma once

#include <cute/tensor.hpp>

#include <type_traits>

#include "bwd/cta_tile.cuh"

namespace dash::bwd {

using namespace cute;

// A thread's 16-byte pieces in a tile of kFloats floats a thread; piece i is at [128 i].
template <int kFloats, class Float>
CUTE_DEVICE auto* pieces_of_thread(Float* tile, int thread) {
  using Piece = cute::conditional_t<std::is_const_v<Float>, float4 const, float4>;
  return reinterpret_cast<Piece*>(tile + (thread / 128) * (kFloats * 128)) + thread % 128;
}

// Rows of a 16-bit tensor: `data` is row 0, column 0. What is at or past the extents is not
// written.
template <class Element>
struct RowsTarget {
  Element* data;
  int64_t row_stride;
  int num_rows;
  int num_columns;  // a multiple of 8
};

// The tile's valid rows of `tensor`, `num_columns` wide.
template <class Side, class Element>
CUTE_DEVICE RowsTarget<Element> rows_of(CtaTile const& tile, Element* tensor,
                                        Strides const& strides, int num_columns) {
  return {first_row_of<Side>(tile, tensor, strides), strides.row, tile.num_rows, num_columns};
}

// kRows x kColumns accumulator values, scaled and rounded, to the target. `coordinates` (i) is
// (row, column) of values[i]. Called by all kThreads threads of a CTA.
template <int kRows, int kColumns, int kThreads, int kFloats, class Element, class Coordinates>
CUTE_DEVICE void write_rows(float const (&values)[kFloats], float scale,
                            Coordinates const& coordinates, RowsTarget<Element> const& target) {
  constexpr int kPieces = kColumns / 8;  // 16-byte pieces of a row
  // Tuning: 8 elements of padding put the rows that a warp writes together into different banks.
  constexpr int kRowPitch = kColumns + 8;
  __shared__ alignas(16) Element staged[kRows * kRowPitch];
  CUTE_UNROLL
  for (int i = 0; i < kFloats; ++i) {
    auto const coordinate = coordinates(i);
    staged[get<0>(coordinate) * kRowPitch + get<1>(coordinate)] = Element(values[i] * scale);
  }
  // Arrives and waits: all threads. Protects: the staged tile until it is complete.
  __syncthreads();
  for (int piece = threadIdx.x; piece < kRows * kPieces; piece += kThreads) {
    int const row = piece / kPieces;
    int const column = (piece % kPieces) * 8;
    if (row < target.num_rows && column < target.num_columns) {
      *reinterpret_cast<uint4*>(target.data + row * target.row_stride + column) =
          *reinterpret_cast<uint4 const*>(staged + row * kRowPitch + column);
    }
  }
}

}  // namespace dash::bwd
