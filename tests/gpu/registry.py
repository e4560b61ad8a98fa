"""The GPU checks by name. A check is a function without arguments that raises if it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    function: Callable[[], None]
    limit_s: float  # a check that takes longer hangs


CHECKS: dict[str, Check] = {}

Function = Callable[[], None]


def add(name: str, function: Function, limit_s: float = 30.0) -> None:
    if name in CHECKS:
        raise ValueError(f"two checks are named {name}")
    CHECKS[name] = Check(function, limit_s)


def check(name: str, limit_s: float = 30.0) -> Callable[[Function], Function]:
    """Decorator: registers the function under the name."""

    def decorate(function: Function) -> Function:
        add(name, function, limit_s)
        return function

    return decorate
