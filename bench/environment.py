"""What a number depends on: device, clocks, driver, CUDA, torch, commit."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
_SMI_FIELDS = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "max_sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
}


def _output(command: list[str]) -> str | None:
    """Standard output of a command, or None if it cannot run."""
    try:
        result = subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=30, cwd=ROOT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def nvidia_smi() -> dict[str, str]:
    """Driver, clocks and power limit of the current GPU; empty if nvidia-smi is missing."""
    uuid = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(_SMI_FIELDS.values())}",
        "--format=csv,noheader,nounits",
    ]
    listing = _output([*command, f"--id=GPU-{uuid}"]) if uuid else None
    listing = listing or _output(command)
    if not listing:
        return {}
    values = [value.strip() for value in listing.splitlines()[0].split(",")]
    return dict(zip(_SMI_FIELDS, values, strict=False))


def commit() -> str | None:
    """Commit of the checkout, with "-dirty" if files differ; None without git."""
    if not (ROOT / ".git").exists():
        return None
    return _output(["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"])


def environment() -> dict[str, object]:
    """The stamp of a benchmark. Needs a GPU."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": properties.name,
        "sms": properties.multi_processor_count,
        **nvidia_smi(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }


def why_no_hopper() -> str | None:
    """Why the current machine cannot run the kernels, or None if it can."""
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible to torch"
    major, minor = torch.cuda.get_device_capability()
    if major != 9:
        name = torch.cuda.get_device_name()
        return f"{name} has compute capability {major}.{minor}; the kernels need 9.0 (Hopper)"
    return None
