"""The case library on the GPU: every supported entry that has no function of its own here."""

from __future__ import annotations

from functools import partial

from .. import case_checks
from ..cases import CASES, LIBRARY
from . import registry

LIMITS_S = {"varlen-random-packs": 180, "head-dims": 120, "length-sweep": 90}
KINDS = {entry["name"]: entry["kind"] for entry in LIBRARY}

for _name in CASES:
    if _name not in case_checks.GPU_ONLY:
        _check = partial(case_checks.check, _name, "cuda")
        _limit_s = LIMITS_S.get(_name, 60)
        registry.add(f"library/{KINDS[_name]}-{_name}", _check, _limit_s)


@registry.check("library/gpu-only-entries-have-checks")
def gpu_only() -> None:
    names = {name.partition("/")[2] for name in registry.CHECKS}
    assert names >= case_checks.GPU_ONLY, case_checks.GPU_ONLY - names
