// Ragged TMA: tiles of one sequence inside a packed tensor, whose rows past the sequence's end arrive
// in shared memory as zeros, whatever the neighbour's rows hold.
// A tile has R rows. The tensor is described with its row mode split in two, `row` of extent R and
// `end` of extent total + 1, both with the row stride, from a base R rows before the tensor. A tile
// of n <= R rows from row `start` has the coordinates row = R - n, end = start + n: its first element
// lies at base + (R - n) + (start + n) - R = start rows, and its rows n and up are outside `row`.
#pragma once

#include <cute/tensor.hpp>

#include <cstdint>

#include "schedule/tile_grid.hpp"

namespace dash {

// (row, column, end, head, batch), and V with its first two modes exchanged.
using RaggedShape = cute::Shape<int, int, int, int, int>;
using RaggedStride = cute::Stride<int64_t, cute::_1, int64_t, int64_t, int64_t>;
using RaggedStrideT = cute::Stride<cute::_1, int64_t, int64_t, int64_t, int64_t>;

// Coordinates of a tile in the two row modes.
struct RaggedTile {
  int row;
  int end;
};

// Tile `tile` of `rows` rows of a sequence of `seqlen` rows that starts at row `offset`.
CUTE_HOST_DEVICE constexpr RaggedTile ragged_tile(int tile, int rows, int offset, int seqlen) {
  int const num_rows = schedule::min_int(rows, seqlen - tile * rows);
  return {.row = rows - num_rows, .end = offset + tile * rows + num_rows};
}

}  // namespace dash
