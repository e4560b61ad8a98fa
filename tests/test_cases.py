"""The case library on the CPU path; what the CPU cannot show or not in time runs on a GPU only."""

from __future__ import annotations

import pytest

from . import case_checks, shape_checks
from .cases import CASES

# A score costs about a microsecond on the CPU path, over all schedules and repeats.
CPU_WORK = 5_000_000
# They choose their own sizes on the CPU.
SWEEPS = {
    *("uneven-lengths-grid", "scaled-inputs", "length-sweep", "checkpointing"),
    *("head-dims", "softcap-turns", "varlen-many-tiny", "varlen-random-packs"),
    *("varlen-slack-tokens", "varlen-70000-sequences"),
}


def why_not_here(name: str) -> str:
    if name in case_checks.GPU_ONLY:
        return "needs a GPU; tests/gpu runs it"
    if name not in SWEEPS and CASES[name].work > CPU_WORK:
        return "too large for the CPU path; tests/gpu runs it"
    return ""


@pytest.mark.parametrize("name", list(CASES))
def test_case_on_the_cpu_path(name: str) -> None:
    if reason := why_not_here(name):
        pytest.skip(reason)
    case_checks.check(name, "cpu")


def test_special_checks_are_of_entries() -> None:
    assert {*case_checks.SPECIAL, *shape_checks.SPECIAL, *case_checks.GPU_ONLY} <= set(CASES)
