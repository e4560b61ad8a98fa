"""The case library on the CPU path; what the CPU cannot show or not in time runs on a GPU only."""

from __future__ import annotations

import pytest

from . import case_checks
from .cases import CASES, LIBRARY, unsupported

# A score costs about a microsecond on the CPU path, over all schedules and repeats.
CPU_WORK = 5_000_000
SWEEPS = {"uneven-lengths-grid", "scaled-inputs", "length-sweep", "checkpointing"}


def why_not_here(name: str) -> str:
    entry = next(entry for entry in LIBRARY if entry["name"] == name)
    if reason := unsupported(entry):
        return reason
    if name in case_checks.GPU_ONLY:
        return "needs a GPU; tests/gpu runs it"
    if name not in SWEEPS and CASES[name].work > CPU_WORK:
        return "too large for the CPU path; tests/gpu runs it"
    return ""


@pytest.mark.parametrize("name", [entry["name"] for entry in LIBRARY])
def test_case_on_the_cpu_path(name: str) -> None:
    if reason := why_not_here(name):
        pytest.skip(reason)
    case_checks.check(name, "cpu")
