"""`python -m dash`: build and device; `selftest`: bits; `schedule`: an order as a table."""

from __future__ import annotations

import argparse
import json
import sys

from . import introspection, schedule, selftest
from .interface import schedules


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dash", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("info", help="build information and the device (the default)")
    test = commands.add_parser("selftest", help="repeat each kernel and compare the bits")
    test.add_argument("--repeats", type=int, default=0, help="default: 20 on a GPU, else 3")
    table = commands.add_parser("schedule", help="print the order in which dQ is added")
    table.add_argument("--name", choices=schedules(), default="band")
    table.add_argument("--causal", action="store_true")
    table.add_argument("--seqlen-q", type=int, default=512)
    table.add_argument("--seqlen-k", type=int, default=512)
    table.add_argument("--head-dim", type=int, default=128)
    return parser


def _print_info() -> None:
    info = introspection.build_info()
    for name, value in info.items():
        print(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
    print(f"device: {introspection.device_info()}")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 if the self-test found different bits, or 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    if options.command == "selftest":
        repeats = options.repeats or (20 if introspection.device_runs_kernels() else 3)
        if repeats < 2:
            print(f"--repeats {repeats}: at least 2 are needed to compare", file=sys.stderr)
            return 2
        return 0 if selftest.run(repeats, print) else 1
    if options.command == "schedule":
        try:
            print(
                schedule.render(
                    options.name,
                    causal=options.causal,
                    seqlen_q=options.seqlen_q,
                    seqlen_k=options.seqlen_k,
                    head_dim=options.head_dim,
                )
            )
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    _print_info()
    return 0


if __name__ == "__main__":
    sys.exit(main())
