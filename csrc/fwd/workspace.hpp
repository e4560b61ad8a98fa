// The forward's workspace: one allocation, made by the operator for one call, contents undefined on
// entry.
//
//   ticket        zeroed by the launch                            counted by the main kernel
//   sequence_order, ticket_begin
//                 packed only: written by order_sequences         read by the main kernel
#pragma once

#include <cstdint>

#include "common/carve.hpp"

namespace dash::fwd {

// Offsets in bytes.
struct WorkspaceLayout {
  int64_t ticket;
  int64_t sequence_order;
  int64_t ticket_begin;
  int64_t bytes;  // of all of it
};

constexpr WorkspaceLayout workspace_layout(bool is_packed, int batch) {
  Carver carver;
  WorkspaceLayout layout{};
  layout.ticket = carver.take(1, sizeof(int));
  layout.sequence_order = carver.take(is_packed ? batch : 0, sizeof(int));
  layout.ticket_begin = carver.take(is_packed ? int64_t{batch} + 1 : 0, sizeof(int));
  layout.bytes = carver.bytes();
  return layout;
}

}  // namespace dash::fwd
