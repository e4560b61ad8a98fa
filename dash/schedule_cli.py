"""`python -m dash schedule`: orders as tables, timelines and pictures, and a comparison."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from . import _schedule, schedule

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

    @property
    def group_size(self) -> int:
        return self.heads // self.heads_k


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
    show.add_argument("--policy", default="band", help=f"one of {', '.join(_schedule.schedules())}")
    _add_mask(show, "full", "in rows, of which there are lcm(q tiles, KV tiles)")
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
    _add_mask(compare, "causal", "in keys")
    compare.add_argument("--sms", type=int, default=132)
    table = kinds.add_parser("table", help="print an order: who visits which Q tile, whose turn")
    table.add_argument("--policy", choices=_schedule.schedules(), default="band")
    _add_mask(table, "full", "in keys")
    table.add_argument("--seqlen-q", type=int, default=512)
    table.add_argument("--seqlen-k", type=int, default=512)
    table.add_argument("--head-dim", type=int, default=128)


def _add_mask(parser: argparse.ArgumentParser, default: str, unit: str) -> None:
    parser.add_argument("--mask", choices=["full", "causal", "window"], default=default)
    parser.add_argument(
        "--window",
        type=int,
        nargs=2,
        metavar=("LEFT", "RIGHT"),
        help=f"of --mask window, {unit}; -1 is no limit",
    )


def _window(options: argparse.Namespace) -> schedule.Window:
    """What --mask and --window mean together."""
    if (options.mask == "window") != (options.window is not None):
        raise ValueError("--mask window and --window LEFT RIGHT go together")
    if options.window is not None:
        return tuple(options.window)
    return schedule.fold_causal(options.mask == "causal", (-1, -1))


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
            window=_window(options),
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
        f"{grid.schedule}, {schedule.mask_name(grid.window)}, {grid.num_m_blocks()} Q tiles x "
        f"{grid.num_n_blocks()} KV tiles, {grid.num_heads} heads, {execution.sms} SMs "
        f"({gang} needed at once): makespan {execution.makespan:.1f}, "
        f"bubbles {execution.bubble_fraction:.1%}"
    )


def _show(options: argparse.Namespace) -> None:
    grid = schedule.square_grid(
        options.policy,
        window=_window(options),
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
    preset, window = PRESETS[options.shape], _window(options)
    if min(options.seqlen, options.batch, options.sms) < 1:
        raise ValueError("--seqlen, --batch and --sms must be at least 1")
    lengths = (options.batch, options.seqlen, options.seqlen)
    shape = ("bf16", preset.head_dim, window, *lengths, preset.heads, preset.heads_k)
    auto, _ = _schedule.choose(*shape, num_ctas=options.sms)
    parts = auto.partition("/")[2] or "1"
    part_size = preset.group_size // int(parts)
    costs = schedule.h200_costs(preset.head_dim, False, part_size, window=window)
    print(
        f"{options.shape}: batch {options.batch}, seqlen {options.seqlen}, heads {preset.heads}/"
        f"{preset.heads_k}, head_dim {preset.head_dim}, {schedule.mask_name(window)}, "
        f"{options.sms} SMs. Query groups in {parts} part(s). Model of the main kernel, not a "
        "measurement."
    )
    baseline = schedule.execute(
        _schedule.make_grid(*shape, f"unordered/{parts}"), options.sms, costs
    )
    head = ("schedule", "predicted ms", "vs unordered", "bubbles", "SMs at once", "guarantees")
    rows = [head]
    for name in _schedule.schedules():
        grid = _schedule.make_grid(*shape, f"{name}/{parts}")
        if not _schedule.is_legal(grid):
            continue
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
        text = f"{name}/{parts}" if int(parts) > 1 else name
        label = f"{text} (auto)" if text == auto else text
        rows.append((label, *times, str(gang), ", ".join(guarantees) or "none"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
