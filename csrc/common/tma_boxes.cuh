// A tile that TMA loads box by box, a swizzle's width of columns each. A tensor with fewer columns
// than the tile fills the last box that it reaches with zeros; boxes that it does not reach are not
// loaded at all, and their shared memory is zeroed once, when the kernel starts.
// Correctness: a box that lies beyond the last column is not asked for. Its address may lie behind
// the tensor's last page, and TMA was seen faulting there (H200), although nothing of it is read.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>

namespace dash {

// Columns of the widest swizzle that divides `columns` 16-bit elements.
CUTE_HOST_DEVICE constexpr int box_columns(int columns) {
  return columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16;
}

// Bytes that arrive for a tile of `rows` rows of a 16-bit tensor with `columns` columns.
CUTE_HOST_DEVICE constexpr uint32_t box_bytes(int rows, int columns, int columns_of_box) {
  int const boxes = (columns + columns_of_box - 1) / columns_of_box;
  return static_cast<uint32_t>(boxes * columns_of_box * rows * 2);
}

// `source` and `target` are a tile's partitions, (((box), boxes), 1, 1); one thread issues.
template <int kColumnsOfBox, class Tma, class Source, class Target>
CUTE_DEVICE void copy_boxes(Tma const& tma, Source const& source, Target const& target,
                            int columns) {
  using namespace cute;
  constexpr int kBoxes = decltype(size<0, 1>(target))::value;
  CUTE_UNROLL
  for (int box = 0; box < kBoxes; ++box) {
    if (box == 0 || box * kColumnsOfBox < columns) {
      copy(tma, source(make_coord(_, box), _0{}, _0{}), target(make_coord(_, box), _0{}, _0{}));
    }
  }
}

// All threads of the CTA, before the barrier after which the first box is asked for.
// [begin, end) are shared memory, 16-byte aligned.
CUTE_DEVICE void zero_boxes(void* begin, void* end) {
  auto* const target = static_cast<uint4*>(begin);
  int const count = static_cast<int>(static_cast<char*>(end) - static_cast<char*>(begin)) / 16;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    target[i] = make_uint4(0, 0, 0, 0);
  }
  // Correctness: written by the generic proxy, read by WGMMA, which is another one.
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
}

}  // namespace dash
