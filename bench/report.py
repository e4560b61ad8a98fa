"""reports/gpu.json as Markdown: `python -m bench.report` prints it, `--write README.md` replaces
the section between the markers of that file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.environment import ROOT

BEGIN = "<!-- speed table: begin, written by python -m bench.report --write README.md -->"
END = "<!-- speed table: end -->"
PASSES = {"fwd": "Forward", "bwd": "Backward"}
NAMES = {
    "dash": "dash",
    "dash-unordered": "unordered",
    "fa3": "FA3",
    "fa3-det": "FA3 ordered",
    "cudnn": "cuDNN",
}


def cell(value: object, digits: int) -> str:
    """A number with fixed digits, or "-" where there is none."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"


def bench_table(records: list[dict], direction: str) -> list[str]:
    """Markdown table of one direction."""
    if direction == "fwd":
        header = ["dash", "cuDNN", "dash / cuDNN"]
        keys = [("ordered_tflops", 0), ("peer_tflops", 0), ("ratio_to_peer", 2)]
    else:
        header = ["ordered", "unordered", "cuDNN", "ordered / unordered", "ordered / cuDNN"]
        keys = [
            ("ordered_tflops", 0),
            ("unordered_tflops", 0),
            ("peer_tflops", 0),
            ("ratio_to_unordered", 2),
            ("ratio_to_peer", 2),
        ]
    for role, name in (("fa3", "FA3"), ("fa3_det", "FA3 ordered")):
        if any(record["pass"] == direction and record.get(f"{role}_ms") for record in records):
            header += [name, f"{'dash' if direction == 'fwd' else 'ordered'} / {name}"]
            keys += [(f"{role}_tflops", 0), (f"ratio_to_{role}", 2)]
    lines = [
        f"| head dim | mask | seqlen | {' | '.join(header)} |",
        f"|{'---|' * (3 + len(header))}",
    ]
    for record in records:
        if record["pass"] == direction:
            shape = [record["head_dim"], record["mask"], record["seqlen"]]
            cells = [cell(record.get(key), digits) for key, digits in keys]
            lines.append(f"| {' | '.join(map(str, [*shape, *cells]))} |")
    return lines


def shape_text(row: dict) -> str:
    """A preset's shape in one cell."""
    dims = f"hd {row['head_dim']}"
    if row["head_dim_v"] != row["head_dim"]:
        dims = f"hd ({row['head_dim']}, {row['head_dim_v']})"
    heads = f"{row['num_heads']}"
    if row["num_heads_k"] != row["num_heads"]:
        heads += f"/{row['num_heads_k']}"
    mask = "causal" if row["causal"] else "full"
    if row["window_left"] >= 0:
        mask += f", window {row['window_left']}"
    size = f"{row['batch']} x {row['seqlen_q']}"
    if row["packed"]:
        size = f"{row['batch']} packed sequences, {row['tokens']} tokens"
    name = f"{row['name']}: " if row["name"] else ""
    return f"{name}{mask}, {dims}, {heads} heads, {size}"


def preset_table(rows: list[dict], direction: str) -> list[str]:
    """Markdown table of a preset: TFLOP/s of each provider and what dash is relative to it."""
    shapes: dict[str, dict[str, dict]] = {}
    for row in rows:
        if row["pass"] == direction:
            shapes.setdefault(shape_text(row), {})[row["provider"]] = row
    measured = {
        name for by_name in shapes.values() for name, row in by_name.items() if is_right(row)
    }
    others = [name for name in NAMES if name in measured and name != "dash"]
    header = ["shape", "dash", *(f"{NAMES[n]} (dash / it)" for n in others)]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for shape, by_name in shapes.items():
        ours = by_name.get("dash")
        cells = [cell(ours and ours["tflops"], 0)]
        for name in others:
            other = by_name.get(name)
            if ours and other and is_right(ours) and is_right(other):
                cells.append(f"{other['tflops']:.0f} ({other['ms'] / ours['ms']:.2f})")
            else:
                cells.append("-")
        lines.append(f"| {' | '.join([shape, *cells])} |")
    return lines if shapes else []


def is_right(row: dict) -> bool:
    """Whether a row has a time that means something."""
    return row["ms"] is not None and not row["note"].startswith("WRONG")


def overhead_lines(overhead: dict) -> list[str]:
    """Host time, small kernels and memory in a few sentences."""
    host = overhead["host"]
    lines = [
        f"Host time of a backward call: {host['backward_us']:.0f} us (the operator), "
        f"{host['backward_in_gradient_us']:.0f} us past its autograd kernel, "
        f"{host['backward_through_autograd_us']:.0f} us through autograd; of a forward call "
        f"{host['forward_us']:.0f} us.",
    ]
    for row in overhead["kernels"]:
        parts = [f"{name} {row[name]:.0f} us" for name in row if name != "shape"]
        lines.append(f"Kernels of a backward, {row['shape']}: {', '.join(parts)}.")
    last = overhead["memory"][-1]
    per_token = [f"{row['dash'] / row['tokens']:.0f}" for row in overhead["memory"]]
    lines.append(
        f"Extra memory of a backward in bytes a token at "
        f"{', '.join(str(row['tokens']) for row in overhead['memory'])} tokens: "
        f"{', '.join(per_token)}; fp32 dQ alone is {last['fp32_dq'] / last['tokens']:.0f}."
    )
    return lines


def markdown(report: dict) -> str:
    """The speed section of the README."""
    stamp = (
        f"{report['device']} ({report['sms']} SMs, power limit {report.get('power_limit_w', '?')}"
        f" W), driver {report.get('driver', '?')}, CUDA {report['cuda']}, torch {report['torch']},"
        f" cuDNN {report['cudnn']}, {report['date']}, sources `{report['source_hash'][:12]}`"
    )
    lines = [
        "TFLOP/s, bf16, 16,384 tokens by 2,048 hidden, medians of interleaved launches in one",
        f"process; peer: {report['peer']}. A ratio above 1 means that dash is faster.",
        "",
        f"Measured with `{report['command']}` on {stamp}.",
    ]
    for direction, title in PASSES.items():
        lines += ["", f"{title}:", "", *bench_table(report["bench"] or [], direction)]
    for preset, found in (report.get("presets") or {}).items():
        for direction, title in PASSES.items():
            if table := preset_table(found["rows"], direction):
                lines += ["", f"{title}, preset {preset}:", "", *table]
    if report.get("overhead"):
        lines += ["", *(f"- {line}" for line in overhead_lines(report["overhead"]))]
    return "\n".join(lines)


def replace_section(text: str, section: str) -> str:
    """`text` with the part between the markers replaced. Raises ValueError without markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no section between {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Prints the section, or writes it into a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("report", type=Path, nargs="?", default=ROOT / "reports" / "gpu.json")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if not options.report.exists():
        print(f"report: {options.report.name} does not exist; `make gpu-report` writes it")
        return 2
    section = markdown(json.loads(options.report.read_text()))
    if options.write is None:
        print(section)
    else:
        options.write.write_text(replace_section(options.write.read_text(), section))
    return 0


if __name__ == "__main__":
    sys.exit(main())
