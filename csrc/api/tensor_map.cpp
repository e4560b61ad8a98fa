// The driver's cuTensorMapEncodeTiled as a function of this library, which CuTe calls for every TMA
// descriptor (CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL, set by setup.py).
// Tuning: CUTLASS's own way asks the runtime for the driver's function again at every call. Linking
// libcuda instead would make it needed for an import without a GPU.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace {

constexpr unsigned int kSinceCuda = 12000;

PFN_cuTensorMapEncodeTiled_v12000 driver_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaError_t const error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kSinceCuda, cudaEnableDefault, &result);
  bool const is_found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_found ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
}

}  // namespace

// Hidden, so that no other library's calls arrive here.
extern "C" __attribute__((visibility("hidden"))) CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    cuuint64_t const* sizes, cuuint64_t const* strides, cuuint32_t const* box_sizes,
    cuuint32_t const* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static PFN_cuTensorMapEncodeTiled_v12000 const function = driver_function();
  if (function == nullptr) {
    return CUDA_ERROR_UNKNOWN;
  }
  return function(map, type, rank, address, sizes, strides, box_sizes, element_strides, interleave,
                  swizzle, promotion, fill);
}
