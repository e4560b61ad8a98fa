// Which policy and which section size a call gets: pure functions of the problem, never of the
// device, so that the same call takes the same order on every part. Host only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/bwd_config.hpp"
#include "schedule/any_of.hpp"

namespace dash::schedule {

struct NamedPolicy {
  std::string_view name;
  ScheduleKind kind;
  std::string_view legal_for;  // is_legal in words
  bool is_repeatable;
  bool is_batch_invariant;
  bool is_device_invariant;
  bool is_legal_for_packed;  // where the mask is supported
  bool (*supports)(MaskKind);
};

template <class P>
constexpr NamedPolicy named_policy(P) {
  return {P::kName, P::kKind, P::kLegalFor, P::kRepeatable, P::kBatchInvariant,
          P::kDeviceInvariant, P::kLegalForPacked, [](MaskKind mask) { return P::supports(mask); }};
}

template <class... P>
constexpr std::array<NamedPolicy, sizeof...(P)> named_policies(AnyOf<P...>) {
  return {named_policy(P{})...};
}

inline constexpr std::array kNamedPolicies = named_policies(BuiltIn{});

// A schedule as the operators take it: a name, or "band@16" for sections of 16 lists, with which
// bench/tune_schedules.py measures section sizes.
struct ScheduleText {
  std::string_view name;
  int section;  // 0: the one that choose_section gives; -1: what follows the @ is no such number
};

constexpr ScheduleText split_schedule(std::string_view text) {
  std::size_t const at = text.find('@');
  if (at == std::string_view::npos) {
    return {text, 0};
  }
  int section = 0;
  for (char const digit : text.substr(at + 1)) {
    bool const is_digit = digit >= '0' && digit <= '9';
    section = is_digit && section < 100'000 ? 10 * section + (digit - '0') : -1;
    if (section < 0) {
      break;
    }
  }
  return {text.substr(0, at), section > 0 ? section : -1};
}

constexpr std::optional<ScheduleKind> find_schedule(std::string_view name) {
  for (NamedPolicy const& policy : kNamedPolicies) {
    if (policy.name == name) {
      return policy.kind;
    }
  }
  return std::nullopt;
}

constexpr NamedPolicy const& named(ScheduleKind kind) {
  for (NamedPolicy const& policy : kNamedPolicies) {
    if (policy.kind == kind) {
      return policy;
    }
  }
  return kNamedPolicies.back();
}

// The mask of a window as the operators take it: a negative limit is none.
constexpr MaskKind mask_of(int64_t window_left, int64_t window_right) {
  if (window_left >= 0 || window_right > 0) {
    return MaskKind::kWindow;
  }
  return window_right == 0 ? MaskKind::kCausal : MaskKind::kFull;
}

// A call, as far as its schedule depends on it. Packed: batch counts the sequences, and the lengths
// are the greatest ones.
struct GridShape {
  KernelKey key;
  int batch;
  int seqlen_q;
  int seqlen_k;
  int num_heads;    // query heads
  int num_heads_k;  // KV heads
  MaskKind mask;
  int window_left;   // read under a window mask only; negative: no limit
  int window_right;
  bool is_packed;

  constexpr int group_size() const { return num_heads / max_int(num_heads_k, 1); }
  // (batch entry, KV head) lists that sections are cut from: in a packed problem one sequence's.
  constexpr int num_lists() const {
    return max_int(is_packed ? num_heads_k : batch * num_heads_k, 1);
  }
};

// As many lists a section as divide them evenly into sections of `target` or a few more.
constexpr int even_section(GridShape const& shape, int target) {
  return ceil_div(shape.num_lists(), max_int(shape.num_lists() / target, 1));
}

// The largest power of two of lists whose q, dout (16 bit) and dq_accum (fp32) fit in the part of
// L2 that a sweep can count on.
constexpr int l2_section(GridShape const& shape) {
  // Tuning: 40 MB of a 50 MB L2.
  constexpr int64_t kL2Bytes = int64_t{40} << 20;
  int64_t const bytes_per_list =
      int64_t{8} * max_int(shape.seqlen_q, 1) * shape.key.head_dim * shape.group_size();
  int section = 1;
  while (2 * section <= shape.num_lists() && 2 * section * bytes_per_list <= kL2Bytes) {
    section *= 2;
  }
  return section;
}

// As many lists as have a KV tile for each SM: with fewer, the long KV tiles of one list and the
// next run side by side, and wait for each other.
constexpr int wave_section(GridShape const& shape) {
  // Tuning: the SMs of an H100 or H200.
  constexpr int kSms = 132;
  int const n_blocks = ceil_div(shape.seqlen_k, bwd_config(shape.key).block_n);
  return ceil_div(kSms, max_int(n_blocks, 1));
}

// Lists per section. Orders the dispatch; changes no bit.
constexpr int choose_section(GridShape const& shape, ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kShortestFirst:
      return l2_section(shape);
    case ScheduleKind::kMirrored:
      // Sections of even heads and of odd heads: at most all of either.
      return min_int(max_int(l2_section(shape), wave_section(shape)),
                     max_int(shape.num_lists() / 2, 1));
    case ScheduleKind::kComb:
      return even_section(shape, 16);
    case ScheduleKind::kBand:
      // Tuning: best or within 2 % of it on an H200; a section fills a wave.
      return even_section(
          shape, shape.mask == MaskKind::kFull ? max_int(16, wave_section(shape)) : 32);
    case ScheduleKind::kUnordered:
      return min_int(max_int(even_section(shape, 16), l2_section(shape)), shape.num_lists());
    default:
      return 1;  // one head after the other
  }
}

// A window's limit as TileGrid has it.
constexpr int window_limit(int limit, int seqlen) {
  return limit < 0 ? seqlen : min_int(limit, seqlen);
}

// The grid that kernel, CPU path and tools walk for one call; a packed one's sequences have each
// the sequence_grid of it.
constexpr TileGrid make_grid(GridShape const& shape, ScheduleKind schedule, int section = 0) {
  BwdConfig const config = bwd_config(shape.key);
  bool const is_window = shape.mask == MaskKind::kWindow;
  return {.seqlen_q = shape.seqlen_q, .seqlen_k = shape.seqlen_k, .block_m = config.block_m,
          .block_n = config.block_n, .num_heads = shape.num_heads_k, .batch = shape.batch,
          .mask = shape.mask, .schedule = schedule,
          .section = section > 0 ? min_int(section, shape.num_lists())
                                 : choose_section(shape, schedule),
          .window_left = is_window ? window_limit(shape.window_left, shape.seqlen_k) : 0,
          .window_right = is_window ? window_limit(shape.window_right, shape.seqlen_q) : 0};
}

// Whether the call can have the schedule, on a device where its gang fits.
constexpr bool is_legal(GridShape const& shape, ScheduleKind schedule) {
  return (named(schedule).is_legal_for_packed || !shape.is_packed) &&
         BuiltIn::is_legal(make_grid(shape, schedule));
}

// What schedule="auto" means for a call.
struct ScheduleChoice {
  ScheduleKind kind;
  bool depends_on_batch;  // another batch size could mean another order
};

// schedule="auto": band, which suits windows, packed sequences, query groups and many waves of work
// tiles; under a causal mask mirrored where lists are long, because it balances the SMs better; for
// few waves what keeps them busy. Tuning: an H200's 132 SMs make a wave (docs/schedules.md).
constexpr ScheduleChoice choose_schedule(GridShape const& shape) {
  if (shape.is_packed || shape.mask == MaskKind::kWindow) {
    return {ScheduleKind::kBand, false};
  }
  constexpr int kWave = 132;
  int const n_blocks = ceil_div(shape.seqlen_k, bwd_config(shape.key).block_n);
  int64_t const tiles_of_one = int64_t{n_blocks} * shape.num_heads_k;
  int64_t const tiles = tiles_of_one * shape.batch;
  if (shape.mask == MaskKind::kFull) {
    constexpr int kMostGang = 64;  // fits every Hopper part, so that the order is the same on all
    constexpr int kFewWaves = 3 * kWave;
    bool const is_possible = n_blocks <= kMostGang &&
                             Ring::is_legal(make_grid(shape, ScheduleKind::kRing)) &&
                             tiles_of_one < kFewWaves;
    bool const is_better = is_possible && tiles < kFewWaves;
    return {is_better ? ScheduleKind::kRing : ScheduleKind::kBand, is_possible};
  }
  if (shape.group_size() > 1) {
    return {ScheduleKind::kBand, false};
  }
  constexpr int kLongList = 16;  // KV tiles
  if (n_blocks >= kLongList) {
    return {ScheduleKind::kMirrored, false};
  }
  constexpr int kFewWaves = 8 * kWave;
  bool const is_better = kWave < tiles && tiles < kFewWaves;
  return {is_better ? ScheduleKind::kMirrored : ScheduleKind::kBand, tiles_of_one < kFewWaves};
}

// The same where only `num_ctas` CTAs can be resident: a gang that does not fit gives way to band,
// which is legal for every call and needs one CTA.
constexpr ScheduleChoice choose_schedule(GridShape const& shape, int num_ctas) {
  ScheduleChoice choice = choose_schedule(shape);
  if (BuiltIn::gang_size(make_grid(shape, choice.kind)) > num_ctas) {
    choice.kind = ScheduleKind::kBand;
  }
  return choice;
}

}  // namespace dash::schedule
