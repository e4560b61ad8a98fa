"""Checks of the public functions' arguments that `_problem` does not make: FlashAttention-3's
other arguments, tensors, devices. Before any launch, and nothing reads what a tensor holds, but for
a max_seqlen that is one; so all of it traces under torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._problem import HEAD_DIMS, SCHEDULES

__all__ = ["HEAD_DIMS", "SCHEDULES"]

# FlashAttention-3's other arguments, accepted at these values only.
_FA3_DEFAULTS: dict[str, Any] = {
    "qv": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "attention_chunk": 0,
    "num_splits": 1,
    "pack_gqa": None,
}


def check_fa3_only(given: dict[str, Any]) -> None:
    """Refuses FlashAttention-3's other arguments at any value but their default."""
    for name, default in _FA3_DEFAULTS.items():
        value = given[name]
        if value is not default and (isinstance(value, Tensor) or value != default):
            shown = "tensor" if isinstance(value, Tensor) else repr(value)
            raise ValueError(
                f"{name}={shown} is not supported: only the default {default} is. The argument "
                "exists for callers of FlashAttention-3; use the package flash-attn-3 for it."
            )


def check_tensors(tensors: dict[str, Any]) -> None:
    """Refuses what is no tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")


def check_numbers(softmax_scale: Any, softcap: Any, sm_margin: Any) -> None:
    """Refuses what is no number, or not one that the operators take."""
    for name, value in (("softmax_scale", softmax_scale), ("softcap", softcap)):
        if isinstance(value, Tensor):
            way_out = "; scale q" if name == "softmax_scale" else ""
            raise TypeError(
                f"{name} must be a number, not a tensor: no gradient is computed for it{way_out}"
            )
    if not isinstance(sm_margin, int) or sm_margin < 0:
        raise ValueError(f"sm_margin={sm_margin!r} must be an int of at least 0")


def as_length(name: str, value: Any) -> int:
    """A max_seqlen: an int, a NumPy int, or a tensor of one element (a GPU is waited for)."""
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
        return int(value.item())
    try:
        return value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(
            f"{name} must be an int or a tensor of one integer, not {value!r}"
        ) from None


def check_index(name: str, tensor: Any, sizes: tuple[int, ...], q: Tensor) -> None:
    """cu_seqlens or seqused: int32, one-dimensional, contiguous, on q's device.

    Args:
        sizes: (size,), or () for any of at least 1.
    """
    check_tensors({name: tensor})
    if tensor.dtype != torch.int32:
        raise ValueError(f"{name} has dtype {tensor.dtype}; torch.int32 is needed")
    if tensor.dim() != 1 or (tensor.shape[0] != sizes[0] if sizes else tensor.shape[0] < 1):
        wanted = f"({sizes[0]},)" if sizes else "(sequences + 1,)"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {wanted}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
    if tensor.device != q.device:
        raise ValueError(
            f"{name} is on {tensor.device}, but q is on {q.device}; "
            "all tensors must be on one device"
        )


def check_devices(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuses mixed devices and devices that have no kernel."""
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ValueError(
                f"{name} is on {tensor.device}, but q is on {q.device}; "
                "all tensors must be on one device"
            )
    # Under torch.compile the operator itself checks the device when it runs.
    if not torch.compiler.is_compiling():
        problem = device_problem(q.device)
        if problem:
            raise RuntimeError(f"q is on {q.device}: {problem}")


def free_sms(device: torch.device, sm_margin: int) -> int | None:
    """SMs that a call on the device may use; None for the CPU, where nothing waits."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count - sm_margin


def device_problem(device: torch.device) -> str:
    """Why no kernel runs on the device, or ""."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return "Hopper GPUs (CUDA, compute capability 9.0) and the CPU are supported"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; the CPU path takes CPU tensors"
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return (
            f"the GPU is a {torch.cuda.get_device_name(device)} of compute capability "
            f"{capability[0]}.{capability[1]}, and the kernels need a Hopper GPU "
            "(9.0: H100, H200); the CPU path takes CPU tensors"
        )
    if _ops.cuda_library_error:
        return f"{_ops.cuda_library_error}; install from source with nvcc 12.6 or later"
    return ""
