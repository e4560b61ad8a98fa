// A model of the main backward kernel with time: what happens when on each of P slots (CTAs). Items
// are taken in ticket order by the slot that is free first; each step computes a Q tile, hands it
// to a writer through a buffer, and the writer adds it when its turn has come. Host only.
// Invariant: a time is final once it is known, because it is a maximum of known times; and a slot
// that waits for an item which no slot has taken cannot be the next one that is free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "schedule/any_of.hpp"

namespace dash::schedule {

// In any one unit of time. With writers == 0 the add is in line: the next tile's compute begins
// when the add has ended, as in the paper's model.
struct Costs {
  double compute = 1.0;   // the products of one Q tile
  double reduce = 0.0;    // an add, until its buffer is free again
  double lag = 0.0;       // from there until the next contributor may begin
  double prologue = 0.0;  // before a work tile's first compute
  double epilogue = 0.0;  // after its last
  int writers = 0;        // tiles go to them in turn; a writer waits for the lag too
  int buffers = 1;        // finished tiles that can wait for their add
};

// One visit of a Q tile.
struct Step {
  int slot;
  int ticket;
  WorkTile tile;
  int m_block;
  int turn;
  double compute_begin;
  double handed;  // when a buffer had taken it and the next compute could begin
  double add_begin;
  bool after_adds;  // its work tile began when the slot's earlier adds had been made
};

struct Timeline {
  std::vector<Step> steps;
  bool is_finished;  // false: a deadlock, and the steps are those that happened
  double makespan;
  double work;     // of all slots: prologues, computes, epilogues, adds in line
  double waiting;  // of all slots, between a compute's end and the next one's possible begin
};

class Simulation {
 public:
  Simulation(TileGrid const& grid, int num_slots, Costs const& costs)
      : grid_(grid), costs_(costs), is_ordered_(BuiltIn::is_ordered(grid)),
        slots_(num_slots),
        chains_(static_cast<std::size_t>(grid.num_heads) * grid.batch * grid.num_m_blocks()) {}

  Timeline run() {
    int const num_tickets = BuiltIn::num_tickets(grid_);
    for (int ticket = 0; ticket < num_tickets; ++ticket) {
      int const slot = first_free();
      if (slot < 0) {
        break;
      }
      take(slot, ticket);
      advance_all(slot);
    }
    bool const is_finished =
        taken_ == num_tickets && std::all_of(slots_.begin(), slots_.end(), [](Slot const& slot) {
          return slot.tile.n_block < 0 && slot.num_added == slot.sequence.size();
        });
    double makespan = 0.0;
    for (Slot const& slot : slots_) {
      makespan = std::max({makespan, slot.free_at, slot.drained});
    }
    return {std::move(steps_), is_finished, makespan, work_, waiting_};
  }

 private:
  struct Slot {
    WorkTile tile = no_tile();  // its present work tile, if any
    bool after_adds = false;    // see Step
    int ticket = -1;
    int next_step = 0;                  // of the work tile, whose compute comes next
    double free_at = 0.0;               // when that compute or the next item can begin
    std::vector<std::size_t> sequence;  // its steps, over all its work tiles
    std::size_t num_added = 0;          // of those
    bool has_full_buffers = false;      // the newest step is computed and not handed over
    bool waits_for_turn = false;        // the oldest step that is not added
    double drained = 0.0;               // end of the last add
    // It may not take a ticket before its present item's last add, because when the item's computes
    // ended its gang's tickets were not all taken.
    bool is_held = false;
  };
  // The contributions to one Q tile's dQ.
  struct Chain {
    int next_turn = 0;
    double passed = 0.0;                       // when the next turn may begin
    std::vector<std::pair<int, int>> waiting;  // (turn, slot)
  };

  // The idle slot that was free first, -1 if all are held by items that wait.
  int first_free() const {
    int best = -1;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      bool const is_idle = slots_[i].tile.n_block < 0;
      if (is_idle && (best < 0 || slots_[i].free_at < slots_[best].free_at)) {
        best = static_cast<int>(i);
      }
    }
    return best;
  }

  void take(int index, int ticket) {
    ++taken_;
    Slot& slot = slots_[index];
    slot.ticket = ticket;
    bool const was_held = std::exchange(slot.is_held, false);
    start(slot, BuiltIn::work(grid_, ticket), was_held);
  }

  void start(Slot& slot, WorkTile const& tile, bool after_adds) {
    slot.tile = tile;
    slot.after_adds = after_adds;
    slot.next_step = 0;
    slot.free_at += costs_.prologue;
    work_ += costs_.prologue + costs_.epilogue;
  }

  // Fixes all times that are known now, of this slot and of those that it lets go on.
  void advance_all(int first) {
    std::vector<int> ready = {first};
    while (!ready.empty()) {
      int const index = ready.back();
      ready.pop_back();
      while (add_next(index, ready) || compute_next(index)) {
      }
    }
  }

  // Computes the slot's next tile or ends its work tile; false if that must wait or nothing is
  // left.
  bool compute_next(int index) {
    Slot& slot = slots_[index];
    bool const is_in_line = costs_.writers == 0;
    std::size_t const in_flight = slot.sequence.size() - slot.num_added;
    if (slot.tile.n_block < 0 || (is_in_line && in_flight > 0)) {
      return false;
    }
    hand_over(slot);
    if (slot.has_full_buffers) {
      return false;
    }
    if (slot.next_step == grid_.num_steps(slot.tile.n_block)) {
      return end_tile(slot, in_flight);
    }
    Sweep const sweep = BuiltIn::sweep(grid_, slot.tile);
    int const m_block = m_block_of(sweep, grid_.num_m_blocks(), slot.next_step++);
    int const turn = is_ordered_ ? BuiltIn::turn(grid_, slot.tile, m_block) : 0;
    double const computed = slot.free_at + costs_.compute;
    slot.sequence.push_back(steps_.size());
    steps_.push_back({index, slot.ticket, slot.tile, m_block, turn, slot.free_at, computed, -1.0,
                      slot.after_adds});
    work_ += costs_.compute + (is_in_line ? costs_.reduce : 0.0);
    slot.has_full_buffers = !is_in_line;
    hand_over(slot);
    return true;
  }

  // Fixes when the newest tile leaves the compute side, if the buffer that it needs is known to be
  // free by then or later.
  void hand_over(Slot& slot) {
    if (!slot.has_full_buffers) {
      return;
    }
    std::size_t const newest = slot.sequence.size() - 1;
    std::size_t const buffers = static_cast<std::size_t>(costs_.buffers);
    if (slot.num_added + buffers <= newest) {
      return;
    }
    Step& step = steps_[slot.sequence[newest]];
    double const computed = step.handed;
    if (newest >= buffers) {
      step.handed = std::max(computed, drained_at(slot, newest - buffers));
    }
    slot.free_at = step.handed;
    slot.has_full_buffers = false;
    waiting_ += step.handed - computed;
  }

  bool end_tile(Slot& slot, std::size_t in_flight) {
    WorkTile const next = BuiltIn::next_tile(grid_, slot.tile);
    if (next.n_block < 0 && taken_ < BuiltIn::gang_end(grid_, slot.ticket)) {
      slot.is_held = true;
    }
    if (slot.is_held && in_flight > 0) {
      return false;
    }
    slot.free_at += costs_.epilogue;
    if (slot.is_held && costs_.writers > 0) {
      slot.free_at = std::max(slot.free_at, slot.drained + costs_.lag);
    }
    if (next.n_block < 0) {
      slot.tile = next;
    } else {
      start(slot, next, false);
    }
    return true;
  }

  // Adds the slot's oldest tile that has not been added; false if there is none or it must wait.
  bool add_next(int index, std::vector<int>& ready) {
    Slot& slot = slots_[index];
    hand_over(slot);
    bool const is_newest = slot.num_added + 1 == slot.sequence.size();
    if (slot.num_added == slot.sequence.size() || slot.waits_for_turn ||
        (is_newest && slot.has_full_buffers)) {
      return false;
    }
    Step& step = steps_[slot.sequence[slot.num_added]];
    Chain& chain = chain_of(step);
    if (is_ordered_ && chain.next_turn != step.turn) {
      chain.waiting.emplace_back(step.turn, index);
      slot.waits_for_turn = true;
      return false;
    }
    step.add_begin = std::max(step.handed, slot.drained);
    std::size_t const writers = static_cast<std::size_t>(costs_.writers);
    if (is_ordered_) {
      step.add_begin = std::max(step.add_begin, chain.passed);
      if (writers > 0 && slot.num_added >= writers) {
        double const completed = drained_at(slot, slot.num_added - writers) + costs_.lag;
        step.add_begin = std::max(step.add_begin, completed);
      }
    }
    slot.drained = step.add_begin + costs_.reduce;
    ++slot.num_added;
    if (writers == 0) {
      waiting_ += step.add_begin - step.handed;
      slot.free_at = slot.drained;
    }
    pass_turn(chain, slot.drained + costs_.lag, ready);
    return true;
  }

  void pass_turn(Chain& chain, double time, std::vector<int>& ready) {
    ++chain.next_turn;
    chain.passed = time;
    auto const next = std::find_if(chain.waiting.begin(), chain.waiting.end(), [&](auto const& w) {
      return w.first == chain.next_turn;
    });
    if (next != chain.waiting.end()) {
      slots_[next->second].waits_for_turn = false;
      ready.push_back(next->second);
      chain.waiting.erase(next);
    }
  }

  double drained_at(Slot const& slot, std::size_t index) const {
    return steps_[slot.sequence[index]].add_begin + costs_.reduce;
  }

  Chain& chain_of(Step const& step) {
    std::size_t const list =
        static_cast<std::size_t>(step.tile.bidb) * grid_.num_heads + step.tile.bidh;
    return chains_[list * grid_.num_m_blocks() + step.m_block];
  }

  TileGrid grid_;
  Costs costs_;
  bool is_ordered_;
  std::vector<Slot> slots_;
  std::vector<Chain> chains_;
  std::vector<Step> steps_;
  int taken_ = 0;
  double work_ = 0.0;
  double waiting_ = 0.0;
};

}  // namespace dash::schedule
