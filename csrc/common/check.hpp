// Host-side checks that are never compiled out, and the device-side check that only a DASH_DEBUG
// build evaluates. A failed host check throws std::runtime_error; torch turns it into RuntimeError.
#pragma once

#include <stdexcept>
#include <string>

#define DASH_CHECK(condition, message)          \
  do {                                          \
    if (!(condition)) {                         \
      throw std::runtime_error(message);        \
    }                                           \
  } while (false)

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <cassert>

#define DASH_CUDA_CHECK(expression)                                                       \
  do {                                                                                    \
    cudaError_t const dash_error = (expression);                                          \
    DASH_CHECK(dash_error == cudaSuccess,                                                 \
               std::string("dash: " #expression " failed: ") + cudaGetErrorString(dash_error)); \
  } while (false)

#if defined(DASH_DEBUG)
#define DASH_DEVICE_CHECK(condition) assert(condition)
#else
// Correctness: the expression stays type-checked, so that a dead name cannot hide in it.
#define DASH_DEVICE_CHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif
#endif
