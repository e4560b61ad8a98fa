// The sequence of work items, and the ring in shared memory that carries them from the load warp to
// the MMA warps. An item is found from its ticket; tickets come from a counter in global memory, so
// a CTA that finishes early takes more. Which CTA computes an item changes no bit of the result.
// Invariant: every ticket 0 .. num_items - 1 is taken by exactly one CTA.
#pragma once

#include "fwd/traits.cuh"

namespace dash::fwd {

// Heads are taken in sections whose K and V fit in L2 together. Within a section the last Q tiles
// of all its heads come first: under a causal mask they are the longest, and the short ones fill
// the gaps at the end.
template <class Traits>
CUTE_DEVICE WorkItem work_item(FwdKernelArgs<Traits> const& args, int ticket) {
  if (ticket >= args.num_items) {
    return {.m_block = -1, .bidh = 0, .bidb = 0, .num_n_blocks = 0};
  }
  int const num_m_blocks = args.grid.num_m_blocks();
  int const section = ticket / (args.heads_per_section * num_m_blocks);
  int const rank = ticket - section * args.heads_per_section * num_m_blocks;
  int const first_head = section * args.heads_per_section;
  int const heads_left = args.params.num_heads * args.params.batch - first_head;
  int const num_section_heads = schedule::min_int(args.heads_per_section, heads_left);
  int const reversed_m_block = rank / num_section_heads;
  int const m_block = num_m_blocks - 1 - reversed_m_block;
  int const head = first_head + rank - reversed_m_block * num_section_heads;
  int const bidb = head / args.params.num_heads;
  return {.m_block = m_block,
          .bidh = head - bidb * args.params.num_heads,
          .bidb = bidb,
          .num_n_blocks = args.grid.n_end(m_block)};
}

// Load warp's elected lane. full[s]: arrives this lane (1); waits every MMA thread; protects
// items[s]. Guarantee: the arrive releases the store before it, the wait acquires it.
template <class Traits>
CUTE_DEVICE void publish_item(typename Traits::SharedStorage& smem,
                              RingState<Traits::kItemStages>& state, WorkItem item) {
  producer_acquire(smem.item_ring, state);
  // Correctness: volatile and with a memory clobber, because the mbarrier wrappers have none.
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(
                   cast_smem_ptr_to_uint(&smem.items[state.stage])),
               "r"(item.m_block), "r"(item.bidh), "r"(item.bidb), "r"(item.num_n_blocks)
               : "memory");
  cutlass::arch::ClusterBarrier::arrive(&smem.item_ring.full[state.stage]);
  state.advance();
}

// MMA threads, between consumer_wait and consumer_release of the item ring.
template <class Traits>
CUTE_DEVICE WorkItem read_item(typename Traits::SharedStorage& smem,
                               RingState<Traits::kItemStages> state) {
  WorkItem item;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(item.m_block), "=r"(item.bidh), "=r"(item.bidb), "=r"(item.num_n_blocks)
               : "r"(cast_smem_ptr_to_uint(&smem.items[state.stage]))
               : "memory");
  return item;
}

}  // namespace dash::fwd
