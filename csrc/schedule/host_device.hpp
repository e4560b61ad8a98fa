// DASH_HOST_DEVICE marks a function that runs on the CPU and inside a kernel.
// The schedule and config headers use nothing else from CUDA, so g++ compiles them alone.
#pragma once

#if defined(__CUDACC__)
#define DASH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DASH_HOST_DEVICE inline
#endif
