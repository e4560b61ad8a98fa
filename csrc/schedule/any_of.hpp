// AnyOf<P...>: itself a policy; grid.schedule names the member that answers. Policies that differ
// only in integers share one compiled kernel this way, so a policy costs no compile time. BuiltIn
// is the set that the CPU path and the tools use; config/kernel_policies.hpp says which of them a
// kernel needs.
#pragma once

#include <type_traits>

#include "schedule/ascending.hpp"
#include "schedule/band.hpp"
#include "schedule/comb.hpp"
#include "schedule/descending.hpp"
#include "schedule/mirrored.hpp"
#include "schedule/policy.hpp"
#include "schedule/ring.hpp"
#include "schedule/shift.hpp"
#include "schedule/shortest_first.hpp"
#include "schedule/symmetric_shift.hpp"
#include "schedule/unordered.hpp"

namespace dash::schedule {

template <class... P>
struct AnyOf;

template <class Head, class... Tail>
struct AnyOf<Head, Tail...> {
  static constexpr char const* kName = "any_of";
  static constexpr char const* kLegalFor = "what the chosen policy is legal for";
  static constexpr ScheduleKind kKind = Head::kKind;
  static constexpr bool kRepeatable = (Head::kRepeatable && ... && Tail::kRepeatable);
  static constexpr bool kBatchInvariant = (Head::kBatchInvariant && ... && Tail::kBatchInvariant);
  static constexpr bool kDeviceInvariant =
      (Head::kDeviceInvariant && ... && Tail::kDeviceInvariant);
  static constexpr bool kLegalForPacked = (Head::kLegalForPacked && ... && Tail::kLegalForPacked);

  // Calls `ask` with an instance of the policy that `kind` names (the last one if none does; the
  // host rejects unknown names before a launch).
  template <class Ask>
  DASH_HOST_DEVICE static constexpr auto visit(ScheduleKind kind, Ask ask) {
    if constexpr (sizeof...(Tail) == 0) {
      return ask(Head{});
    } else {
      if (kind == Head::kKind) {
        return ask(Head{});
      }
      return AnyOf<Tail...>::visit(kind, ask);
    }
  }

  DASH_HOST_DEVICE static constexpr bool supports(MaskKind mask) {
    return Head::supports(mask) || (Tail::supports(mask) || ...);
  }
  DASH_HOST_DEVICE static constexpr bool is_legal(TileGrid const& grid) {
    return visit(grid.schedule, [&](auto policy) { return policy.is_legal(grid); });
  }
  DASH_HOST_DEVICE static constexpr int gang_size(TileGrid const& grid) {
    return visit(grid.schedule, [&](auto policy) { return policy.gang_size(grid); });
  }
  DASH_HOST_DEVICE static constexpr int gang_end(TileGrid const& grid, int ticket) {
    return visit(grid.schedule, [&](auto policy) { return policy.gang_end(grid, ticket); });
  }
  DASH_HOST_DEVICE static constexpr bool is_ordered(TileGrid const& grid) {
    return visit(grid.schedule, [&](auto policy) { return policy.is_ordered(grid); });
  }
  DASH_HOST_DEVICE static constexpr int num_tickets(TileGrid const& grid) {
    return visit(grid.schedule, [&](auto policy) { return policy.num_tickets(grid); });
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return visit(grid.schedule, [&](auto policy) { return policy.work(grid, ticket); });
  }
  DASH_HOST_DEVICE static constexpr WorkTile next_tile(TileGrid const& grid,
                                                       WorkTile const& tile) {
    return visit(grid.schedule, [&](auto policy) { return policy.next_tile(grid, tile); });
  }
  DASH_HOST_DEVICE static constexpr Sweep sweep(TileGrid const& grid, WorkTile const& tile) {
    return visit(grid.schedule, [&](auto policy) { return policy.sweep(grid, tile); });
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return visit(grid.schedule, [&](auto policy) { return policy.turn(grid, tile, m_block); });
  }
  DASH_HOST_DEVICE static constexpr int num_turns(TileGrid const& grid, int m_block) {
    return visit(grid.schedule, [&](auto policy) { return policy.num_turns(grid, m_block); });
  }
};

// Kept is an AnyOf; adds those P of the rest for which Choice::includes<P>().
template <class Choice, class Kept, class... Rest>
struct Including {
  using type = Kept;
};
template <class Choice, class... Kept, class Head, class... Tail>
struct Including<Choice, AnyOf<Kept...>, Head, Tail...>
    : std::conditional_t<Choice::template includes<Head>(),
                         Including<Choice, AnyOf<Kept..., Head>, Tail...>,
                         Including<Choice, AnyOf<Kept...>, Tail...>> {};

// The AnyOf of those members of another one that a choice includes.
template <class Choice, class... P>
constexpr auto including(AnyOf<P...>) -> typename Including<Choice, AnyOf<>, P...>::type;

using BuiltIn = AnyOf<Unordered, Ascending, ShortestFirst, Descending, Shift, SymmetricShift, Band,
                      Mirrored, Comb, Ring>;

template <class... P>
constexpr bool are_policies(AnyOf<P...>) {
  return (Policy<P> && ...);
}
static_assert(are_policies(BuiltIn{}) && Policy<BuiltIn>,
              "every built-in schedule fulfils the policy contract");

}  // namespace dash::schedule
