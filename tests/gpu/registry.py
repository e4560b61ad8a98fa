"""The GPU checks by name. A check is a function without arguments that raises if it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class SkippedError(Exception):
    """Raised by a check that cannot run here; the message says why."""


@dataclass(frozen=True)
class Check:
    function: Callable[[], None]
    limit_s: float  # a check that takes longer, with the GPU to itself, hangs
    alone: bool = False  # it needs the GPU's memory or SMs to itself


CHECKS: dict[str, Check] = {}
NOTES: list[str] = []  # what the check that runs has to say beside its verdict

Function = Callable[[], None]


def add(name: str, function: Function, limit_s: float = 30.0, *, alone: bool = False) -> None:
    if name in CHECKS:
        raise ValueError(f"two checks are named {name}")
    CHECKS[name] = Check(function, limit_s, alone)


def check(
    name: str, limit_s: float = 30.0, *, alone: bool = False
) -> Callable[[Function], Function]:
    """Decorator: registers the function under the name."""

    def decorate(function: Function) -> Function:
        add(name, function, limit_s, alone=alone)
        return function

    return decorate


def note(text: str) -> None:
    """Adds a line to the test report; decides nothing."""
    NOTES.append(text)
