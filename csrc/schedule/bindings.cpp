// dash._schedule: the schedule policies and the tile tables as Python sees them. The headers are
// the very ones that the kernels are compiled from; nothing is decided here. No torch, no CUDA.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "config/bwd_config.hpp"
#include "config/fwd_config.hpp"
#include "schedule/choose.hpp"
#include "schedule/sequence_grid.hpp"
#include "schedule/simulate.hpp"
#include "schedule/timeline.hpp"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace dash;
using namespace dash::schedule;

namespace {

std::string_view name_of(ScheduleKind kind) {
  return BuiltIn::visit(kind, [](auto policy) { return std::string_view(policy.kName); });
}

ScheduleKind kind_of(std::string const& name) {
  ScheduleText const text = split_schedule(name);
  auto const kind = find_schedule(text.name);
  if (kind && text.is_well_formed()) {
    return *kind;
  }
  throw std::invalid_argument("schedule='" + name + "' is not known; see schedules()");
}

// (left, right) as the operators take it: negative is no limit.
using Window = std::pair<int64_t, int64_t>;

MaskKind mask_of(Window window) { return schedule::mask_of(window.first, window.second); }

// A limit that no length reaches is none.
int int_limit(int64_t limit) { return static_cast<int>(std::clamp<int64_t>(limit, -1, INT_MAX)); }

// What else a kernel is found by.
struct Features {
  bool is_packed;
  bool has_softcap;
};

KernelKey key_of(std::string const& dtype, int head_dim, Window window, Features features) {
  if (dtype != "bf16" && dtype != "fp16") {
    throw std::invalid_argument("dtype='" + dtype + "' is not known; 'bf16' and 'fp16' are");
  }
  int const compiled = kernel_head_dim(head_dim, head_dim);
  if (compiled == 0) {
    throw std::invalid_argument("head_dim=" + std::to_string(head_dim) + " is above the maximum " +
                                std::to_string(kMaxHeadDim));
  }
  return {.dtype = dtype == "bf16" ? DType::kBf16 : DType::kFp16, .head_dim = compiled,
          .variant = variant_of(compiled, mask_of(window), features.is_packed,
                                features.has_softcap)};
}

std::string_view variant_name(Variant variant) {
  constexpr std::array<std::string_view, 4> kNames = {"full", "causal", "packed_full", "general"};
  return kNames[static_cast<std::size_t>(variant)];
}

// (compiled head dim, variant), as a kernel's name has them
std::tuple<int, std::string_view> kernel_name_words(int head_dim, Window window, bool packed,
                                                    bool softcap) {
  KernelKey const key = key_of("bf16", head_dim, window, {packed, softcap});
  return {key.head_dim, variant_name(key.variant)};
}

std::vector<std::string_view> schedules() {
  std::vector<std::string_view> names;
  for (NamedPolicy const& policy : kNamedPolicies) {
    names.push_back(policy.name);
  }
  // The ordered ones first.
  std::rotate(names.begin(), std::find(names.begin(), names.end(), Unordered::kName) + 1,
              names.end());
  return names;
}

// m_block and turn never read the batch entry: one work tile stands for all of them.
WorkTile tile_of(int n_block, int bidh) { return {.n_block = n_block, .bidh = bidh, .bidb = 0}; }

using Tile = std::tuple<int, int, int>;
Tile tuple_of(WorkTile const& tile) { return {tile.n_block, tile.bidh, tile.bidb}; }

GridShape shape_of(std::string const& dtype, int head_dim, Window window,
                   std::array<int, 5> const& sizes, Features features) {
  auto const [batch, seqlen_q, seqlen_k, num_heads, num_heads_k] = sizes;
  return {.key = key_of(dtype, head_dim, window, features), .batch = batch, .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k, .num_heads = num_heads, .num_heads_k = num_heads_k,
          .mask = mask_of(window), .window_left = int_limit(window.first),
          .window_right = int_limit(window.second), .is_packed = features.is_packed};
}

// Any tiles, for tests and pictures.
TileGrid grid_of(int seqlen_q, int seqlen_k, int block_m, int block_n, int num_heads, int batch,
                 Window window, std::string const& schedule, int section) {
  MaskKind const mask = mask_of(window);
  bool const is_window = mask == MaskKind::kWindow;
  return {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .block_m = block_m, .block_n = block_n,
          .num_heads = num_heads, .batch = batch, .mask = mask, .schedule = kind_of(schedule),
          .section = section,
          .window_left = is_window ? window_limit(int_limit(window.first), seqlen_k) : 0,
          .window_right = is_window ? window_limit(int_limit(window.second), seqlen_q) : 0};
}

// The grid's window as TileGrid takes it; a limit of a window mask that no key exceeds is the one
// that stands in its place.
Window window_of(TileGrid const& grid) {
  if (grid.mask == MaskKind::kWindow) {
    return {grid.window_left, grid.window_right};
  }
  return {-1, grid.mask == MaskKind::kCausal ? 0 : -1};
}

// (is_repeatable, is_batch_invariant, is_device_invariant)
std::tuple<bool, bool, bool> claims(std::string const& name) {
  NamedPolicy const& policy = named(kind_of(name));
  return {policy.is_repeatable, policy.is_batch_invariant, policy.is_device_invariant};
}

// ("name" or "name/parts", whether another batch size could mean another one)
std::tuple<std::string, bool> choose(GridShape const& shape, std::optional<int> num_ctas) {
  GridShape const cut = with_group_parts(shape, choose_group_parts(shape));
  std::string name(name_of(num_ctas ? choose_kind(cut, *num_ctas) : choose_kind(cut)));
  if (cut.group_parts > 1) {
    name += "/" + std::to_string(cut.group_parts);
  }
  return {name, choice_depends_on_batch(shape)};
}

// The grid of a call with the schedule and the parts that the text names.
TileGrid grid_of_call(GridShape const& shape, std::string const& schedule) {
  ScheduleKind const kind = kind_of(schedule);
  ScheduleText const text = split_schedule(schedule);
  int const parts = group_parts_of(shape, text);
  if (shape.group_size() % parts != 0) {
    throw std::invalid_argument("schedule='" + schedule + "': " + std::to_string(parts) +
                                " parts do not divide a group of " +
                                std::to_string(shape.group_size()) + " query heads");
  }
  return make_grid(with_group_parts(shape, parts), kind, text.section);
}

bool progress(std::variant<TileGrid, std::vector<TileGrid>> const& grids, int slots,
              std::optional<std::vector<int>> order, TakesAhead ahead) {
  auto const* const one = std::get_if<TileGrid>(&grids);
  auto const all = one ? std::vector{*one} : std::get<std::vector<TileGrid>>(grids);
  if (!order) {
    order.emplace(all_tickets(all).size());
    std::iota(order->begin(), order->end(), 0);
  }
  return simulate_progress(all, slots, *order, ahead);
}

void bind_structs(py::module_& m) {
  using G = TileGrid;
  py::class_<G>(m, "TileGrid")
      .def(py::init(&grid_of), "seqlen_q"_a, "seqlen_k"_a, "block_m"_a, "block_n"_a,
           "num_heads"_a = 1, "batch"_a = 1, "window"_a = Window{-1, -1},
           "schedule"_a = Band::kName,
           "section"_a = 1)
      .def_readonly("seqlen_q", &G::seqlen_q).def_readonly("seqlen_k", &G::seqlen_k)
      .def_readonly("block_m", &G::block_m).def_readonly("block_n", &G::block_n)
      .def_readonly("num_heads", &G::num_heads).def_readonly("batch", &G::batch)
      .def_readonly("section", &G::section)
      .def_property_readonly("window", window_of)
      .def_property_readonly("schedule", [](G const& g) { return name_of(g.schedule); })
      .def("m_begin", &G::m_begin, "n_block"_a).def("m_end", &G::m_end, "n_block"_a)
      .def("n_begin", &G::n_begin, "m_block"_a).def("n_end", &G::n_end, "m_block"_a)
      .def("num_steps", &G::num_steps, "n_block"_a)
      .def("num_contributors", &G::num_contributors, "m_block"_a)
      .def("num_m_blocks", &G::num_m_blocks).def("num_n_blocks", &G::num_n_blocks)
      .def("num_work_tiles", &G::num_work_tiles);
}

void bind_configs(py::module_& m) {
  using B = BwdConfig;
  py::class_<B>(m, "BwdConfig")
      .def_readonly("block_m", &B::block_m).def_readonly("block_n", &B::block_n)
      .def_readonly("stages_q", &B::stages_q).def_readonly("stages_do", &B::stages_do)
      .def_readonly("stages_ds", &B::stages_ds).def_readonly("stages_dq", &B::stages_dq)
     .def_readonly("mma_registers", &B::mma_registers)
      .def_readonly("load_registers", &B::load_registers);
  using F = FwdConfig;
  py::class_<F>(m, "FwdConfig")
      .def_readonly("block_m", &F::block_m).def_readonly("block_n", &F::block_n)
      .def_readonly("num_mma_warpgroups", &F::num_mma_warpgroups)
      .def_readonly("stages_kv", &F::stages_kv).def_readonly("mma_registers", &F::mma_registers)
      .def_readonly("load_registers", &F::load_registers);
  m.def("supported_head_dims", [] { return kHeadDims; });
  m.def("bwd_config", [](std::string const& dtype, int head_dim, Window window, bool packed,
                         bool softcap) {
    return bwd_config(key_of(dtype, head_dim, window, {packed, softcap}));
  }, "dtype"_a, "head_dim"_a, "window"_a, py::kw_only(), "packed"_a = false, "softcap"_a = false);
  m.def("fwd_config", [](std::string const& dtype, int head_dim, Window window, bool packed,
                         bool softcap) {
    return fwd_config(key_of(dtype, head_dim, window, {packed, softcap}));
  }, "dtype"_a, "head_dim"_a, "window"_a, py::kw_only(), "packed"_a = false, "softcap"_a = false);
  m.def("kernel_name_words", kernel_name_words, "head_dim"_a, "window"_a, "packed"_a = false,
        "softcap"_a = false, "(compiled head dim, variant) of the kernel that serves such calls");
}

// head_dim is the larger one of q, k and of v; packed: batch counts the sequences, and the lengths
// are the greatest ones.
void bind_calls(py::module_& m) {
  m.def("make_grid", [](std::string const& dtype, int head_dim, Window window, int batch, int sq,
                        int sk, int num_heads, int num_heads_k, std::string const& schedule,
                        bool packed, bool softcap) {
    return grid_of_call(shape_of(dtype, head_dim, window,
                                 {batch, sq, sk, num_heads, num_heads_k}, {packed, softcap}),
                        schedule);
  }, "dtype"_a, "head_dim"_a, "window"_a, "batch"_a, "seqlen_q"_a, "seqlen_k"_a, "num_heads"_a,
     "num_heads_k"_a, "schedule"_a, py::kw_only(), "packed"_a = false, "softcap"_a = false);
  m.def("choose", [](std::string const& dtype, int head_dim, Window window, int batch, int sq,
                     int sk, int num_heads, int num_heads_k, std::optional<int> num_ctas,
                     bool packed, bool softcap) {
    return choose(shape_of(dtype, head_dim, window, {batch, sq, sk, num_heads, num_heads_k},
                           {packed, softcap}), num_ctas);
  }, "dtype"_a, "head_dim"_a, "window"_a, "batch"_a, "seqlen_q"_a, "seqlen_k"_a, "num_heads"_a,
     "num_heads_k"_a, "num_ctas"_a = py::none(), py::kw_only(), "packed"_a = false,
     "softcap"_a = false,
     "(name or name/parts, depends_on_batch) of schedule='auto'; num_ctas: CTAs that can be "
     "resident, None: all");
  m.def("sequence_grid", sequence_grid, "grid"_a, "seqlen_q"_a, "seqlen_k"_a,
        "the grid of one sequence of a packed problem");
}

void bind_orders(py::module_& m) {
  m.def("schedules", schedules);
  m.def("supports", [](std::string const& name, Window window, bool packed) {
    NamedPolicy const& policy = named(kind_of(name));
    return policy.supports(mask_of(window)) && (policy.is_legal_for_packed || !packed);
  }, "name"_a, "window"_a, "packed"_a = false,
     "whether it is legal for some shape under the mask; packed: for every one");
  m.def("legal_for", [](std::string const& name) { return named(kind_of(name)).legal_for; },
        "name"_a, "what it is legal for, in words");
  m.def("claims", claims, "name"_a);
  m.def("is_legal", BuiltIn::is_legal, "grid"_a);
  m.def("gang_size", BuiltIn::gang_size, "grid"_a, "CTAs that must be resident at once");
  m.def("gang_end", BuiltIn::gang_end, "grid"_a, "ticket"_a, "the ticket behind its gang's");
  m.def("is_ordered", BuiltIn::is_ordered, "grid"_a);
  m.def("num_tickets", BuiltIn::num_tickets, "grid"_a);
  m.def("item", [](TileGrid const& grid, int ticket) {
    std::vector<Tile> tiles;
    for (WorkTile const& tile : item(grid, ticket)) {
      tiles.push_back(tuple_of(tile));
    }
    return tiles;
  }, "grid"_a, "ticket"_a, "[(n_block, bidh, bidb)] that the ticket's CTA runs, in order");
  m.def("m_block", [](TileGrid const& grid, int n_block, int step, int bidh) {
    Sweep const sweep = BuiltIn::sweep(grid, tile_of(n_block, bidh));
    return m_block_of(sweep, grid.num_m_blocks(), step);
  }, "grid"_a, "n_block"_a, "step"_a, "bidh"_a = 0);
  m.def("turn", [](TileGrid const& grid, int n_block, int m_block, int bidh) {
    return BuiltIn::turn(grid, tile_of(n_block, bidh), m_block);
  }, "grid"_a, "n_block"_a, "m_block"_a, "bidh"_a = 0);
  m.def("num_turns", BuiltIn::num_turns, "grid"_a, "m_block"_a);
  m.def("walk", [](TileGrid const& grid, int n_block, int bidh) {
    return walk(grid, tile_of(n_block, bidh));
  }, "grid"_a, "n_block"_a, "bidh"_a = 0, "[(m_block, turn)] in visiting order");
  py::enum_<TakesAhead>(m, "TakesAhead", "whether a CTA takes a second ticket during an item")
      .value("NEVER", TakesAhead::kNever)
      .value("KEEPS_GANGS_APART", TakesAhead::kKeepsGangsApart)
      .value("ALWAYS", TakesAhead::kAlways);
  m.def("simulate_progress", progress, "grids"_a, "slots"_a, "tickets"_a = py::none(),
        "ahead"_a = TakesAhead::kKeepsGangsApart,
        "whether `slots` CTAs that take the tickets of the grid, or of all grids of a list one "
        "after the other, in this order finish; False is a deadlock");
}

Timeline simulate(TileGrid const& grid, int slots, Costs const& costs) {
  if (slots < 1 || costs.writers < 0 || costs.buffers < 1) {
    throw std::invalid_argument("slots and buffers must be at least 1, writers at least 0");
  }
  return Simulation(grid, slots, costs).run();
}

void bind_timeline(py::module_& m) {
  auto const make_costs = [](double compute, double reduce, double lag, double prologue,
                             double epilogue, int writers, int buffers) {
    return Costs{compute, reduce, lag, prologue, epilogue, writers, buffers};
  };
  using C = Costs;
  C const standard;
  py::class_<C>(m, "Costs")
      .def(py::init(make_costs), py::kw_only(), "compute"_a = standard.compute,
           "reduce"_a = standard.reduce, "lag"_a = standard.lag, "prologue"_a = standard.prologue,
           "epilogue"_a = standard.epilogue, "writers"_a = standard.writers,
           "buffers"_a = standard.buffers)
      .def_readonly("compute", &C::compute).def_readonly("reduce", &C::reduce)
      .def_readonly("lag", &C::lag).def_readonly("prologue", &C::prologue)
      .def_readonly("epilogue", &C::epilogue).def_readonly("writers", &C::writers)
      .def_readonly("buffers", &C::buffers);
  py::class_<Step>(m, "Step")
      .def_readonly("slot", &Step::slot).def_readonly("ticket", &Step::ticket)
      .def_property_readonly("tile", [](Step const& step) { return tuple_of(step.tile); })
      .def_readonly("m_block", &Step::m_block).def_readonly("turn", &Step::turn)
      .def_readonly("compute_begin", &Step::compute_begin)
      .def_readonly("handed", &Step::handed).def_readonly("add_begin", &Step::add_begin)
      .def_readonly("after_adds", &Step::after_adds);
  using T = Timeline;
  py::class_<T>(m, "Timeline")
      .def_readonly("steps", &T::steps).def_readonly("is_finished", &T::is_finished)
      .def_readonly("makespan", &T::makespan).def_readonly("work", &T::work)
      .def_readonly("waiting", &T::waiting);
  m.def("simulate", simulate, "grid"_a, "slots"_a, "costs"_a,
        "what happens when on `slots` CTAs; see csrc/schedule/timeline.hpp");
}

}  // namespace

PYBIND11_MODULE(_schedule, m) {
  bind_structs(m);
  bind_configs(m);
  bind_calls(m);
  bind_orders(m);
  bind_timeline(m);
}
