"""Checks that pass, fail, hang and crash, for the test of the child process itself. No GPU."""

from __future__ import annotations

import os
import time

from . import registry


def _fail() -> None:
    raise AssertionError("this check fails")


def _skip() -> None:
    raise registry.SkippedError("this check cannot run here")


def _say() -> None:
    registry.note("what a check has to say")


PRETEND = {
    "pretend/passes": registry.Check(lambda: None, 30),
    "pretend/fails": registry.Check(_fail, 30),
    "pretend/hangs": registry.Check(lambda: time.sleep(3600), 2),
    "pretend/crashes": registry.Check(lambda: os.abort(), 30),
    "pretend/skips": registry.Check(_skip, 30),
    "pretend/says": registry.Check(_say, 30),
    "pretend/waits": registry.Check(lambda: time.sleep(1), 30),
    "pretend/waits-too": registry.Check(lambda: time.sleep(1), 30),
    "pretend/waits-alone": registry.Check(lambda: time.sleep(1), 30, alone=True),
}
