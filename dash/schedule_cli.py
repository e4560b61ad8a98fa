"""`python -m dash schedule`: orders as tables, timelines and pictures, and a comparison."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from . import _arguments, _schedule, schedule
from ._problem import DTYPE_NAMES

# Optional packages, and what installs them.
_PLOT = "pip install 'dash-attn[plot]'"

COSTS = {
    "kernel": schedule.Costs(compute=4.0, reduce=1.7, lag=2.1, writers=2),
    "paper": schedule.Costs(compute=4.0, reduce=1.0),
}


@dataclass(frozen=True)
class Preset:
    """Heads and head dim of a model's attention, under a causal mask."""

    heads: int
    heads_k: int
    head_dim: int


PRESETS = {
    "llama3-8b": Preset(32, 8, 128),
    "llama3-70b": Preset(64, 8, 128),
    "qwen2.5-7b": Preset(28, 4, 128),
    "mha-hd64": Preset(32, 32, 64),
    "mha-hd128": Preset(16, 16, 128),
}


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds the command `schedule` with its own commands show, compare and table."""
    parser = commands.add_parser("schedule", help="the orders in which dQ is added")
    kinds = parser.add_subparsers(dest="schedule_command", required=True)
    show = kinds.add_parser("show", help="draw the timeline of one schedule")
    show.add_argument("--policy", default="band", help=f"one of {', '.join(_arguments.SCHEDULES)}")
    show.add_argument("--mask", choices=["full", "causal"], default="full")
    show.add_argument("--q-tiles", type=int, default=8)
    show.add_argument("--kv-tiles", type=int, default=4)
    show.add_argument("--heads", type=int, default=2)
    show.add_argument("--section", type=int, default=0, help="heads per section (default: half)")
    show.add_argument("--sms", type=int, default=4)
    show.add_argument(
        "--costs",
        choices=sorted(COSTS),
        default="kernel",
        help="kernel: two writers beside the products; paper: the add in line, no lag",
    )
    show.add_argument("--out", help="a Gantt chart, x.svg or x.png, instead of the terminal's")
    compare = kinds.add_parser("compare", help="predicted times of all legal schedules")
    compare.add_argument("--shape", choices=sorted(PRESETS), default="llama3-8b")
    compare.add_argument("--seqlen", type=int, default=8192)
    compare.add_argument("--batch", type=int, default=1)
    compare.add_argument("--mask", choices=["full", "causal"], default="causal")
    compare.add_argument("--sms", type=int, default=132)
    table = kinds.add_parser("table", help="print an order: who visits which Q tile, whose turn")
    table.add_argument("--policy", choices=_arguments.SCHEDULES, default="band")
    table.add_argument("--mask", choices=["full", "causal"], default="full")
    table.add_argument("--seqlen-q", type=int, default=512)
    table.add_argument("--seqlen-k", type=int, default=512)
    table.add_argument("--head-dim", type=int, default=128)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0, or 2 for wrong arguments or a missing package."""
    try:
        {"show": _show, "compare": _compare, "table": _table}[options.schedule_command](options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"this needs the package {error.name}: {_PLOT}", file=sys.stderr)
        return 2
    return 0


def _table(options: argparse.Namespace) -> None:
    print(
        schedule.render(
            options.policy,
            causal=options.mask == "causal",
            seqlen_q=options.seqlen_q,
            seqlen_k=options.seqlen_k,
            head_dim=options.head_dim,
        )
    )


def summary(execution: schedule.Execution) -> str:
    """One line: what was executed, how long it takes, and how much of that is lost."""
    grid = execution.grid
    gang = _schedule.gang_size(grid)
    return (
        f"{grid.schedule}, {_arguments.mask_name(grid.causal)}, {grid.num_m_blocks()} Q tiles x "
        f"{grid.num_n_blocks()} KV tiles, {grid.num_heads} heads, {execution.sms} SMs "
        f"({gang} needed at once): makespan {execution.makespan:.1f}, "
        f"bubbles {execution.bubble_fraction:.1%}"
    )


def _show(options: argparse.Namespace) -> None:
    grid = schedule.square_grid(
        options.policy,
        causal=options.mask == "causal",
        q_tiles=options.q_tiles,
        kv_tiles=options.kv_tiles,
        heads=options.heads,
        section=options.section,
    )
    if options.sms < 1:
        raise ValueError(f"--sms {options.sms} must be at least 1")
    execution = schedule.execute(grid, options.sms, COSTS[options.costs])
    from . import schedule_picture

    if options.out:
        schedule_picture.save_gantt(execution, options.out, summary(execution))
        print(f"{options.out}: {summary(execution)}")
    else:
        schedule_picture.print_timeline(execution, summary(execution))


def _compare(options: argparse.Namespace) -> None:
    preset, causal = PRESETS[options.shape], options.mask == "causal"
    if min(options.seqlen, options.batch, options.sms) < 1:
        raise ValueError("--seqlen, --batch and --sms must be at least 1")
    q_shape = (options.batch, options.seqlen, preset.heads, preset.head_dim)
    k_shape = (options.batch, options.seqlen, preset.heads_k, preset.head_dim)
    dtype = next(iter(DTYPE_NAMES))
    problem = _arguments.check_problem(
        q_shape, k_shape, k_shape, {"q": dtype}, causal, (-1, -1), 0.0, True, "auto"
    )
    costs = schedule.h200_costs(preset.head_dim, causal, preset.heads // preset.heads_k)
    print(
        f"{options.shape}: batch {options.batch}, seqlen {options.seqlen}, heads {preset.heads}/"
        f"{preset.heads_k}, head_dim {preset.head_dim}, {options.mask}, {options.sms} SMs. "
        "Model of the main kernel, not a measurement."
    )
    auto, _ = _schedule.choose(*problem.shape, num_ctas=options.sms)
    baseline = schedule.execute(problem.grid("unordered"), options.sms, costs)
    head = ("schedule", "predicted ms", "vs unordered", "bubbles", "SMs at once", "guarantees")
    rows = [head]
    for name in [*_arguments.legal_schedules(problem), "unordered"]:
        grid = problem.grid(name)
        gang = _schedule.gang_size(grid)
        fits = gang <= options.sms
        times = ("does not fit", "", "")
        if fits:
            execution = schedule.execute(grid, options.sms, costs)
            times = (
                f"{execution.makespan / schedule.CYCLES_PER_SECOND * 1e3:.3f}",
                f"{execution.makespan / baseline.makespan:.3f}",
                f"{execution.bubble_fraction:.1%}",
            )
        guarantees = [
            word
            for word, holds in zip(("repeatable", "batch", "device"), _schedule.claims(name))
            if holds
        ]
        label = f"{name} (auto)" if name == auto else name
        rows.append((label, *times, str(gang), ", ".join(guarantees) or "none"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
