"""Runs checks in several child processes at once, each check with a time limit.

A child stays alive between checks, because starting CUDA takes seconds. If a check hangs or kills
its child, that check fails and the next one gets a fresh child. What one check does to memory and
streams stays in its process; those that need the GPU's memory or SMs to themselves come last, one
after the other.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from .registry import Check

ROOT = Path(__file__).resolve().parents[2]
START_S = 90.0  # import of torch, CUDA context, first kernel
SHARED_GPU = 4.0  # time limits are this much longer while others use the GPU as well
CORES_PER_WORKER, MAX_WORKERS = 2, 8


@dataclass(frozen=True)
class Outcome:
    """`error` and `skipped` are empty for a check that passed."""

    error: str = ""
    skipped: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


class Child:
    """A child process and what it has said. `stderr` is where its standard error goes."""

    def __init__(self, stderr: Path) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()
        self.stderr = stderr

    def _start(self) -> subprocess.Popen[str]:
        with self.stderr.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.child"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
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
        """Ends the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)
            self.process = None

    def _line(self, what: str, limit_s: float) -> str | Outcome:
        """The next line that the child says, or what went wrong."""
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            self.stop()
            return Outcome(f"{what} did not end within {limit_s:.0f} s: a hang")
        if line:
            return line
        status = self.process.wait(timeout=30)
        self.process = None
        said = self.stderr.read_text()[-3000:]
        return Outcome(f"{what} ended the child, status {status}\n{said}")

    def run(self, name: str, limit_s: float) -> Outcome:
        """Runs one check, in a fresh process if there is none."""
        started = time.monotonic()
        if self.process is None or self.process.poll() is not None:
            self._start()
            ready = self._line("the child's start", START_S)
            if isinstance(ready, Outcome):
                return ready
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        line = self._line(name, limit_s)
        if isinstance(line, Outcome):
            return Outcome(line.error, seconds=time.monotonic() - started)
        said = json.loads(line)
        if "CUDA error" in said["error"] or "AcceleratorError" in said["error"]:
            self.stop()
        return Outcome(said["error"], said["skipped"], tuple(said["notes"]), said["seconds"])


def default_workers() -> int:
    """Children at once on this machine."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MAX_WORKERS, cores // CORES_PER_WORKER))


class Workers:
    """Runs checks as soon as it is made; `results` holds a future for each."""

    def __init__(self, checks: Mapping[str, Check], folder: Path, count: int) -> None:
        self.checks = checks
        self.results: dict[str, Future[Outcome]] = {name: Future() for name in checks}
        self.children = [Child(folder / f"stderr{i}.txt") for i in range(count)]
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.is_stopped = False
        shared = [name for name, check in checks.items() if not check.alone]
        # The longest first, so that none is left when the others have ended.
        for name in sorted(shared, key=lambda name: -checks[name].limit_s):
            self.waiting.put(name)
        self.main = threading.Thread(target=self._run_all, daemon=True)
        self.main.start()

    def _run_all(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(child,), daemon=True)
            for child in self.children
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # An idle child would keep what torch's allocator has.
        for child in self.children[1:]:
            child.stop()
        for name, check in self.checks.items():
            if check.alone and not self.is_stopped:
                self._run(self.children[0], name, 1.0)

    def _work(self, child: Child) -> None:
        factor = SHARED_GPU if len(self.children) > 1 else 1.0
        while not self.is_stopped:
            try:
                name = self.waiting.get_nowait()
            except queue.Empty:
                return
            self._run(child, name, factor)

    def _run(self, child: Child, name: str, factor: float) -> None:
        try:
            outcome = child.run(name, self.checks[name].limit_s * factor)
        except Exception as error:  # a broken pipe, for instance
            child.stop()
            outcome = Outcome(f"{name}: {type(error).__name__}: {error}")
        self.results[name].set_result(outcome)

    def stop(self) -> None:
        """Ends all children, whatever they do."""
        self.is_stopped = True
        for child in self.children:
            child.stop()
        self.main.join(timeout=30)
