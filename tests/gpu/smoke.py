"""A small set of calls that launches each kernel family, for compute-sanitizer.

    python -m tests.gpu.smoke           the set, once; needs a Hopper GPU
    python -m tests.gpu.smoke --list    its calls
    python -m tests.gpu.smoke --sanitize [memcheck racecheck synccheck]

Small, since the tools slow kernels down by a factor of hundreds: two KV tiles and more than one Q
tile a list, tails, a sequence without rows. bf16 and fp16 differ in no access, so one of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .kernels import COMPILED_HEAD_DIMS
from .problem import Inputs, Problem, dense, packed

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck")
# memcheck and synccheck must find nothing. What racecheck says is listed: docs/debugging.md.
MUST_BE_CLEAN = ("memcheck", "synccheck")
LIMIT_S = 560
CAUSAL = (-1, 0)


def problems() -> Iterator[Problem]:
    """One for each variant and compiled head dim."""
    lengths_q, lengths_k = [200, 0, 65, 1], [130, 7, 200, 0]
    for head_dim in COMPILED_HEAD_DIMS:
        small = {"heads": 2, "heads_k": 1, "head_dim": head_dim}
        yield dense(1, 200, 200, **small)
        yield dense(1, 200, 160, **small, window=CAUSAL)
        yield dense(1, 150, 200, **small, window=(60, 20), softcap=15.0)
        if head_dim == 128:
            yield packed(lengths_q, lengths_k, **small, slack=3)
        yield packed(lengths_q, lengths_k, **small, window=CAUSAL, used_q=(150, 0, 65, 1))
    yield dense(1, 130, 130, heads=2, heads_k=2, head_dim=192, head_dim_v=128, window=CAUSAL)
    yield dense(1, 130, 130, heads=2, heads_k=2, head_dim=72, head_dim_v=40)


def calls() -> Iterator[tuple[Problem, str]]:
    """Each problem under "auto", which cuts such small query groups into parts, and with whole
    groups; one of each mask under every schedule that it can have."""
    from .problem import legal

    for problem in problems():
        yield problem, "auto"
        yield problem, "band"
    full = dense(1, 256, 256, heads=2, heads_k=2)
    for problem in (full, replace(full, window=CAUSAL), packed([130, 70], heads=2)):
        for schedule in (*legal(problem, "cpu"), "unordered"):
            yield problem, schedule


def long_problems() -> Iterator[Problem]:
    """For two SMs: enough waves and contributors that the converter warps work (api/bwd.cpp)."""
    for head_dim in COMPILED_HEAD_DIMS:
        yield dense(1, 512, 512, heads=4, heads_k=4, head_dim=head_dim)


def run_all() -> int:
    """Runs each call twice and compares the bits of the ordered ones."""
    import torch

    from ..compare import assert_results_equal
    from .problem import run

    def run_twice(problem: Problem, inputs: Inputs, schedule: str, sm_margin: int = 0) -> None:
        first = run(problem, inputs, schedule, sm_margin=sm_margin)
        again = run(problem, inputs, schedule, sm_margin=sm_margin)
        torch.cuda.synchronize()
        if schedule != "unordered":
            assert_results_equal(again, first, f"{problem} {schedule}, sm_margin {sm_margin}")

    for problem, schedule in calls():
        run_twice(problem, problem.make_inputs(), schedule)
    two_sms = torch.cuda.get_device_properties(0).multi_processor_count - 2
    for problem in long_problems():
        q, *others = problem.make_inputs()
        # Scores so far apart that rows outgrow the references of their first KV tile.
        run_twice(problem, (q * 30, *others), "band", two_sms)
    return 0


def summary(output: str) -> tuple[int, Counter[str]]:
    """What a tool's output says: the number of errors and hazards, and how often each kind.

    Raises ValueError if there is no summary: then the tool did not get to its end.
    """
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if not found:
        raise ValueError("the tool's output has no summary")
    kinds: Counter[str] = Counter()
    for line in output.splitlines():
        text = line.removeprefix("=========").strip()
        if match := re.match(r"(Error|Warning|Invalid|Barrier error|Program hit|Race)\b.*", text):
            kinds[re.sub(r"0x[0-9a-f]+|\(?\d+,\d+,\d+\)?", "*", match.group())[:160]] += 1
    return sum(int(number) for pair in found for number in pair if number), kinds


def sanitize(tools: list[str]) -> int:
    """Runs the set under each tool. Exit status 0 if those that must be clean are."""
    executable = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(executable).exists():
        print("smoke: compute-sanitizer is not on PATH; the CUDA toolkit has it", file=sys.stderr)
        return 2
    bad = []
    for tool in tools:
        command = [executable, "--tool", tool, "--print-limit", "200"]
        command += [sys.executable, "-m", "tests.gpu.smoke"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
            )
            count, kinds = summary(done.stdout + done.stderr)
        except (subprocess.TimeoutExpired, ValueError) as error:
            print(f"{tool}: {error}", flush=True)
            bad.append(tool)
            continue
        print(f"{tool}: {count} findings, exit status {done.returncode}", flush=True)
        for kind, times in kinds.most_common(20):
            print(f"  {times} x {kind}", flush=True)
        if done.returncode or (count and tool in MUST_BE_CLEAN):
            print("\n".join((done.stdout + done.stderr).splitlines()[-60:]), flush=True)
            bad.append(tool)
    print(f"not clean: {', '.join(bad)}" if bad else "clean", flush=True)
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--list"]:
        for problem, schedule in calls():
            print(f"{problem} {schedule}")
        for problem in long_problems():
            print(f"{problem} band, two SMs")
        return 0
    if arguments[:1] == ["--sanitize"]:
        return sanitize(arguments[1:] or list(TOOLS))
    return run_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
