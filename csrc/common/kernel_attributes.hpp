// What the driver says of one compiled kernel: the GPU report and `python -m dash` print it.
#pragma once

#include <string>

namespace dash {

struct KernelAttributes {
  std::string stage;  // "fwd", "bwd_preprocess", "bwd_main", "bwd_postprocess"
  int registers;      // per thread, at entry
  int shared_bytes;   // static plus dynamic
  int local_bytes;    // per thread; more than 0 means spills or a stack frame
};

}  // namespace dash
