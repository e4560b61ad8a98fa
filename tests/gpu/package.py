"""The package on a GPU: self-test, command line, what the driver says of the kernels."""

from __future__ import annotations

import subprocess
import sys

import dash
from dash import _ops, selftest

from . import registry


@registry.check("package/selftest", 60)
def self_test() -> None:
    lines: list[str] = []
    assert selftest.run(5, lines.append), "\n".join(lines)
    backward = [name for name in dash.compiled_kernels() if name.startswith("bwd")]
    assert len(lines) >= 2 * len(backward)
    assert all(line.startswith("cuda ") for line in lines), lines


@registry.check("package/command-line", 60)
def command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dash"], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "9.0" in done.stdout and "no kernel" not in done.stdout


@registry.check("package/kernels-use-no-local-memory")
def attributes() -> None:
    kernels = dash.compiled_kernels()
    assert kernels
    for name in kernels:
        for stage in _ops.kernel_attributes(name):
            assert stage["registers"] > 0, (name, stage)
            assert stage["local_bytes"] == 0, f"{name}: {stage} spills or has a stack frame"
