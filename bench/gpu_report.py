"""The GPU report: `python -m bench.gpu_report` (or `make gpu-report`) writes reports/gpu.json.

Runs the tests in a child process with a time limit, asks the driver about every compiled kernel,
times the paper's grid (a minute or two), and the other presets in child processes with time limits,
since a peer may hang; measures host time, small kernels and memory. The report names the sources it
speaks about by hash, so that a later change shows; it holds no paths and no names of machines. A
part that is skipped is taken over from an existing report of the same sources, so that the parts
can be run one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import torch

from bench import fa3
from bench.environment import ROOT, environment, why_no_hopper
from bench.kernels import kernel_rows
from bench.measure import Options, Row, measure
from bench.overhead import measure_overhead
from bench.providers import PROVIDERS
from bench.shapes import PRESETS, AttentionShape, paper_shapes
from bench.source_hash import source_hash

REPORT = ROOT / "reports" / "gpu.json"
ROLES = {
    "dash": "ordered",
    "dash-unordered": "unordered",
    "cudnn": "peer",
    "fa3": "fa3",
    "fa3-det": "fa3_det",
}
OTHER_PRESETS = ("gqa", "few-heads", "train", "shapes")
PEER = "torch SDPA, cuDNN backend (not deterministic)"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_report",
        description="Runs the GPU tests and a short benchmark and writes reports/gpu.json.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--skip-tests", action="store_true", help="kernels and benchmark only")
    parts.add_argument("--skip-bench", action="store_true", help="tests and kernels only")
    parts.add_argument("--bench-only", action="store_true", help="benchmark only")
    parser.add_argument("--quick", action="store_true", help="three lengths, fewer rounds")
    parser.add_argument("--test-limit", type=int, default=540, help="seconds for the tests")
    parser.add_argument(
        "--presets",
        default=",".join(OTHER_PRESETS),
        help="benchmarks beside the paper's grid, comma-separated; '' for none",
    )
    parser.add_argument("--preset-limit", type=int, default=60, help="seconds for each of them")
    parser.add_argument("--fa3-library", type=Path, metavar="FILE", help="as bench_attention's")
    parser.add_argument("--tests", default="gpu", metavar="MARK", help="pytest -m; '' for all")
    parser.add_argument("--select", default="", metavar="EXPRESSION", help="pytest -k; '' for all")
    parser.add_argument(
        "--append-tests",
        action="store_true",
        help="add to the tests of the merged report: the selections of the runs must not overlap",
    )
    parser.add_argument("--output", type=Path, default=REPORT, metavar="FILE")
    parser.add_argument(
        "--merge",
        type=Path,
        default=REPORT,
        metavar="FILE",
        help="report from which skipped parts are taken, if it is of the same sources",
    )
    return parser.parse_args(arguments)


def slowest_of(seconds: dict[str, float]) -> dict[str, float]:
    """The 20 tests that took longest, the longest first."""
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1])[:20])


def count_tests(junit: Path) -> dict[str, object]:
    """Counts of a pytest --junitxml file, with the names of what failed."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures: list[str] = []
    notes: list[str] = []
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
        name = re.sub(r"^test_on_the_gpu\[(.*)\]$", r"\1", case.get("name", ""))
        for entry in case.iter("property"):
            if entry.get("name") == "note":
                notes.append(f"{name}: {entry.get('value')}")
            elif entry.get("name") == "seconds":
                seconds[name] = float(entry.get("value", 0.0))
    return {
        **counts,
        "failures": failures[:50],
        "notes": notes,
        "slowest": slowest_of(seconds),
    }


def run_limited(command: list[str], limit_s: float, grace_s: float = 0.0) -> bool:
    """Runs a command in a process group of its own; False if the time limit ended it. With a grace
    time it is interrupted first, and has so long to write what it has."""
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    is_finished = True
    try:
        child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        is_finished = False
        if grace_s:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=grace_s)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return is_finished


def run_tests(mark: str, select: str, limit_s: int) -> dict[str, object]:
    """Runs the tests with a mark in a process group of its own and counts them; `finished` is False
    if the time limit ended them, and the counts are then of those that had ended."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", "-m", mark]
        command += ["-k", select] if select else []
        is_finished = run_limited(command, limit_s, grace_s=15.0)
        if not junit.exists():
            reason = "the run ended without a result" if is_finished else "time limit"
            return {
                "passed": 0,
                "failed": 1,
                "skipped": 0,
                "failures": [reason],
                "finished": False,
            }
        return {**count_tests(junit), "finished": is_finished}


def joined_tests(first: dict | None, second: dict) -> dict[str, object]:
    """The tests of two runs of the same sources that have no test in common."""
    if not first:
        return second
    return {
        **{key: first[key] + second[key] for key in ("passed", "failed", "skipped", "failures")},
        "notes": first.get("notes", []) + second.get("notes", []),
        "slowest": slowest_of({**first.get("slowest", {}), **second.get("slowest", {})}),
        "finished": first["finished"] and second["finished"],
    }


def bench_record(direction: str, shape: AttentionShape, rows: list[Row]) -> dict[str, object]:
    """One line of the report: the three roles of one shape and direction side by side."""
    import dash

    by_role = {ROLES[row.provider]: row for row in rows}
    ordered = by_role.get("ordered")
    record: dict[str, object] = {
        "pass": direction,
        "mask": shape.mask,
        "batch": shape.batch,
        "seqlen": shape.seqlen_q,
        "heads": shape.num_heads,
        "heads_k": shape.num_heads_k,
        "head_dim": shape.head_dim,
        "dtype": "bf16",
    }
    for role, row in by_role.items():
        record[f"{role}_ms"] = row.timing and round(row.timing.median_ms, 4)
        record[f"{role}_tflops"] = row.tflops and round(row.tflops, 1)
        record[f"{role}_error"] = row.relative_error and round(row.relative_error, 6)
    if ordered is not None:
        for role in ("peer", "unordered", "fa3", "fa3_det"):
            ratio = ordered.ratio_to(by_role.get(role))
            record[f"ratio_to_{role}"] = ratio and round(ratio, 3)
    if direction == "bwd":
        resolved = dash.resolve_schedule(
            shape.q_shape, shape.k_shape, device="cuda", **shape.options
        )
        record["schedule"] = resolved.name
        record["repeatable"] = ordered and ordered.is_repeatable
    record["notes"] = {role: row.note for role, row in by_role.items() if row.note}
    return record


def run_bench(is_quick: bool) -> list[dict[str, object]]:
    """Forward and backward over the paper's grid."""
    seqlens = PRESETS["quick" if is_quick else "paper"]
    options = Options(
        budget_ms=150.0 if is_quick else 500.0, max_rounds=15 if is_quick else 40, repeats=3
    )
    providers = [PROVIDERS[name] for name in ROLES]
    records: list[dict[str, object]] = []
    for shape in paper_shapes(seqlens=seqlens):
        rows = measure(shape, providers, ["fwd", "bwd"], options)
        for direction in ("fwd", "bwd"):
            chosen = [row for row in rows if row.direction == direction]
            records.append(bench_record(direction, shape, chosen))
            print_record(shape, records[-1])
    return records


def run_preset(preset: str, limit_s: int, fa3_library: Path | None) -> dict[str, object]:
    """Forward and backward of a preset in a process of its own; `finished` is False if its time
    limit ended it, and the rows are then those that it had."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench.bench_attention", "--pass", "both"]
        command += ["--preset", preset, "--providers", ",".join(ROLES), "--json", str(path)]
        command += ["--budget-ms", "200", "--max-rounds", "25", "--limit-s", str(0.7 * limit_s)]
        if fa3_library is not None:
            command += ["--fa3-library", str(fa3_library)]
        is_finished = run_limited(command, limit_s)
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {"finished": is_finished, "rows": [short_row(row) for row in rows]}


def short_row(row: dict[str, object]) -> dict[str, object]:
    """A row of bench_attention with what the report shows."""
    digits = {"ms": 4, "tflops": 1, "relative_error": 6}
    dropped = ("p20_ms", "p80_ms", "rounds")
    return {
        key: round(value, digits[key]) if key in digits and value is not None else value
        for key, value in row.items()
        if key not in dropped
    }


def print_record(shape: AttentionShape, record: dict[str, object]) -> None:
    """A line of progress, so that an interrupted run still tells something."""
    speeds = ", ".join(
        f"{role} {record.get(f'{role}_tflops')}"
        for role in ROLES.values()
        if f"{role}_ms" in record
    )
    print(
        f"{record['pass']} {shape}: {speeds} TFLOP/s, to peer {record.get('ratio_to_peer')}, "
        f"to unordered {record.get('ratio_to_unordered')} {record['notes'] or ''}",
        flush=True,
    )


def command_line(arguments: list[str]) -> str:
    """The command with the values of path options left out."""
    shown = re.sub(r"--(output|merge|fa3-library)[= ]\S+", "", " ".join(arguments))
    return " ".join(["python -m bench.gpu_report", *shown.split()])


def existing_report(path: Path, digest: str) -> dict[str, object]:
    """An earlier report if it speaks about the same sources, else nothing."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return report if report.get("source_hash") == digest else {}


def build_versions() -> dict[str, object]:
    """Versions that the build recorded."""
    import dash

    info = dash.build_info()
    return {"dash": info["version"], "nvcc": info["cuda"], "cutlass": info["cutlass"]}


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 if a test failed or a kernel was wrong, 2 without a Hopper GPU."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(arguments)
    reason = why_no_hopper()
    if reason is not None:
        print(f"gpu_report: {reason}. The report needs a Hopper GPU.", file=sys.stderr)
        return 2
    digest = source_hash(ROOT)
    earlier = existing_report(options.merge, digest)
    report: dict[str, object] = {
        "source_hash": digest,
        **environment(),
        "versions": build_versions(),
        "command": command_line(arguments),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "tests": earlier.get("tests"),
        "kernels": earlier.get("kernels"),
        "peer": PEER,
        "bench": earlier.get("bench"),
        "presets": earlier.get("presets"),
        "overhead": earlier.get("overhead"),
    }
    if options.fa3_library is not None:
        fa3.use_library(options.fa3_library)
    # Written after each part, so that an interrupted run leaves what it measured.
    if not options.bench_only:
        report["kernels"] = kernel_rows()
        write_report(report, options.output)
    if not options.skip_bench:
        report["bench"] = run_bench(options.quick)
        report.update(environment())  # again, for the clocks under load
        write_report(report, options.output)
        report["overhead"] = measure_overhead()
        torch.cuda.empty_cache()
        report["presets"] = {}
        for preset in filter(None, options.presets.split(",")):
            found = run_preset(preset, options.preset_limit, options.fa3_library)
            report["presets"][preset] = found
            write_report(report, options.output)
    if not (options.skip_tests or options.bench_only):
        tests = run_tests(options.tests, options.select, options.test_limit)
        report["tests"] = joined_tests(report["tests"] if options.append_tests else None, tests)
        write_report(report, options.output)
    print(f"wrote {options.output.name}: tests {report['tests']}")
    return 0 if is_good(report) else 1


def write_report(report: dict[str, object], path: Path) -> None:
    """Writes the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def is_good(report: dict[str, object]) -> bool:
    """True if no test failed and every kernel of ours ran, was right and was repeatable."""
    tests = report["tests"]
    has_bad_tests = tests and (tests["failed"] or not tests["passed"] or not tests["finished"])
    has_bad_bench = any(
        record["notes"].keys() & {"ordered", "unordered"} for record in report["bench"] or []
    )
    has_bad_presets = any(
        row["provider"].startswith("dash") and row["note"].startswith(("WRONG", "NOT"))
        for preset in (report.get("presets") or {}).values()
        for row in preset["rows"]
    )
    return not (has_bad_tests or has_bad_bench or has_bad_presets)


if __name__ == "__main__":
    sys.exit(main())
