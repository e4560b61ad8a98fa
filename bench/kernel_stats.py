"""Registers, spills and stack of each compiled kernel, as the compiler reported them.

    python -m bench.kernel_stats           prints the table of the last build
    python -m bench.kernel_stats --write   also writes bench/kernel_stats.json, which is committed
    python -m bench.kernel_stats --check   fails where the build differs from the committed file

The build (csrc/nvcc.py) leaves one record a source in build/kernel_stats; a change of a kernel's
registers so shows in review. Needs no GPU and no disassembler.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "build" / "kernel_stats"
MANIFEST = ROOT / "build" / "instantiations" / "manifest.inc"
BASELINE = ROOT / "bench" / "kernel_stats.json"
SMALL_KERNELS = ("preprocess", "postprocess", "add_dkv_parts", "order_sequences", "unowned_rows")


def stage_of(name: str, kernel: str) -> str:
    """The stage that a kernel of the family `name` is, as the driver's report calls it: fwd,
    bwd_preprocess, bwd_main, bwd_postprocess or bwd_add_dkv_parts; or one of the small kernels that
    both passes run for packed sequences, fwd_order_sequences and fwd_unowned_rows or bwd_..."""
    direction = name.split("_")[0]
    for part in SMALL_KERNELS:
        if part in kernel:
            return f"{direction}_{part}"
    return "fwd" if direction == "fwd" else "bwd_main"


def collect() -> dict[str, object]:
    """What the last build recorded: {"cuda": version, "kernels": [{"name", "stages": [...]}]}.

    Raises FileNotFoundError if the kernels have not been built.
    """
    names = re.findall(r"KERNEL\((\w+),", MANIFEST.read_text())
    cuda, kernels = "unknown", []
    for name in names:
        record = json.loads((RECORDS / f"{name}.json").read_text())
        cuda = record["cuda"]
        stages = []
        for kernel in record["kernels"]:
            stage = stage_of(name, kernel.pop("kernel"))
            stages.append({"stage": stage, **kernel})
        stages.sort(key=lambda stage: stage["stage"])
        kernels.append({"name": name, "stages": stages})
    return {"cuda": cuda, "kernels": kernels}


def table(stats: dict[str, object]) -> str:
    """The statistics as text, one line a kernel and stage."""
    lines = [f"CUDA {stats['cuda']}", f"{'kernel':<32} {'stage':<20} registers  spill  stack"]
    for kernel in stats["kernels"]:
        for stage in kernel["stages"]:
            spill = stage["spill_store_bytes"] + stage["spill_load_bytes"]
            lines.append(
                f"{kernel['name']:<32} {stage['stage']:<20} {stage['registers']:>9}  "
                f"{spill:>5}  {stage['stack_bytes']:>5}"
            )
    return "\n".join(lines)


def differences(built: dict[str, object], committed: dict[str, object]) -> list[str]:
    """What differs between two collections, one line each; nothing if the toolkits differ, because
    the numbers are then not comparable."""
    if built["cuda"] != committed["cuda"]:
        return []

    def rows(stats: dict[str, object]) -> dict[tuple[str, str], dict[str, object]]:
        return {
            (kernel["name"], stage["stage"]): stage
            for kernel in stats["kernels"]
            for stage in kernel["stages"]
        }

    before, after = rows(committed), rows(built)
    names_built = {name for name, _ in after}  # a DASH_KERNELS filter leaves out the others
    return [
        f"{name} {stage}: committed {before.get((name, stage))}, built {after.get((name, stage))}"
        for name, stage in sorted(before.keys() | after.keys())
        if name in names_built and before.get((name, stage)) != after.get((name, stage))
    ]


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write bench/kernel_stats.json")
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    arguments = parser.parse_args()
    if not MANIFEST.exists():
        print("kernel_stats: no kernels were built here")
        return 0
    stats = collect()
    print(table(stats))
    if arguments.write:
        BASELINE.write_text(json.dumps(stats, indent=1) + "\n")
    if not arguments.check:
        return 0
    changed = differences(stats, json.loads(BASELINE.read_text())) if BASELINE.exists() else []
    print(*changed, sep="\n", end="")
    print("kernel_stats: run `make kernel-stats` and commit the change" if changed else "")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
