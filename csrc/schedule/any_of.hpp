// AnyOf<P...>: itself a policy; grid.schedule names the member that answers. Policies that differ
// only in integers share one compiled kernel this way, so a policy costs no compile time.
// BuiltIn is the set that the kernels, the CPU path and the tools use.
#pragma once

#include "schedule/ascending.hpp"
#include "schedule/band.hpp"
#include "schedule/policy.hpp"
#include "schedule/shortest_first.hpp"
#include "schedule/unordered.hpp"

namespace dash::schedule {

template <class Head, class... Tail>
struct AnyOf {
  static constexpr char const* kName = "any_of";
  static constexpr ScheduleKind kKind = Head::kKind;

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
  DASH_HOST_DEVICE static constexpr bool is_ordered(TileGrid const& grid) {
    return visit(grid.schedule, [&](auto policy) { return policy.is_ordered(grid); });
  }
  DASH_HOST_DEVICE static constexpr WorkTile work(TileGrid const& grid, int ticket) {
    return visit(grid.schedule, [&](auto policy) { return policy.work(grid, ticket); });
  }
  DASH_HOST_DEVICE static constexpr int m_block(TileGrid const& grid, WorkTile const& tile,
                                                int step) {
    return visit(grid.schedule, [&](auto policy) { return policy.m_block(grid, tile, step); });
  }
  DASH_HOST_DEVICE static constexpr int turn(TileGrid const& grid, WorkTile const& tile,
                                             int m_block) {
    return visit(grid.schedule, [&](auto policy) { return policy.turn(grid, tile, m_block); });
  }
  DASH_HOST_DEVICE static constexpr int num_turns(TileGrid const& grid, int m_block) {
    return visit(grid.schedule, [&](auto policy) { return policy.num_turns(grid, m_block); });
  }
};

using BuiltIn = AnyOf<Unordered, Ascending, ShortestFirst, Band>;

static_assert(Policy<Unordered> && Policy<Ascending> && Policy<ShortestFirst> && Policy<Band> &&
                  Policy<BuiltIn>,
              "every built-in schedule fulfils the policy contract");

}  // namespace dash::schedule
