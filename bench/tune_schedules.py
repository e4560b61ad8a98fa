"""Measure every legal schedule on a GPU: `python -m bench.tune_schedules`.

Writes bench/schedule_table.json, the data that `choose_schedule` and `choose_section` in
csrc/schedule/choose.hpp are made from: for each shape the median of interleaved backward passes of
all legal schedules, with several section sizes for those that have sections. Every ordered result
is compared over repeats and with a reference first. `--print` shows a table written before.
"""

from __future__ import annotations

import argparse
import json
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
MAX_LOSS = 0.01  # of "auto" against the best legal schedule of a shape


def tuning_shapes(head_dims: list[int]) -> list[AttentionShape]:
    """The paper's grid; few heads at batch 1, which are few waves; and 32 heads on 8."""
    shapes = paper_shapes(head_dims=head_dims)
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
    """Schedules that are legal for the shape on this GPU, and "name@S" for other section sizes."""
    import dash

    lists = shape.batch * shape.num_heads_k
    names = ["unordered", "auto"]
    for name in dash.schedules():
        if name == "unordered" or dash_provider(name).why_not(shape) is not None:
            continue
        names.append(name)
        if name in WITH_SECTIONS:
            names += [f"{name}@{section}" for section in sections if section <= lists]
    return names


def measure_shape(
    shape: AttentionShape, options: Options, sections: tuple[int, ...]
) -> dict[str, Any]:
    """One row of the table: milliseconds of every schedule, and what "auto" is.

    Raises:
        RuntimeError: a schedule gave a wrong or a changing result.
    """
    import dash

    names = candidates(shape, sections)
    rows = measure(shape, [dash_provider(name, name) for name in names], ["bwd"], options)
    wrong = [f"{row.provider}: {row.note}" for row in rows if row.note]
    if wrong:
        raise RuntimeError(f"{shape}: {'; '.join(wrong)}")
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
        "ms": {row.provider: round(row.timing.median_ms, 4) for row in rows if row.timing},
    }


def best_of(row: dict[str, Any]) -> tuple[str, float]:
    """The fastest ordered schedule of a row, with its milliseconds."""
    ordered = {name: ms for name, ms in row["ms"].items() if name not in ("auto", "unordered")}
    name = min(ordered, key=ordered.__getitem__)
    return name, ordered[name]


def report(table: dict[str, Any]) -> int:
    """Prints the table; returns the number of shapes on which "auto" loses more than MAX_LOSS."""
    rows, losing = [], 0
    for row in table["shapes"]:
        name, ms = best_of(row)
        loss = row["ms"]["auto"] / ms - 1.0
        losing += loss > MAX_LOSS
        mask = "causal" if row["causal"] else "full"
        shape = (
            f"{mask} hd{row['head_dim']} b{row['batch']} s{row['seqlen_q']} "
            f"h{row['num_heads']}/{row['num_heads_k']}"
        )
        ratio = f"{row['ms']['unordered'] / ms:.3f}"
        rows.append([shape, row["auto"], name, f"{ms:.3f}", ratio, f"{loss:+.1%}"])
    head = ["shape", "auto is", "best", "best ms", "unordered / best", "auto loses"]
    print_table(head, rows)
    return losing


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 if "auto" loses more than 1 % somewhere; 2 without a Hopper GPU."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--mask", choices=["full", "causal", "both"], default="both")
    parser.add_argument("--sections", type=int, nargs="*", default=list(SECTIONS))
    parser.add_argument("--budget-ms", type=float, default=300.0, help="GPU time per shape")
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--print", action="store_true", help="show --out, measure nothing")
    options = parser.parse_args(arguments)
    if options.print:
        return 1 if report(json.loads(options.out.read_text())) else 0
    reason = why_no_hopper()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    masks = {"full": [False], "causal": [True], "both": [False, True]}[options.mask]
    timing = Options(dtype=torch.bfloat16, budget_ms=options.budget_ms)
    made_with = " ".join([COMMAND, *(sys.argv[1:] if arguments is None else arguments)])
    table: dict[str, Any] = {"command": made_with, "environment": environment(), "shapes": []}
    for shape in tuning_shapes(options.head_dim):
        if shape.causal in masks:
            table["shapes"].append(measure_shape(shape, timing, tuple(options.sections)))
            name, ms = best_of(table["shapes"][-1])
            print(f"{shape}: {name} {ms:.3f} ms", flush=True)
            options.out.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if report(table) else 0


if __name__ == "__main__":
    sys.exit(main())
