// Offsets of the parts of one allocation. Pure arithmetic; host only.
#pragma once

#include <cstdint>

namespace dash {

// Correctness: at least what a bulk copy and a vector access need, 16 bytes. Tuning: as cudaMalloc.
inline constexpr int64_t kPartAlignment = 256;

// Hands out one part after the other.
class Carver {
 public:
  // The offset in bytes of the next part, a multiple of kPartAlignment.
  constexpr int64_t take(int64_t elements, int64_t element_bytes) {
    int64_t const offset = end_;
    int64_t const bytes = elements * element_bytes;
    end_ += (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    return offset;
  }
  // Of all parts so far.
  constexpr int64_t bytes() const { return end_; }

 private:
  int64_t end_ = 0;
};

// The part of an allocation that begins at an offset of a Carver.
template <class T>
T* part_at(void* allocation, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(allocation) + offset);
}

}  // namespace dash
