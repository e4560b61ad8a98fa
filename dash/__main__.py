"""`python -m dash`: build and device; `selftest`: bits; `schedule`: orders seen."""

from __future__ import annotations

import argparse
import json
import sys

from . import introspection, schedule_cli, selftest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dash", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("info", help="build information and the device (the default)")
    test = commands.add_parser("selftest", help="repeat each kernel and compare the bits")
    test.add_argument("--repeats", type=int, default=0, help="default: 20 on a GPU, else 3")
    schedule_cli.add_parser(commands)
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
        return schedule_cli.run(options)
    _print_info()
    return 0


if __name__ == "__main__":
    sys.exit(main())
