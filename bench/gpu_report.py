"""The GPU report: `python -m bench.gpu_report` (or `make gpu-report`) writes reports/gpu.json.

Runs the tests in a child process with a time limit, asks the driver about every compiled kernel,
and times a short benchmark (about a minute). The report names the sources it speaks about by hash,
so that a later change shows; it holds no paths and no names of machines. A part that is skipped is
taken over from an existing report of the same sources, so that the parts can be run one by one.
"""

from __future__ import annotations

import argparse
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

from bench.environment import ROOT, environment, why_no_hopper
from bench.kernels import kernel_rows
from bench.measure import Options, Row, measure
from bench.providers import PROVIDERS
from bench.shapes import PRESETS, AttentionShape, paper_shapes
from bench.source_hash import source_hash

REPORT = ROOT / "reports" / "gpu.json"
ROLES = {"dash": "ordered", "dash-unordered": "unordered", "cudnn": "peer"}
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
    parser.add_argument("--tests", default="gpu", metavar="MARK", help="pytest -m; '' for all")
    parser.add_argument("--output", type=Path, default=REPORT, metavar="FILE")
    parser.add_argument(
        "--merge",
        type=Path,
        default=REPORT,
        metavar="FILE",
        help="report from which skipped parts are taken, if it is of the same sources",
    )
    return parser.parse_args(arguments)


def count_tests(junit: Path) -> dict[str, object]:
    """Counts of a pytest --junitxml file, with the names of what failed."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures: list[str] = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return {**counts, "failures": failures[:50]}


def run_tests(mark: str, limit_s: int) -> dict[str, object]:
    """Runs the tests with a mark in a process group of its own and counts them; `finished` is False
    if the time limit ended them."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", "-m", mark]
        child = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        is_finished = True
        try:
            child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            is_finished = False
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
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


def bench_record(direction: str, shape: AttentionShape, rows: list[Row]) -> dict[str, object]:
    """One line of the report: the three roles of one shape and direction side by side."""
    import dash

    by_role = {ROLES[row.provider]: row for row in rows}
    ordered, unordered, peer = (by_role.get(role) for role in ROLES.values())
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
        over_peer, over_unordered = ordered.ratio_to(peer), ordered.ratio_to(unordered)
        record["ratio_to_peer"] = over_peer and round(over_peer, 3)
        record["ratio_to_unordered"] = over_unordered and round(over_unordered, 3)
    if direction == "bwd":
        q_shape = (shape.batch, shape.seqlen_q, shape.num_heads, shape.head_dim)
        k_shape = (shape.batch, shape.seqlen_k, shape.num_heads_k, shape.head_dim)
        record["schedule"] = dash.resolve_schedule(q_shape, k_shape, shape.causal).name
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
    shown = re.sub(r"--(output|merge)[= ]\S+", "", " ".join(arguments))
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
    }
    # Written after each part, so that an interrupted run leaves what it measured.
    if not options.bench_only:
        report["kernels"] = kernel_rows()
        write_report(report, options.output)
    if not options.skip_bench:
        report["bench"] = run_bench(options.quick)
        report.update(environment())  # again, for the clocks under load
        write_report(report, options.output)
    if not (options.skip_tests or options.bench_only):
        report["tests"] = run_tests(options.tests, options.test_limit)
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
    return not (has_bad_tests or has_bad_bench)


if __name__ == "__main__":
    sys.exit(main())
