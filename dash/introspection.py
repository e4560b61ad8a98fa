"""What was built and what it runs on."""

from __future__ import annotations

from typing import Any

import torch

from . import _arguments, _ops, _schedule


def compiled_kernels() -> list[str]:
    """Names of the CUDA kernels in this installation, such as "bwd_hdim128_bf16_causal"."""
    return [kernel["name"] for kernel in _ops.manifest().get("kernels", [])]


def build_info() -> dict[str, Any]:
    """Version, toolkit versions, schedules, head dims, and the compiled kernels.

    Returns:
        A dict that json.dumps takes. "cuda" and "cutlass" are None and "cuda_kernels" says why
        where there are no CUDA kernels.
    """
    from . import __version__

    manifest = _ops.manifest()
    return {
        "version": __version__,
        "torch": torch.__version__,
        "cuda": manifest.get("cuda"),
        "cutlass": manifest.get("cutlass"),
        "cuda_kernels": _ops.cuda_library_error or "loaded",
        "kernels": compiled_kernels(),
        "schedules": list(_schedule.schedules()),
        "head_dims": list(_schedule.supported_head_dims()),
    }


def device_runs_kernels() -> bool:
    """Whether the current CUDA device has kernels in this installation."""
    return not _arguments.device_problem(torch.device("cuda"))


def device_info() -> str:
    """One line about the device that the kernels would run on."""
    if not torch.cuda.is_available():
        return "no CUDA device: the CPU path runs"
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    problem = _arguments.device_problem(torch.device("cuda"))
    return (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{properties.multi_processor_count} SMs" + (f"; no kernel: {problem}" if problem else "")
    )
