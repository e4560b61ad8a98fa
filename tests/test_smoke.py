"""The sanitizers' smoke set without a GPU: what it covers, and how findings are read."""

from __future__ import annotations

import subprocess
from itertools import product
from types import SimpleNamespace

import pytest

import dash

from .gpu import smoke
from .gpu.kernels import COMPILED_HEAD_DIMS


def test_covers_each_kernel_family() -> None:
    from dash import _schedule

    seen = {
        _schedule.kernel_name_words(
            max(problem.head_dim, problem.dim_v),
            problem.window,
            problem.packed,
            problem.softcap != 0.0,
        )
        for problem in smoke.problems()
    }
    assert list(COMPILED_HEAD_DIMS) == dash.supported_head_dims()
    wanted = set(product(COMPILED_HEAD_DIMS, ("full", "causal", "general")))
    assert seen == wanted | {(128, "packed_full")}


def test_covers_each_schedule() -> None:
    calls = list(smoke.calls())
    assert {schedule for _, schedule in calls} == {"auto", *dash.schedules()}
    assert len(calls) < 80
    assert all(max(problem.lengths_q) <= 256 for problem, _ in calls)


def test_long_problems_give_the_converters_work() -> None:
    problems = list(smoke.long_problems())
    assert [problem.head_dim for problem in problems] == list(COMPILED_HEAD_DIMS)
    for problem in problems:
        kv_tiles = problem.lengths_k[0] // 128
        assert kv_tiles >= 4 and kv_tiles * problem.heads >= 4 * 2


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
INVALID = (
    "========= Invalid __global__ read of size 16 bytes\n"
    "=========     at kernel+0x100 in load.cuh:12\n"
    "========= ERROR SUMMARY: 1 error\n"
)
RACES = (
    "========= Error: Race reported between Write access at 0x100 in load.cuh:12\n"
    "=========     and Read access at 0x200 in mma.cuh:13 [4 hazards]\n"
    "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
)


def test_summary() -> None:
    assert smoke.summary(CLEAN) == (0, {})
    count, kinds = smoke.summary(INVALID)
    assert count == 1 and list(kinds) == ["Invalid __global__ read of size 16 bytes"]
    count, kinds = smoke.summary(RACES)
    assert count == 2 and len(kinds) == 1
    with pytest.raises(ValueError, match="no summary"):
        smoke.summary("killed")


@pytest.mark.parametrize(
    ("tool", "output", "status"),
    [
        *(("memcheck", CLEAN, 0), ("memcheck", INVALID, 1), ("racecheck", RACES, 0)),
        ("synccheck", "killed", 1),
    ],
)
def test_what_fails(monkeypatch: pytest.MonkeyPatch, tool: str, output: str, status: int) -> None:
    done = SimpleNamespace(stdout=output, stderr="", returncode=0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(smoke.shutil, "which", lambda _: "/bin/true")
    assert smoke.sanitize([tool]) == status
