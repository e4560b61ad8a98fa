// Which policy and which section size a call gets: pure functions of the problem, never of the
// device, so that the same call takes the same order on every part. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
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

// A number of at least 1 as text; -1: it is none, or not below 1,000,000.
constexpr int parse_count(std::string_view text) {
  int count = 0;
  for (char const digit : text) {
    bool const is_digit = digit >= '0' && digit <= '9';
    if (!is_digit || count >= 100'000) {
      return -1;
    }
    count = 10 * count + (digit - '0');
  }
  return count > 0 ? count : -1;
}

// A schedule as the operators take it: a name; "band/2" where query groups are cut into 2 parts;
// "band@16" or "band/2@16" for sections of 16 lists, with which bench/tune_schedules.py measures
// section sizes. 0: not given; -1: what follows the / or the @ is no number of at least 1.
struct ScheduleText {
  std::string_view name;
  int group_parts;
  int section;

  constexpr bool is_well_formed() const { return group_parts >= 0 && section >= 0; }
};

constexpr ScheduleText split_schedule(std::string_view text) {
  std::size_t const at = text.find('@');
  std::string_view const order = text.substr(0, at);
  std::size_t const slash = order.find('/');
  return {order.substr(0, slash),
          slash == std::string_view::npos ? 0 : parse_count(order.substr(slash + 1)),
          at == std::string_view::npos ? 0 : parse_count(text.substr(at + 1))};
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

  // Each KV head's query group is cut into this many equal parts; a part's query heads are a list
  // of work tiles of their own.
  int group_parts = 1;

  constexpr int group_size() const { return num_heads / max_int(num_heads_k, 1); }
  constexpr int part_size() const { return group_size() / group_parts; }
  constexpr int lists_of_a_sequence() const { return num_heads_k * group_parts; }
  // (batch entry, KV head, part) lists that sections are cut from: in a packed problem one
  // sequence's.
  constexpr int num_lists() const {
    return max_int(lists_of_a_sequence() * (is_packed ? 1 : batch), 1);
  }
};

// A window's limit as TileGrid has it.
constexpr int window_limit(int limit, int seqlen) {
  return limit < 0 ? seqlen : min_int(limit, seqlen);
}

// make_grid's, in sections of one list.
constexpr TileGrid bare_grid(GridShape const& shape, ScheduleKind schedule) {
  BwdConfig const config = bwd_config(shape.key);
  bool const is_window = shape.mask == MaskKind::kWindow;
  return {.seqlen_q = shape.seqlen_q, .seqlen_k = shape.seqlen_k, .block_m = config.block_m,
          .block_n = config.block_n, .num_heads = shape.lists_of_a_sequence(), .batch = shape.batch,
          .mask = shape.mask, .schedule = schedule, .section = 1,
          .window_left = is_window ? window_limit(shape.window_left, shape.seqlen_k) : 0,
          .window_right = is_window ? window_limit(shape.window_right, shape.seqlen_q) : 0};
}

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
      int64_t{8} * max_int(shape.seqlen_q, 1) * shape.key.head_dim * shape.part_size();
  int section = 1;
  while (2 * section <= shape.num_lists() && 2 * section * bytes_per_list <= kL2Bytes) {
    section *= 2;
  }
  return section;
}

// Tuning: the SMs of an H100 or H200, and from how many KV tiles on a list is a long one.
inline constexpr int kWave = 132;
inline constexpr int kLongList = 16;

constexpr int num_kv_tiles(GridShape const& shape) {
  return ceil_div(shape.seqlen_k, bwd_config(shape.key).block_n);
}

// As many lists as have a KV tile for each SM: with fewer, the long KV tiles of one list and the
// next run side by side, and wait for each other.
constexpr int wave_section(GridShape const& shape) {
  return ceil_div(kWave, max_int(num_kv_tiles(shape), 1));
}

// Tuning: sections of short lists want about a wave at a time, and a power of two.
constexpr int near_power_of_two(int count) {
  return static_cast<int>(std::bit_ceil(static_cast<uint32_t>(3 * count / 4)));
}

// Tuning: best or within 2 % of it on an H200. A section fills a wave; at head dim 256, where dQ
// and its hand-over are largest, it also has to fit in L2.
constexpr int band_section(GridShape const& shape) {
  if (shape.mask != MaskKind::kFull) {
    return 32;
  }
  return shape.key.head_dim == 256 ? min_int(max_int(8, l2_section(shape)), 16)
                                   : max_int(16, near_power_of_two(wave_section(shape)));
}

// Tuning: best or within 1 % of it on an H200. Of lists of middling length two sections, of even
// and of odd heads, fit in L2; long ones want a wave each.
constexpr int mirrored_section(GridShape const& shape) {
  int const power = near_power_of_two(wave_section(shape));
  if (num_kv_tiles(shape) < kLongList) {
    return power;
  }
  return num_kv_tiles(shape) < 2 * kLongList
             ? max_int(l2_section(shape) / 2, power)
             : max_int(l2_section(shape), wave_section(shape));
}

// Lists per section. Orders the dispatch; changes no bit.
constexpr int choose_section(GridShape const& shape, ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kShortestFirst:
      return l2_section(shape);
    case ScheduleKind::kMirrored:
      // Sections of even heads and of odd heads: at most all of either.
      return min_int(mirrored_section(shape), max_int(shape.num_lists() / 2, 1));
    case ScheduleKind::kComb:
      return even_section(shape, shape.key.head_dim == 256 ? 8 : 16);
    case ScheduleKind::kBand:
      return even_section(shape, band_section(shape));
    case ScheduleKind::kUnordered:
      return min_int(max_int(even_section(shape, 16), l2_section(shape)), shape.num_lists());
    case ScheduleKind::kRing:
      // As many as have their gangs at a time, if a list has two.
      return max_int(
          min_int(kWave / Ring::gang_size(bare_grid(shape, kind)), shape.num_lists()), 1);
    default:
      return 1;  // one head after the other
  }
}

// The grid that kernel, CPU path and tools walk for one call; a packed one's sequences have each
// the sequence_grid of it.
constexpr TileGrid make_grid(GridShape const& shape, ScheduleKind schedule, int section = 0) {
  TileGrid grid = bare_grid(shape, schedule);
  grid.section =
      section > 0 ? min_int(section, shape.num_lists()) : choose_section(shape, schedule);
  return grid;
}

// Whether the call can have the schedule, on a device where its gang fits.
constexpr bool is_legal(GridShape const& shape, ScheduleKind schedule) {
  return (named(schedule).is_legal_for_packed || !shape.is_packed) &&
         BuiltIn::is_legal(make_grid(shape, schedule));
}

// What schedule="auto" means for a call.
struct ScheduleChoice {
  ScheduleKind kind;
  int group_parts;

  friend constexpr bool operator==(ScheduleChoice const&, ScheduleChoice const&) = default;
};

constexpr int64_t num_tiles(GridShape const& shape) {
  return int64_t{num_kv_tiles(shape)} * shape.lists_of_a_sequence() * shape.batch;
}

constexpr GridShape with_group_parts(GridShape shape, int parts) {
  shape.group_parts = parts;
  return shape;
}

// Whether the shape's parts of query groups make work tiles that occupy the SMs well.
constexpr bool occupies_sms(GridShape const& shape) {
  int64_t const tiles = num_tiles(shape);
  // Tuning: long work tiles, of many query heads, are hard to balance and wait longer for each
  // other, and so do many KV tiles of few lists. Under a mask work tiles are of many lengths, which
  // two waves even out; without one a last wave that is not full is lost.
  constexpr int kManyHeads = 4;
  constexpr int kFewLists = 8;
  if (shape.mask != MaskKind::kFull) {
    // Two heads a part are 1 % faster than four where lists are long and waves few.
    bool const has_long_tiles = shape.mask == MaskKind::kCausal && !shape.is_packed &&
                                shape.key.head_dim > 64 &&
                                num_kv_tiles(shape) >= 4 * kLongList && tiles < 8 * kWave;
    return shape.part_size() <= (has_long_tiles ? kManyHeads / 2 : kManyHeads) &&
           10 * tiles >= 19 * kWave &&
           shape.lists_of_a_sequence() * shape.batch >= kFewLists;
  }
  int64_t const in_full_waves = (tiles + kWave - 1) / kWave * kWave;
  return 10 * tiles >= 9 * in_full_waves &&
         (shape.part_size() <= kManyHeads || tiles >= 3 * kWave);
}

// As few parts of the query groups as occupy the SMs well: parts cost a pass over their dK and dV.
// At most as many as need no more memory for those than two fp32 dQ, as many keys as queries do.
constexpr int choose_group_parts(GridShape const& shape) {
  int const group = max_int(shape.group_size(), 1);
  int64_t const most_rows = int64_t{shape.num_heads} * shape.seqlen_q;
  int chosen = 1;
  for (int parts = 1; parts <= group; ++parts) {
    GridShape const cut = with_group_parts(shape, parts);
    if (group % parts != 0) {
      continue;
    }
    if (parts > 1 && int64_t{cut.lists_of_a_sequence()} * shape.seqlen_k > most_rows) {
      break;
    }
    chosen = parts;
    if (occupies_sms(cut)) {
      break;
    }
  }
  return chosen;
}

// Whether a schedule of gangs takes no more waves than any other. Only whole gangs run at a time,
// and a list's second gang after its first one.
constexpr bool fills_waves(GridShape const& shape, ScheduleKind gang) {
  constexpr int kMostGang = 64;  // fits every Hopper part, so that the order is the same on all
  if (num_tiles(shape) == 0 || !is_legal(shape, gang)) {
    return false;
  }
  int const gang_size = BuiltIn::gang_size(make_grid(shape, gang));
  if (gang_size > kMostGang) {
    return false;
  }
  // Tuning: two gangs of 48 KV tiles at a time are 12 to 25 % slower than band, two of 64 or four
  // of 32 are 3 to 10 % faster.
  int const gangs_of_a_list = ceil_div(num_kv_tiles(shape), gang_size);
  int const waves = gangs_of_a_list * ceil_div(shape.num_lists(), kWave / gang_size);
  return waves <= (num_tiles(shape) + kWave - 1) / kWave;
}

// Without a mask: a gang where there are few waves of work tiles, because it keeps all SMs busy;
// where there are more, band.
// Tuning: ring for one query head a list. Where a list has several, they follow each other in a
// CTA, and shift, whose contributors are one step apart, is faster (by 30 % at 2,048 tokens).
constexpr ScheduleKind choose_without_mask(GridShape const& shape) {
  int64_t const tiles = num_tiles(shape);
  if (shape.part_size() == 1 && tiles < 8 * kWave && fills_waves(shape, ScheduleKind::kRing)) {
    return ScheduleKind::kRing;
  }
  return tiles < 4 * kWave && fills_waves(shape, ScheduleKind::kShift) ? ScheduleKind::kShift
                                                                        : ScheduleKind::kBand;
}

// Under a causal mask: mirrored, which balances the SMs best; band for lists of several query heads
// (of two, where there are few waves, mirrored too), for no more work tiles than SMs, and for many
// lists of few KV tiles, where there is nothing to balance.
// At head dim 256 the hand-over of dQ, not the balance, limits many waves of long lists.
constexpr ScheduleKind choose_under_causal_mask(GridShape const& shape) {
  constexpr int kShortList = 4;
  constexpr int kManyWaves = 8 * kWave;
  int64_t const tiles = num_tiles(shape);
  bool const is_long = num_kv_tiles(shape) >= 32 && tiles >= 6 * kWave;
  if (shape.key.head_dim == 256 && shape.part_size() == 1 && is_long) {
    return num_kv_tiles(shape) <= 64 ? ScheduleKind::kShortestFirst : ScheduleKind::kComb;
  }
  bool const is_balanced = num_kv_tiles(shape) < kShortList && tiles >= kManyWaves;
  bool const has_small_parts =
      shape.part_size() == 1 || (shape.part_size() == 2 && tiles < 3 * kWave);
  bool const is_mirrored = has_small_parts && tiles > kWave && !is_balanced;
  return is_mirrored ? ScheduleKind::kMirrored : ScheduleKind::kBand;
}

// For the parts of the shape. Tuning: the bounds are those of an H200 (docs/schedules.md).
constexpr ScheduleKind choose_kind(GridShape const& shape) {
  if (shape.is_packed || shape.mask == MaskKind::kWindow) {
    return ScheduleKind::kBand;
  }
  return shape.mask == MaskKind::kFull ? choose_without_mask(shape)
                                       : choose_under_causal_mask(shape);
}

// The same where only `num_ctas` CTAs can be resident: a gang that does not fit gives way to band,
// which is legal for every call and needs one CTA.
constexpr ScheduleKind choose_kind(GridShape const& shape, int num_ctas) {
  ScheduleKind const kind = choose_kind(shape);
  return BuiltIn::gang_size(make_grid(shape, kind)) > num_ctas ? ScheduleKind::kBand : kind;
}

constexpr ScheduleChoice choose_schedule(GridShape const& shape) {
  int const parts = choose_group_parts(shape);
  return {choose_kind(with_group_parts(shape, parts)), parts};
}

// Whether "auto" would be another order for another batch size, or among other sequences in a pack.
constexpr bool choice_depends_on_batch(GridShape shape) {
  ScheduleChoice const choice = choose_schedule(shape);
  if (shape.is_packed) {
    // The number of tiles is the only thing of a pack that counts, and this makes the fewest.
    shape.seqlen_k = 1;
  }
  // From 8 waves on no bound lies between two powers of two that it does not part from both.
  for (shape.batch = 1; shape.batch <= 16 * kWave;
       shape.batch += shape.batch < 8 * kWave ? 1 : shape.batch) {
    if (choose_schedule(shape) != choice) {
      return true;
    }
  }
  return false;
}

// The parts that a schedule's text means: given with it; else for "auto", and for "unordered",
// whose name pins no order, the chosen number; else whole groups.
constexpr int group_parts_of(GridShape const& shape, ScheduleText const& text) {
  if (text.group_parts > 0) {
    return text.group_parts;
  }
  bool const is_free = text.name == "auto" || text.name == Unordered::kName;
  return is_free ? choose_group_parts(shape) : 1;
}

}  // namespace dash::schedule
