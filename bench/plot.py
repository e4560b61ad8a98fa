"""Bars of a benchmark's rows as PNG: TFLOP/s, one group of bars a shape, one colour a provider.

python -m bench.plot rows.json --out paper.png          from bench_attention's --json
python -m bench.plot reports/gpu.json --out paper.png   the paper's grid of a GPU report
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def describe(row: dict[str, Any]) -> str:
    """A shape in a few words."""
    if row["name"]:
        return row["name"]
    dims = f"hd{row['head_dim']}"
    if row["head_dim_v"] != row["head_dim"]:
        dims += f",{row['head_dim_v']}"
    heads = f" h{row['num_heads']}"
    if row["num_heads_k"] != row["num_heads"]:
        heads += f"/{row['num_heads_k']}"
    mask = "causal" if row["causal"] else "full"
    window = f" w{row['window_left']}" if row["window_left"] >= 0 else ""
    return f"{mask}{window} {dims}{heads}\nb{row['batch']} s{row['seqlen_q']}"


# Roles of a report's records, in the order of the bars.
ROLES = {
    "ordered": "dash, ordered",
    "unordered": "dash, unordered",
    "fa3": "FA3, unordered",
    "fa3_det": "FA3, ordered",
    "peer": "cuDNN, unordered",
}


def rows_of_report(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The benchmark of a GPU report as rows: one for each provider of a record that has a time."""
    rows = []
    for record in report["bench"] or []:
        name = f"{record['mask']} hd{record['head_dim']}\n{record['seqlen']}"
        shape = {"pass": record["pass"], "name": name, "note": ""}
        for role, provider in ROLES.items():
            if record.get(f"{role}_tflops") and role not in record["notes"]:
                is_forward = record["pass"] == "fwd"
                label = provider.split(",")[0] if is_forward else provider
                rows.append(shape | {"provider": label, "tflops": record[f"{role}_tflops"]})
    return rows


def bars(rows: list[dict[str, Any]], direction: str) -> tuple[list[str], dict[str, list[float]]]:
    """Names of the shapes, and for each provider its TFLOP/s in that order, 0 where it has none."""
    rows = [row for row in rows if row["pass"] == direction]
    shapes = list(dict.fromkeys(describe(row) for row in rows))
    speeds: dict[str, list[float]] = {}
    for row in rows:
        of_provider = speeds.setdefault(row["provider"], [0.0] * len(shapes))
        is_wrong = row["note"].startswith("WRONG")
        of_provider[shapes.index(describe(row))] = 0.0 if is_wrong else row["tflops"] or 0.0
    return shapes, {name: values for name, values in speeds.items() if any(values)}


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Writes one picture with a row of bars a direction.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directions = [d for d in ("fwd", "bwd") if any(row["pass"] == d for row in rows)]
    count = max((len(bars(rows, direction)[0]) for direction in directions), default=1)
    width = max(6.0, 0.9 * count + 2.0)
    figure, axes = pyplot.subplots(
        max(len(directions), 1), 1, figsize=(width, 4.0 * max(len(directions), 1)), squeeze=False
    )
    for axis, direction in zip(axes[:, 0], directions):
        shapes, speeds = bars(rows, direction)
        each = 0.8 / max(len(speeds), 1)
        for index, (name, values) in enumerate(speeds.items()):
            left = [x - 0.4 + (index + 0.5) * each for x in range(len(shapes))]
            axis.bar(left, values, width=each, label=name)
        axis.set_xticks(range(len(shapes)), shapes, fontsize=7, rotation=45, ha="right")
        axis.set_ylabel("TFLOP/s")
        axis.set_title(f"{title}, {'forward' if direction == 'fwd' else 'backward'}")
        axis.legend(fontsize=7)
        axis.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Draws the rows of a --json file or of a report."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    result = json.loads(options.rows.read_text())
    if "bench" in result:
        rows, title = rows_of_report(result), f"bf16, 16,384 tokens, {result['device']}"
    else:
        device = result["environment"].get("device", "")
        rows, title = result["rows"], f"{options.rows.stem}, {device}"
    try:
        draw(rows, title, options.out)
    except ImportError as error:
        print(f"plot: {error}; install matplotlib", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
