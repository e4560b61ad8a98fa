"""The child process: runs checks by name and reports each in a line of JSON on standard output.

`python -m tests.gpu.child` reads one name a line from standard input. A hung or crashed kernel
takes this process with it, not the test run.
"""

from __future__ import annotations

import json
import sys
import time
import traceback

import torch

from . import all_checks, pretend, registry  # noqa: F401


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_one(name: str) -> dict[str, object]:
    torch.manual_seed(0)
    start = time.monotonic()
    error = skipped = ""
    registry.NOTES.clear()
    try:
        {**registry.CHECKS, **pretend.PRETEND}[name].function()
        synchronize()
        torch.cuda.empty_cache()
    except registry.SkippedError as reason:
        skipped = str(reason)
    except BaseException:
        error = traceback.format_exc()
    return {
        "name": name,
        "error": error,
        "skipped": skipped,
        "notes": list(registry.NOTES),
        "seconds": round(time.monotonic() - start, 3),
    }


def main() -> int:
    """Exit status 0, or 3 if a CUDA error left the process unusable."""
    report = sys.stdout
    sys.stdout = sys.stderr  # only reports go to standard output
    torch.set_num_threads(1)  # several such processes share the cores
    print("ready", file=report, flush=True)
    for line in sys.stdin:
        result = run_one(line.strip())
        print(json.dumps(result), file=report, flush=True)
        try:
            synchronize()
        except RuntimeError:
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
