// Register layouts of WGMMA accumulators. A 64 x N accumulator gives each thread of the warpgroup
// N / 2 floats; value i of lane l in warp w sits at
//   row = 16 w + l / 4 + 8 ((i / 2) mod 2),   column = 8 (i / 4) + 2 (l mod 4) + i mod 2.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/numeric_conversion.h>

namespace dash {

// Row, in its warpgroup's 64, of accumulator value i.
CUTE_DEVICE int accumulator_row(int thread_in_warpgroup, int i) {
  return (thread_in_warpgroup / 32) * 16 + (thread_in_warpgroup % 32) / 4 + 8 * ((i / 2) % 2);
}

CUTE_DEVICE int accumulator_column(int thread_in_warpgroup, int i) {
  return 8 * (i / 4) + 2 * (thread_in_warpgroup % 4) + i % 2;
}

// An accumulator ((2, 2, N/8), MMA_M, MMA_N) seen as register A operand of a 16-bit product whose
// K dimension is the accumulator's N: ((2, 2, 2), MMA_M, (N/16, MMA_N)). Value order is the same.
template <class AccLayout>
CUTE_HOST_DEVICE constexpr auto accumulator_as_a_operand(AccLayout const& acc) {
  using namespace cute;
  static_assert(decltype(rank(acc))::value == 3 && decltype(rank<0>(acc))::value == 3,
                "expects a WGMMA accumulator layout");
  auto const split = logical_divide(acc, Shape<Tile<Underscore, Underscore, _2>>{});
  // (((2), (2), (2, N/16)), MMA_M, MMA_N)
  return make_layout(make_layout(get<0, 0>(split), get<0, 1>(split), get<0, 2, 0>(split)),
                     get<1>(split),
                     make_layout(get<0, 2, 1>(split), get<2>(split)));
}

// Rounds a register tensor of floats to the destination's 16-bit element type, to nearest even,
// value by value in register order (the layouts may differ in shape).
// Tuning: written a pair, a register, at a time. Copied as single 16-bit values the compiler
// (nvcc 13.0) takes every pair apart and joins it again: two PRMT or LOP3 a pair in the SASS.
template <class TensorF, class TensorE>
CUTE_DEVICE void round_to(TensorF const& source, TensorE& destination) {
  using namespace cute;
  using Element = typename TensorE::value_type;
  constexpr int kSize = decltype(size(source))::value;
  static_assert(kSize == decltype(size(destination))::value && kSize % 2 == 0);
  auto pairs = recast<cutlass::Array<Element, 2>>(
      make_tensor(destination.data(), make_layout(Int<kSize>{})));
  auto const float_pairs = recast<cutlass::Array<float, 2> const>(
      make_tensor(source.data(), make_layout(Int<kSize>{})));
  cutlass::NumericArrayConverter<Element, float, 2> convert;
  CUTE_UNROLL
  for (int i = 0; i < kSize / 2; ++i) {
    pairs(i) = convert(float_pairs(i));
  }
}

template <class Element, class Engine, class Layout>
CUTE_DEVICE auto convert_to(cute::Tensor<Engine, Layout> const& source) {
  auto result = cute::make_tensor<Element>(source.layout());
  round_to(source, result);
  return result;
}

// Transposes a 4 x 4 matrix of 32-bit words held by four lanes: word b of lane q becomes word q
// of lane b. Turns the 4-byte pieces of an accumulator row into 16-byte ones. Whole warps call it.
CUTE_DEVICE void quad_transpose(uint32_t (&words)[4], int quad_lane) {
  CUTE_UNROLL
  for (int distance = 1; distance <= 2; distance *= 2) {
    bool const is_upper = (quad_lane & distance) != 0;
    CUTE_UNROLL
    for (int b = 0; b < 4; ++b) {
      if ((b & distance) == 0) {
        uint32_t& low = words[b];
        uint32_t& high = words[b | distance];
        uint32_t const sent = is_upper ? low : high;
        uint32_t const received = __shfl_xor_sync(0xffffffffu, sent, distance);
        (is_upper ? low : high) = received;
      }
    }
  }
}

CUTE_DEVICE void quad_transpose(uint32_t (&words)[4]) { quad_transpose(words, threadIdx.x % 4); }

}  // namespace dash
