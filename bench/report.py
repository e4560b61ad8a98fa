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
