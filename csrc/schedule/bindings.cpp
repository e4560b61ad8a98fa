// dash._schedule: the schedule policies and the tile tables as Python sees them. The headers are
// the very ones that the kernels are compiled from; nothing is decided here. No torch, no CUDA.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "config/bwd_config.hpp"
#include "config/fwd_config.hpp"
#include "schedule/choose.hpp"
#include "schedule/simulate.hpp"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace dash;
using namespace dash::schedule;

namespace {

std::string_view name_of(ScheduleKind kind) {
  return BuiltIn::visit(kind, [](auto policy) { return std::string_view(policy.kName); });
}

ScheduleKind kind_of(std::string const& name) {
  if (auto const kind = find_schedule(name)) {
    return *kind;
  }
  throw std::invalid_argument("schedule='" + name + "' is not known; see schedules()");
}

MaskKind mask_of(bool causal) { return causal ? MaskKind::kCausal : MaskKind::kFull; }

KernelKey key_of(std::string const& dtype, int head_dim, bool causal) {
  if (dtype != "bf16" && dtype != "fp16") {
    throw std::invalid_argument("dtype='" + dtype + "' is not known; 'bf16' and 'fp16' are");
  }
  return {.dtype = dtype == "bf16" ? DType::kBf16 : DType::kFp16, .head_dim = head_dim,
          .mask = mask_of(causal)};
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

// m_block and turn never read the head or the batch entry: one work tile stands for all of n_block.
WorkTile tile_of(int n_block) { return {.n_block = n_block, .bidh = 0, .bidb = 0}; }

void bind_structs(py::module_& m) {
  auto const make_any = [](int seqlen_q, int seqlen_k, int block_m, int block_n, int num_heads,
                           int batch, bool causal, std::string const& schedule, int section) {
    return TileGrid{seqlen_q, seqlen_k, block_m, block_n, num_heads, batch, mask_of(causal),
                    kind_of(schedule), section};
  };
  using G = TileGrid;
  py::class_<G>(m, "TileGrid")
      .def(py::init(make_any), "seqlen_q"_a, "seqlen_k"_a, "block_m"_a, "block_n"_a,
           "num_heads"_a = 1, "batch"_a = 1, "causal"_a = false, "schedule"_a = Band::kName,
           "section"_a = 1)
      .def_readonly("seqlen_q", &G::seqlen_q).def_readonly("seqlen_k", &G::seqlen_k)
      .def_readonly("block_m", &G::block_m).def_readonly("block_n", &G::block_n)
      .def_readonly("num_heads", &G::num_heads).def_readonly("batch", &G::batch)
      .def_readonly("section", &G::section)
      .def_property_readonly("causal", [](G const& g) { return g.mask == MaskKind::kCausal; })
      .def_property_readonly("schedule", [](G const& g) { return name_of(g.schedule); })
      .def("m_begin", &G::m_begin, "n_block"_a).def("m_end", &G::m_end, "n_block"_a)
      .def("n_begin", &G::n_begin, "m_block"_a).def("n_end", &G::n_end, "m_block"_a)
      .def("num_steps", &G::num_steps, "n_block"_a)
      .def("num_contributors", &G::num_contributors, "m_block"_a)
      .def("num_m_blocks", &G::num_m_blocks).def("num_n_blocks", &G::num_n_blocks)
      .def("num_work_tiles", &G::num_work_tiles);
  using B = BwdConfig;
  py::class_<B>(m, "BwdConfig")
      .def_readonly("block_m", &B::block_m).def_readonly("block_n", &B::block_n)
      .def_readonly("stages_q", &B::stages_q).def_readonly("stages_do", &B::stages_do)
      .def_readonly("stages_ds", &B::stages_ds).def_readonly("mma_registers", &B::mma_registers)
      .def_readonly("load_registers", &B::load_registers);
  using F = FwdConfig;
  py::class_<F>(m, "FwdConfig")
      .def_readonly("block_m", &F::block_m).def_readonly("block_n", &F::block_n)
      .def_readonly("num_mma_warpgroups", &F::num_mma_warpgroups)
      .def_readonly("stages_kv", &F::stages_kv).def_readonly("mma_registers", &F::mma_registers)
      .def_readonly("load_registers", &F::load_registers);
}

}  // namespace

PYBIND11_MODULE(_schedule, m) {
  bind_structs(m);
  m.def("schedules", schedules);
  m.def("supports", [](std::string const& name, bool causal) {
    return BuiltIn::visit(kind_of(name), [&](auto p) { return p.supports(mask_of(causal)); });
  }, "name"_a, "causal"_a);
  m.def("choose", [](bool causal) { return name_of(choose_schedule(mask_of(causal))); },
        "causal"_a);
  m.def("supported_head_dims", [] { return kHeadDims; });
  m.def("bwd_config", [](std::string const& dtype, int head_dim, bool causal) {
    return bwd_config(key_of(dtype, head_dim, causal));
  }, "dtype"_a, "head_dim"_a, "causal"_a);
  m.def("fwd_config", [](std::string const& dtype, int head_dim, bool causal) {
    return fwd_config(key_of(dtype, head_dim, causal));
  }, "dtype"_a, "head_dim"_a, "causal"_a);
  m.def("make_grid", [](std::string const& dtype, int head_dim, bool causal, int batch, int sq,
                        int sk, int num_heads, int num_heads_k, std::string const& schedule) {
    return make_grid({key_of(dtype, head_dim, causal), batch, sq, sk, num_heads, num_heads_k},
                     kind_of(schedule));
  }, "dtype"_a, "head_dim"_a, "causal"_a, "batch"_a, "seqlen_q"_a, "seqlen_k"_a, "num_heads"_a,
     "num_heads_k"_a, "schedule"_a);
  m.def("work", [](TileGrid const& grid, int ticket) {
    WorkTile const tile = BuiltIn::work(grid, ticket);
    return std::tuple(tile.n_block, tile.bidh, tile.bidb);
  }, "grid"_a, "ticket"_a, "(n_block, bidh, bidb) that the ticket takes");
  m.def("m_block", [](TileGrid const& grid, int n_block, int step) {
    return BuiltIn::m_block(grid, tile_of(n_block), step);
  }, "grid"_a, "n_block"_a, "step"_a);
  m.def("turn", [](TileGrid const& grid, int n_block, int m_block) {
    return BuiltIn::turn(grid, tile_of(n_block), m_block);
  }, "grid"_a, "n_block"_a, "m_block"_a);
  m.def("num_turns", BuiltIn::num_turns, "grid"_a, "m_block"_a);
  m.def("is_ordered", BuiltIn::is_ordered, "grid"_a);
  m.def("walk", walk, "grid"_a, "n_block"_a, "[(m_block, turn)] in visiting order");
  m.def("simulate_progress", [](TileGrid const& grid, int slots, py::object tickets) {
    std::vector<int> order(grid.num_work_tiles());
    std::iota(order.begin(), order.end(), 0);
    return simulate_progress(grid, slots, tickets.is_none() ? order
                                              : tickets.cast<std::vector<int>>());
  }, "grid"_a, "slots"_a, "tickets"_a = py::none(),
     "whether `slots` CTAs that take the tickets in this order finish; False is a deadlock");
}
