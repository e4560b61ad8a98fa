// The sequence of work items, and the ring in shared memory that carries them from the load warp to
// the MMA warps. An item is found from its ticket; tickets come from a counter in global memory, so
// a CTA that finishes early takes more. Which CTA computes an item changes no bit of the result.
// Invariant: every ticket 0 .. num_items - 1 is taken by exactly one CTA.
#pragma once

#include "common/sequence_order.cuh"
#include "fwd/traits.cuh"
#include "schedule/sequence_grid.hpp"

namespace dash::fwd {

// The problem of an item's sequence, counted in tiles. In a dense kernel it is the whole problem's.
// Tuning: what the kernel was compiled for is made a constant again, because the load lane divides
// by it between two items, and that is time in which nothing is loaded.
template <class Traits>
CUTE_DEVICE schedule::TileGrid item_grid(FwdKernelArgs<Traits> const& args,
                                         Sequence const& sequence) {
  schedule::TileGrid grid = args.params.grid;
  grid.block_m = Traits::kBlockM;
  grid.block_n = Traits::kBlockN;
  if constexpr (!Traits::kIsGeneral) {
    grid.mask = Traits::kMask;
  }
  return Traits::kIsDense
             ? grid
             : schedule::sequence_grid(grid, sequence.seqlen_q, sequence.seqlen_k);
}

CUTE_DEVICE WorkItem no_item() { return {.m_block = -1, .bidh = 0, .bidb = 0, .n_end = 0}; }

// A ticket of the Q tiles of `num_heads` heads that share `grid`; the head goes into bidh.
// Heads are taken in sections whose K and V fit in L2 together. Within a section the last Q tiles
// of all its heads come first: under a causal mask they are the longest, and the short ones fill
// the gaps at the end.
CUTE_DEVICE WorkItem item_of_ticket(schedule::TileGrid const& grid, int num_heads,
                                    int heads_per_section, int ticket) {
  int const num_m_blocks = grid.num_m_blocks();
  int const section = ticket / (heads_per_section * num_m_blocks);
  int const rank = ticket - section * heads_per_section * num_m_blocks;
  int const first_head = section * heads_per_section;
  int const num_section_heads = schedule::min_int(heads_per_section, num_heads - first_head);
  int const reversed_m_block = rank / num_section_heads;
  int const m_block = num_m_blocks - 1 - reversed_m_block;
  return {.m_block = m_block,
          .bidh = first_head + rank - reversed_m_block * num_section_heads,
          .bidb = 0,
          .n_end = grid.num_contributors(m_block) > 0 ? grid.n_end(m_block) : 0};
}

// What the load lane knows of its place among the tickets.
struct TicketPlace {
  int ticket;
  int rank = 0;  // of the sequence of an earlier ticket; packed only
};

// A work item and the sequence it belongs to.
struct PlacedItem {
  WorkItem item;
  Sequence sequence;
};

// (batch, seqlen) tensors: the heads of all batch entries, one after the other.
template <class Traits>
CUTE_DEVICE PlacedItem dense_item(FwdKernelArgs<Traits> const& args, int ticket) {
  int const num_heads = args.params.num_heads;
  schedule::TileGrid const& problem = args.params.grid;
  Sequence const sequence{problem.seqlen_q, problem.seqlen_k, 0, 0};
  if (ticket >= args.num_items) {
    return {no_item(), sequence};
  }
  WorkItem item = item_of_ticket(item_grid(args, sequence), num_heads * problem.batch,
                                 args.heads_per_section, ticket);
  item.bidb = item.bidh / num_heads;
  item.bidh -= item.bidb * num_heads;
  return {item, sequence};
}

// Packed sequences: the heads of one sequence after those of another, the longest first.
template <class Traits>
CUTE_DEVICE PlacedItem packed_item(FwdKernelArgs<Traits> const& args, TicketPlace& place) {
  FwdParams const& params = args.params;
  int const batch = params.grid.batch;
  if (place.ticket >= params.ticket_begin[batch]) {
    return {no_item(), {}};
  }
  place.rank = rank_of_ticket(params.ticket_begin, batch, place.ticket, place.rank);
  int const bidb = params.sequence_order[place.rank];
  Sequence const sequence = sequence_of(params.packed, bidb);
  WorkItem item = item_of_ticket(item_grid(args, sequence), params.num_heads,
                                 args.heads_per_section,
                                 place.ticket - params.ticket_begin[place.rank]);
  item.bidb = bidb;
  return {item, sequence};
}

// The item of the place's ticket.
template <class Traits>
CUTE_DEVICE PlacedItem work_item(FwdKernelArgs<Traits> const& args, TicketPlace& place) {
  if constexpr (!Traits::kIsDense) {
    if (args.params.packed.is_packed()) {
      return packed_item(args, place);
    }
  }
  return dense_item(args, place.ticket);
}

// Load warp's elected lane. full[s]: arrives this lane (1); waits every MMA thread; protects
// items[s] and sequences[s]. Guarantee: the arrive releases the stores before it, the wait acquires
// them.
template <class Traits>
CUTE_DEVICE void publish_item(typename Traits::SharedStorage& smem,
                              RingState<Traits::kItemStages>& state,
                              PlacedItem const& placed) {
  WorkItem const& item = placed.item;
  Sequence const& sequence = placed.sequence;
  producer_acquire(smem.item_ring, state);
  // Correctness: volatile and with a memory clobber, because the mbarrier wrappers have none.
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(
                   cast_smem_ptr_to_uint(&smem.items[state.stage])),
               "r"(item.m_block), "r"(item.bidh), "r"(item.bidb), "r"(item.n_end)
               : "memory");
  if constexpr (!Traits::kIsDense) {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(
                     cast_smem_ptr_to_uint(&smem.sequences[state.stage])),
                 "r"(sequence.seqlen_q), "r"(sequence.seqlen_k), "r"(sequence.offset_q),
                 "r"(sequence.offset_k)
                 : "memory");
  }
  cutlass::arch::ClusterBarrier::arrive(&smem.item_ring.full[state.stage]);
  state.advance();
}

// MMA threads, between consumer_wait and consumer_release of the item ring.
template <class Traits>
CUTE_DEVICE WorkItem read_item(typename Traits::SharedStorage& smem,
                               RingState<Traits::kItemStages> state) {
  WorkItem item;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(item.m_block), "=r"(item.bidh), "=r"(item.bidb), "=r"(item.n_end)
               : "r"(cast_smem_ptr_to_uint(&smem.items[state.stage]))
               : "memory");
  return item;
}

// Likewise. In a dense kernel all sequences are alike.
template <class Traits>
CUTE_DEVICE Sequence read_sequence(FwdKernelArgs<Traits> const& args,
                                   typename Traits::SharedStorage& smem,
                                   RingState<Traits::kItemStages> state) {
  if constexpr (Traits::kIsDense) {
    return {args.params.grid.seqlen_q, args.params.grid.seqlen_k, 0, 0};
  } else {
    Sequence sequence;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(sequence.seqlen_q), "=r"(sequence.seqlen_k), "=r"(sequence.offset_q),
                   "=r"(sequence.offset_k)
                 : "r"(cast_smem_ptr_to_uint(&smem.sequences[state.stage]))
                 : "memory");
    return sequence;
  }
}

}  // namespace dash::fwd
