"""What was compiled, per kernel and stage: registers, shared and local memory as the driver reports
them, spills as the compiler reported them (bench/kernel_stats.json)."""

from __future__ import annotations

import json

from bench.kernel_stats import BASELINE


def recorded_spills() -> dict[tuple[str, str], int]:
    """Spill bytes by (kernel, stage) from the committed statistics; empty without the file."""
    if not BASELINE.exists():
        return {}
    spills: dict[tuple[str, str], int] = {}
    for kernel in json.loads(BASELINE.read_text())["kernels"]:
        for stage in kernel["stages"]:
            spills[kernel["name"], stage["stage"]] = (
                stage["spill_store_bytes"] + stage["spill_load_bytes"]
            )
    return spills


def kernel_rows() -> list[dict[str, object]]:
    """One entry per compiled kernel and stage. Needs a Hopper GPU.

    `spill_bytes` is None where the build recorded nothing. Raises RuntimeError if the driver cannot
    tell about a kernel.
    """
    import dash
    from dash import _ops

    spills = recorded_spills()
    rows: list[dict[str, object]] = []
    for name in dash.compiled_kernels():
        stages = _ops.kernel_attributes(name)
        if isinstance(stages, dict):
            raise RuntimeError(f"kernel {name}: {stages}")
        for stage in stages:
            rows.append(
                {"kernel": name, **stage, "spill_bytes": spills.get((name, stage["stage"]))}
            )
    return rows
