"""Runs every GPU check in a child process, one after the other, each with a time limit.

The child stays alive between checks, because starting CUDA takes seconds. If a check hangs or kills
the child, that check fails and the next one gets a fresh child.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from . import accuracy, bits, device, library, package, registry, semaphore  # noqa: F401
from .pretend import PRETEND

ROOT = Path(__file__).resolve().parents[2]
START_S = 90.0  # import of torch, CUDA context, first kernel


class Child:
    """A child process and what it has said."""

    def __init__(self, stderr: IO[str]) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()
        self.stderr = stderr

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        self.process, self.lines = process, lines
        return process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)
            self.process = None

    def _said(self) -> str:
        self.stderr.flush()
        return Path(self.stderr.name).read_text()[-3000:]

    def run(self, name: str, limit_s: float) -> None:
        """Raises AssertionError if the check fails, hangs or ends the child."""
        is_alive = self.process is not None and self.process.poll() is None
        process = self.process if is_alive else self._start()
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        limit = limit_s if is_alive else limit_s + START_S
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            self.stop()
            pytest.fail(f"{name} did not end within {limit:.0f} s: a hang", pytrace=False)
        if not line:
            status = process.wait(timeout=30)
            self.stop()
            pytest.fail(f"{name} ended the child, status {status}\n{self._said()}", pytrace=False)
        error = json.loads(line)["error"]
        if error:
            if "CUDA error" in error or "AcceleratorError" in error:
                self.stop()
            pytest.fail(f"{name}\n{error}", pytrace=False)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with open(tmp_path_factory.mktemp("gpu") / "stderr.txt", "w") as stderr:
        running = Child(stderr)
        yield running
        running.stop()


def test_hangs_and_crashes_are_found_and_the_next_check_runs(child: Child) -> None:
    """The child itself, without a GPU."""

    def outcome(name: str) -> str:
        try:
            child.run(name, PRETEND[name].limit_s)
        except pytest.fail.Exception as failure:
            return str(failure)
        return "passed"

    assert outcome("pretend/passes") == "passed"
    assert "this check fails" in outcome("pretend/fails")
    assert "did not end within 2 s: a hang" in outcome("pretend/hangs")
    assert outcome("pretend/passes") == "passed"
    assert "ended the child, status -6" in outcome("pretend/crashes")
    assert outcome("pretend/passes") == "passed"


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(registry.CHECKS))
def test_on_the_gpu(name: str, child: Child) -> None:
    child.run(name, registry.CHECKS[name].limit_s)
