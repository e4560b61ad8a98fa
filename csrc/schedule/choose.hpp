// Which policy and which section size a call gets: pure functions of the problem, never of the
// device, so that the same call takes the same order on every part. Host only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/bwd_config.hpp"
#include "schedule/any_of.hpp"

namespace dash::schedule {

struct NamedPolicy {
  std::string_view name;
  ScheduleKind kind;
  bool (*supports)(MaskKind);
};

template <class P>
constexpr NamedPolicy named_policy() {
  return {P::kName, P::kKind, [](MaskKind mask) { return P::supports(mask); }};
}

inline constexpr std::array kNamedPolicies = {
    named_policy<Unordered>(), named_policy<Ascending>(), named_policy<ShortestFirst>(),
    named_policy<Band>()};

constexpr std::optional<ScheduleKind> find_schedule(std::string_view name) {
  for (NamedPolicy const& policy : kNamedPolicies) {
    if (policy.name == name) {
      return policy.kind;
    }
  }
  return std::nullopt;
}

// schedule="auto". Tuning: see docs/schedules.md for the measurements behind it.
constexpr ScheduleKind choose_schedule(MaskKind) { return ScheduleKind::kBand; }

struct SectionShape {
  int batch;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads
  int seqlen_q;
  int head_dim;
};

// Heads per section. Large enough that few KV tiles of one head run together, and as large as keeps
// a section's q, dout (16 bit) and dq_accum (fp32) in the part of L2 that a sweep can count on.
constexpr int choose_section(SectionShape const& shape) {
  // Tuning: 16 lists a section and 40 MB of a 50 MB L2 were the best of the powers of two tried.
  constexpr int kLists = 16;
  constexpr int64_t kL2Bytes = int64_t{40} << 20;
  int const lists = max_int(shape.batch * shape.num_heads_k, 1);
  int const even = ceil_div(lists, max_int(lists / kLists, 1));
  int64_t const bytes_per_list = int64_t{8} * max_int(shape.seqlen_q, 1) * shape.head_dim *
                                 (shape.num_heads / max_int(shape.num_heads_k, 1));
  int fitting = 1;
  while (fitting < lists && 2 * fitting * bytes_per_list <= kL2Bytes) {
    fitting *= 2;
  }
  return min_int(max_int(even, fitting), lists);
}

// The grid that kernel, CPU path and tools walk for one call.
struct GridShape {
  KernelKey key;
  int batch;
  int seqlen_q;
  int seqlen_k;
  int num_heads;
  int num_heads_k;
};

constexpr TileGrid make_grid(GridShape const& shape, ScheduleKind schedule) {
  BwdConfig const config = bwd_config(shape.key);
  return {.seqlen_q = shape.seqlen_q, .seqlen_k = shape.seqlen_k, .block_m = config.block_m,
          .block_n = config.block_n, .num_heads = shape.num_heads_k, .batch = shape.batch,
          .mask = shape.key.mask, .schedule = schedule,
          .section = choose_section({.batch = shape.batch, .num_heads = shape.num_heads,
                                     .num_heads_k = shape.num_heads_k,
                                     .seqlen_q = shape.seqlen_q,
                                     .head_dim = shape.key.head_dim})};
}

}  // namespace dash::schedule
