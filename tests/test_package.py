"""Import, command line and self-test."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import dash
from dash import selftest
from dash.__main__ import main

ROOT = Path(__file__).resolve().parents[1]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_import_prints_nothing_and_leaves_cuda_alone() -> None:
    done = python("-c", "import dash, torch; assert not torch.cuda.is_initialized()")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_python_m_dash_prints_the_build_and_the_device() -> None:
    done = python("-m", "dash")
    assert done.returncode == 0, done.stderr
    for word in (dash.__version__, "schedules", "head_dims", "device:"):
        assert word in done.stdout


def test_build_info_is_json() -> None:
    info = json.loads(json.dumps(dash.build_info()))
    assert info["version"] == dash.__version__
    assert info["kernels"] == dash.compiled_kernels()
    assert (info["cuda"] is None) == (info["kernels"] == [])


@pytest.fixture
def cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU too, the CPU path: kernels run in a child process only."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_self_test_passes(cpu_only: None) -> None:
    lines: list[str] = []
    assert selftest.run(2, lines.append)
    assert lines[0].startswith("The CPU path runs, not the CUDA kernels: ")
    variants = {(line.split()[2], line.split()[4]) for line in lines[1:]}
    assert len(variants) == 5 * 3 + 1, "each variant of each head dim"
    assert all(line.endswith("2 repeats: equal") for line in lines[1:])


def test_the_self_test_finds_other_bits(
    cpu_only: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_pass, calls = selftest._one_pass, []

    def flaky(*arguments: object) -> list[object]:
        results = one_pass(*arguments)
        calls.append(None)
        if len(calls) == 2:
            results[2][0, 0, 0, 0] += 1.0
        return results

    monkeypatch.setattr(selftest, "_one_pass", flaky)
    assert main(["selftest", "--repeats", "2"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("NOT EQUAL: dq") == 1


def test_command_line_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--repeats", "1"]) == 2
    assert "--repeats 1" in capsys.readouterr().err


def test_plotly_dash_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dash._warn_of_plotly_dash()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: object())
    with pytest.warns(UserWarning, match=r"Plotly.*DASH_IMPORT_NAME"):
        dash._warn_of_plotly_dash()
