"""nvcc as the build calls it: compiles one source, records what ptxas says of each kernel, and
fails when a hot kernel spills, uses local memory, or has its WGMMAs serialised.

Called by ninja in place of nvcc (setup.py sets PYTORCH_NVCC); goes through ccache if that is
installed. Writes build/kernel_stats/<source>.json: one object a kernel with its registers, spill
and stack bytes. bench/kernel_stats.py collects them. Needs no GPU and no disassembler.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

STATS_DIR = Path(__file__).resolve().parent.parent / "build" / "kernel_stats"

# Bandwidth-bound stages and test kernels; every other kernel is hot.
COLD_STAGES = ("preprocess", "postprocess", "add_dkv_parts", "selftest")

# Source -> bytes of spill or stack that its hot kernel may have. An entry says in a comment where
# the accesses are (never inside the loop over tiles) and what removing them would cost.
ALLOWED_BYTES: dict[str, int] = {}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
PROPERTIES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
REGISTERS = re.compile(r"Used (\d+) registers")
SERIALISED = re.compile(r"wgmma\.mma_async instructions are serialized.*?function '(\w+)'")


def plain_name(mangled: str) -> str:
    """The qualified name of a kernel without template arguments: "dash::bwd::main_kernel"."""
    parts: list[str] = []
    rest = mangled.removeprefix("_ZN") if mangled.startswith("_ZN") else mangled.removeprefix("_Z")
    while match := re.match(r"(\d+)", rest):
        length = int(match.group(1))
        start = match.end()
        part = rest[start : start + length]
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
        rest = rest[start + length :]
    return "::".join(parts) or mangled


def parse_ptxas(log: str) -> list[dict[str, object]]:
    """One record a kernel, in the order of the log: name, registers, spill and stack bytes, and
    whether ptxas serialised its WGMMAs."""
    serialised = set(SERIALISED.findall(log))
    kernels: list[dict[str, object]] = []
    for block in re.split(r"(?=ptxas info\s*: Compiling entry function)", log):
        entry, properties = ENTRY.search(block), PROPERTIES.search(block)
        registers = REGISTERS.search(block)
        if entry is None or properties is None or registers is None:
            continue
        stack, stores, loads = (int(value) for value in properties.groups())
        kernels.append(
            {
                "kernel": plain_name(entry.group(1)),
                "registers": int(registers.group(1)),
                "spill_store_bytes": stores,
                "spill_load_bytes": loads,
                "stack_bytes": stack,
                "wgmma_serialised": entry.group(1) in serialised,
            }
        )
    return kernels


def faults(source: str, kernel: dict[str, object]) -> list[str]:
    """What is wrong with the code of a kernel of that source; empty for a cold kernel."""
    if any(stage in str(kernel["kernel"]) for stage in COLD_STAGES):
        return []
    sizes = ("spill_store_bytes", "spill_load_bytes", "stack_bytes")
    allowed = ALLOWED_BYTES.get(source, 0)
    found = [f"{kernel[key]} {key}" for key in sizes if int(str(kernel[key])) > allowed]
    return found + (["serialised WGMMAs"] if kernel["wgmma_serialised"] else [])


def real_nvcc() -> list[str]:
    """The compiler behind this script, through ccache if there is one."""
    nvcc = str(Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc")
    ccache = shutil.which("ccache")
    return [ccache, nvcc] if ccache else [nvcc]


def toolkit_version() -> str:
    """The compiler's release, e.g. "13.0": register counts depend on it."""
    nvcc = Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc"
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\S+),", said)
    return found.group(1) if found else "unknown"


def main(arguments: list[str]) -> int:
    """Runs nvcc with the arguments; returns its exit code, or 1 if a hot kernel is at fault."""
    result = subprocess.run(
        [*real_nvcc(), *arguments], stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    )
    lines = result.stdout.splitlines(keepends=True)
    noise = re.compile(r"ptxas info|^\s+\d+ bytes stack frame|^\s*$")
    sys.stdout.writelines(line for line in lines if result.returncode or not noise.search(line))
    if result.returncode or "-c" not in arguments or "-o" not in arguments:
        return result.returncode

    output = Path(arguments[arguments.index("-o") + 1])
    kernels = parse_ptxas(result.stdout)
    # A debug build has device-side checks, whose message arguments live on the stack.
    is_debug = os.environ.get("DASH_DEBUG") == "1"
    if not is_debug:
        record = {"cuda": toolkit_version(), "kernels": kernels}
        STATS_DIR.mkdir(parents=True, exist_ok=True)
        (STATS_DIR / f"{output.stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    at_fault = False
    for kernel in kernels:
        print(f"{output.stem}: {kernel['kernel']}: {kernel['registers']} registers")
        for fault in faults(output.stem, kernel):
            at_fault = True
            label = "note" if is_debug else "error"
            print(f"{label}: {output.stem}: hot kernel {kernel['kernel']} has {fault}")
    if at_fault and not is_debug:
        output.unlink(missing_ok=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
