"""Checks that pass, fail, hang and crash, for the test of the child process itself. No GPU."""

from __future__ import annotations

import os
import time

from . import registry


def _fail() -> None:
    raise AssertionError("this check fails")


PRETEND = {
    "pretend/passes": registry.Check(lambda: None, 30),
    "pretend/fails": registry.Check(_fail, 30),
    "pretend/hangs": registry.Check(lambda: time.sleep(3600), 2),
    "pretend/crashes": registry.Check(lambda: os.abort(), 30),
}
