"""Compare attention implementations: `python -m bench.bench_attention`.

Providers are timed interleaved in one process, after each has been compared with an fp32 reference
and, for the backward pass, with itself over repeats. Ratios are speed relative to the first
provider that ran (change it with --relative-to): above 1 is faster.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path

import torch

from bench import fa3, plot
from bench.environment import environment, why_no_hopper
from bench.measure import Options, Row, measure
from bench.providers import PROVIDERS, Provider, select_providers
from bench.shapes import PRESETS, SHAPE_LISTS, AttentionShape, paper_shapes
from bench.table import number, print_table

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; also the reference of the options."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_attention",
        description="Times attention providers interleaved in one process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--pass", dest="direction", choices=["fwd", "bwd", "both"], default="bwd")
    parser.add_argument("--mask", choices=["full", "causal", "both"], default="both")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--preset", choices=[*PRESETS, *SHAPE_LISTS], default="paper")
    parser.add_argument("--seqlens", type=int, nargs="+", help="instead of the preset's")
    parser.add_argument(
        "--providers",
        default="cudnn,dash-unordered,dash",
        help=f"comma-separated: {', '.join(PROVIDERS)}",
    )
    parser.add_argument(
        "--schedule",
        default="auto",
        help="order of the provider dash: a name, several with commas, or all",
    )
    parser.add_argument(
        "--fa3-library",
        type=Path,
        metavar="FILE",
        help="library of torch.ops.flash_attn_3, for fa3 and fa3-det; else an installed one",
    )
    parser.add_argument("--relative-to", metavar="PROVIDER", help="reference of the ratios")
    parser.add_argument("--budget-ms", type=float, default=400.0, help="GPU time per table row")
    parser.add_argument("--max-rounds", type=int, default=40)
    parser.add_argument("--flush-l2", action="store_true", help="overwrite L2 before each launch")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="bars as PNG; needs matplotlib")
    parser.add_argument("--limit-s", type=float, help="start no further shape after this time")
    return parser.parse_args(arguments)


def chosen_schedules(text: str) -> list[str]:
    """Schedule names of --schedule. Raises ValueError for an unknown one."""
    if text == "auto":
        return ["auto"]
    import dash

    known = [name for name in dash.schedules() if name != "unordered"]
    names = known if text == "all" else text.split(",")
    for name in names:
        if name not in (*known, "auto"):
            raise ValueError(f"unknown schedule {name!r}; known are auto, {', '.join(known)}")
    return names


def chosen_shapes(options: argparse.Namespace) -> list[AttentionShape]:
    """The shapes that the command line asks for."""
    causal = {"full": [False], "causal": [True], "both": [False, True]}[options.mask]
    if options.preset in SHAPE_LISTS:
        if options.seqlens:
            raise ValueError(f"--seqlens does not go with --preset {options.preset}")
        return [shape for shape in SHAPE_LISTS[options.preset] if shape.causal in causal]
    seqlens = options.seqlens or PRESETS[options.preset]
    return paper_shapes(head_dims=options.head_dim, causal=causal, seqlens=seqlens)


def reference_row(rows: list[Row], name: str | None) -> Row | None:
    """The row that ratios of one shape and direction refer to."""
    for row in rows:
        if row.timing is not None and (name is None or row.provider == name):
            return row
    return None


def print_rows(rows: list[Row], relative_to: str | None) -> None:
    """The result table; rows of one shape and direction stand together."""
    groups: dict[tuple[str, AttentionShape], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.direction, row.shape), []).append(row)
    lines: list[list[str]] = []
    for (direction, shape), group in groups.items():
        reference = reference_row(group, relative_to)
        for row in group:
            timing = row.timing
            spread = timing and (timing.p80_ms - timing.p20_ms) / timing.median_ms * 100
            lines.append(
                [
                    f"{direction} {shape.name or shape}",
                    row.provider,
                    number(timing and timing.median_ms, 3),
                    number(spread, 1),
                    number(row.tflops, 1),
                    number(row.ratio_to(reference), 3),
                    {None: "-", True: "equal", False: "differ"}[row.is_repeatable],
                    row.note,
                ]
            )
    header = ["pass, shape", "provider", "ms", "p20-p80 %", "TFLOP/s", "ratio", "bits", "note"]
    print_table(header, lines)


def write_files(
    rows: list[Row],
    stamp: dict[str, object],
    options: argparse.Namespace,
    *,
    is_complete: bool = True,
) -> None:
    """CSV, JSON and picture of the rows, as far as they are asked for."""
    records = [row.as_dict() for row in rows]
    if options.csv and records:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(records[0]))
            writer.writeheader()
            writer.writerows(records)
    if options.json:
        options.json.write_text(json.dumps({"environment": stamp, "rows": records}, indent=1))
    if options.plot and is_complete:
        plot.draw(records, f"{options.preset}, {stamp['device']}", options.plot)


def run(options: argparse.Namespace, providers: list[Provider]) -> list[Row]:
    """Measures every shape; a line of progress per shape goes to stderr."""
    directions = ["fwd", "bwd"] if options.direction == "both" else [options.direction]
    timing = Options(
        dtype=DTYPES[options.dtype],
        budget_ms=options.budget_ms,
        max_rounds=options.max_rounds,
        flush_l2=options.flush_l2,
    )
    rows: list[Row] = []
    shapes = chosen_shapes(options)
    start = time.monotonic()
    for index, shape in enumerate(shapes):
        if options.limit_s and time.monotonic() - start > options.limit_s:
            print(f"out of time: {len(shapes) - index} shapes are left out", file=sys.stderr)
            break
        print(f"[{index + 1}/{len(shapes)}] {shape} ...", file=sys.stderr)
        rows += measure(shape, providers, directions, timing)
        if options.json:  # so that an interrupted run leaves what it measured
            write_files(rows, environment(), options, is_complete=False)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 if a provider was wrong or not repeatable, 2 for bad usage or no GPU."""
    options = parse_arguments(arguments)
    reason = why_no_hopper()
    if reason is not None:
        print(f"bench_attention: {reason}", file=sys.stderr)
        return 2
    try:
        chosen_shapes(options)
        providers = select_providers(
            options.providers.split(","), chosen_schedules(options.schedule)
        )
    except ValueError as error:
        print(f"bench_attention: {error}", file=sys.stderr)
        return 2
    if options.fa3_library is not None:
        fa3.use_library(options.fa3_library)
    rows = run(options, providers)
    stamp = environment()
    print_rows(rows, options.relative_to)
    print(", ".join(f"{key} {value}" for key, value in stamp.items()))
    write_files(rows, stamp, options)
    failed = any(row.note.startswith(("WRONG", "NOT")) for row in rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
