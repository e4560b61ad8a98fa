"""Measure every legal schedule on a GPU: `python -m bench.tune_schedules`.

Writes bench/schedule_table.json, data for the bounds of `choose_schedule` and `choose_section` in
csrc/schedule/choose.hpp: for each shape the median of interleaved backward passes of all legal
schedules, with query groups whole and in parts, and with several section sizes for those that have
sections. Every ordered result is compared over repeats and with a reference first. `--repeats`
measures each shape several times and so tells differences from noise. `--verify` leaves the other
section sizes out: is "auto" the best legal schedule? `--print` shows a table written before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from bench.environment import environment, why_no_hopper
from bench.measure import Options, measure
from bench.providers import dash_provider
from bench.shapes import AttentionShape, paper_shapes
from bench.table import print_table

TABLE = Path(__file__).with_name("schedule_table.json")
COMMAND = "python -m bench.tune_schedules"
SECTIONS = (4, 8, 16, 32)
WITH_SECTIONS = ("band", "mirrored", "comb")
FEW_HEADS = (1, 2, 4, 8, 16)
FEW_HEADS_SEQLENS = (2_048, 8_192)
GROUPED_SEQLENS = (2_048, 8_192)
SHORT_SEQLENS = (128, 256)  # causal, 16,384 tokens
SHORT = 1_024  # up to here a causal list has few KV tiles, and comb may want more lists
COMB_SECTIONS = (64, 128)
VERIFY_REPEATS = 5
MAX_LOSS = 0.01  # of "auto" against the best legal schedule of a shape


def tuning_shapes(head_dims: list[int]) -> list[AttentionShape]:
    """The paper's grid; short causal sequences; few heads at batch 1, which are few waves; and 32
    heads on 8."""
    shapes = paper_shapes(head_dims=head_dims)
    shapes += paper_shapes(head_dims=head_dims, causal=[True], seqlens=SHORT_SEQLENS)
    for head_dim in head_dims:
        for causal in (False, True):
            shapes += [
                AttentionShape(1, seqlen, seqlen, heads, heads, head_dim, causal, "few heads")
                for seqlen in FEW_HEADS_SEQLENS
                for heads in FEW_HEADS
            ]
            shapes += [
                AttentionShape(1, seqlen, seqlen, 32, 8, head_dim, causal, "grouped")
                for seqlen in GROUPED_SEQLENS
            ]
    return shapes


def candidates(shape: AttentionShape, sections: tuple[int, ...]) -> list[str]:
    """Schedules that are legal for the shape on this GPU, "name/P" for query groups in P parts, and
    "name@S" for other section sizes."""
    import dash

    lists = shape.batch * shape.num_heads_k
    group = shape.num_heads // shape.num_heads_k
    names = ["unordered", "auto"]
    for name in dash.schedules():
        if name == "unordered" or dash_provider(name).why_not(shape) is not None:
            continue
        names.append(name)
        names += [f"{name}/{parts}" for parts in range(2, group + 1) if group % parts == 0]
        wanted: tuple[int, ...] = sections if name in WITH_SECTIONS else ()
        if name == "comb" and sections and shape.seqlen_k <= SHORT:
            wanted += COMB_SECTIONS
        names += [f"{name}@{section}" for section in wanted if section <= lists]
    return names


def noise_of(runs: list[dict[str, float]], auto: str) -> float:
    """How far apart equal configurations were, relative: "auto" from the schedule that it is, and
    most schedules from themselves in another run.

    Args:
        runs: milliseconds of every schedule, once per repeat.
    """
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    spreads = [
        (max(run[name] for run in runs) - min(run[name] for run in runs)) / medians[name]
        for name in medians
    ]
    return max(abs(medians["auto"] / medians[auto] - 1.0), statistics.median(spreads))


def measure_shape(
    shape: AttentionShape, options: Options, sections: tuple[int, ...], repeats: int
) -> dict[str, Any]:
    """One row of the table: milliseconds of every schedule (of several repeats the median), what
    "auto" is, and the noise.

    Raises:
        RuntimeError: a schedule gave a wrong or a changing result.
    """
    import dash

    names = candidates(shape, sections)
    runs = []
    for _ in range(repeats):
        rows = measure(shape, [dash_provider(name, name) for name in names], ["bwd"], options)
        wrong = [f"{row.provider}: {row.note}" for row in rows if row.note]
        if wrong:
            raise RuntimeError(f"{shape}: {'; '.join(wrong)}")
        runs.append({row.provider: row.timing.median_ms for row in rows if row.timing})
    auto = dash.resolve_schedule(
        (shape.batch, shape.seqlen_q, shape.num_heads, shape.head_dim),
        (shape.batch, shape.seqlen_k, shape.num_heads_k, shape.head_dim),
        shape.causal,
        device="cuda",
    ).name
    fields = ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_heads_k", "head_dim", "causal")
    return {
        **{field: getattr(shape, field) for field in fields},
        "auto": auto,
        "noise": round(noise_of(runs, auto), 4),
        "ms": {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]},
    }


def best_of(row: dict[str, Any]) -> tuple[str, float]:
    """The fastest ordered schedule of a row, with its milliseconds."""
    ordered = {name: ms for name, ms in row["ms"].items() if name not in ("auto", "unordered")}
    name = min(ordered, key=ordered.__getitem__)
    return name, ordered[name]


def report(table: dict[str, Any]) -> int:
    """Prints the table; returns the number of shapes on which "auto" loses more than MAX_LOSS and
    the noise."""
    rows, losing = [], 0
    for row in table["shapes"]:
        name, ms = best_of(row)
        loss = row["ms"]["auto"] / ms - 1.0
        noise = row.get("noise", 0.0)
        losing += loss > MAX_LOSS + noise
        mask = "causal" if row["causal"] else "full"
        shape = (
            f"{mask} hd{row['head_dim']} b{row['batch']} s{row['seqlen_q']} "
            f"h{row['num_heads']}/{row['num_heads_k']}"
        )
        ratio = f"{row['ms']['unordered'] / ms:.3f}"
        rows.append([shape, row["auto"], name, f"{ms:.3f}", ratio, f"{loss:+.1%}", f"{noise:.1%}"])
    head = ["shape", "auto is", "best", "best ms", "unordered / best", "auto loses", "noise"]
    print_table(head, rows)
    print(f"auto loses more than {MAX_LOSS:.0%} and the noise on {losing} of {len(rows)} shapes")
    return losing


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 if "auto" loses more than 1 % and the noise somewhere; 2 without a Hopper
    GPU."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--mask", choices=["full", "causal", "both"], default="both")
    parser.add_argument("--sections", type=int, nargs="*", default=list(SECTIONS))
    parser.add_argument("--budget-ms", type=float, default=300.0, help="GPU time per repeat")
    parser.add_argument(
        "--repeats", type=int, help=f"runs of each shape (default: 1; {VERIFY_REPEATS} to verify)"
    )
    parser.add_argument("--verify", action="store_true", help="no section sizes but the chosen")
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--print", action="store_true", help="show --out, measure nothing")
    options = parser.parse_args(arguments)
    if options.print:
        return 1 if report(json.loads(options.out.read_text())) else 0
    reason = why_no_hopper()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    repeats = options.repeats or (VERIFY_REPEATS if options.verify else 1)
    sections = () if options.verify else tuple(options.sections)
    masks = {"full": [False], "causal": [True], "both": [False, True]}[options.mask]
    timing = Options(dtype=torch.bfloat16, budget_ms=options.budget_ms)
    made_with = " ".join([COMMAND, *(sys.argv[1:] if arguments is None else arguments)])
    table: dict[str, Any] = {"command": made_with, "environment": environment(), "shapes": []}
    for shape in tuning_shapes(options.head_dim):
        if shape.causal in masks:
            table["shapes"].append(measure_shape(shape, timing, sections, repeats))
            name, ms = best_of(table["shapes"][-1])
            print(f"{shape}: {name} {ms:.3f} ms", flush=True)
            options.out.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if report(table) else 0


if __name__ == "__main__":
    sys.exit(main())
