"""Checks of the public functions' arguments, before any launch.

Every message names the argument, its value, what is supported, and where it helps the way out.
Nothing here touches tensor contents, so all of it traces under torch.compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _ops, _schedule
from .reference import DTYPE_NAMES

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

# Read once: torch.compile cannot trace calls into the extension.
SCHEDULES = tuple(_schedule.schedules())
HEAD_DIMS = tuple(_schedule.supported_head_dims())
_LEGAL = {
    causal: [name for name in SCHEDULES if _schedule.supports(name, causal)]
    for causal in (False, True)
}


def mask_name(causal: bool) -> str:
    """The mask in messages and kernel names."""
    return "causal" if causal else "full"


@dataclass(frozen=True)
class Problem:
    """A checked call, without its tensors: what a kernel and a schedule are chosen by."""

    dtype: torch.dtype
    head_dim: int
    causal: bool
    sizes: tuple[int, int, int, int, int]  # batch, seqlen_q, seqlen_k, heads, heads of k
    schedule: str  # "auto" or a name of schedules(); "unordered" for deterministic=False

    @property
    def kernel_key(self) -> tuple[str, int, str]:
        return DTYPE_NAMES[self.dtype], self.head_dim, mask_name(self.causal)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The first arguments of `_schedule.make_grid` and `_schedule.choose`."""
        return DTYPE_NAMES[self.dtype], self.head_dim, self.causal, *self.sizes

    def grid(self, schedule: str) -> _schedule.TileGrid:
        """The problem in tiles, under a schedule's name."""
        return _schedule.make_grid(*self.shape, schedule)


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


def resolve_mask(
    causal: bool, window_size: tuple[int | None, int | None], seqlen_q: int, seqlen_k: int
) -> bool:
    """Whether the mask of (causal, window_size) is causal (True) or full (False).

    A bound that no key can exceed is no limit; any other window is not yet supported.
    """
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(
            f"window_size={window_size!r} must be a pair (left, right); -1 or None is no limit"
        )
    left, right = (-1 if bound is None else bound for bound in window_size)
    if left < -1 or right < -1:
        raise ValueError(f"window_size={window_size!r}: a bound is at least 0, or -1 for no limit")
    if left >= 0 and left >= seqlen_k - 1:
        left = -1
    if right > 0 and right >= seqlen_q - 1:
        right = -1
    if causal:
        right = 0
    if left != -1 or right not in (-1, 0):
        raise ValueError(
            f"window_size={tuple(window_size)!r} is not yet supported: (-1, -1) with causal=False "
            "or True, and (-1, 0), which means causal, are"
        )
    return right == 0


def resolve_schedule_name(deterministic: bool, schedule: str, causal: bool) -> str:
    """The schedule that the operator is given: "auto", or one that is legal for the mask."""
    legal = _LEGAL[causal]
    if schedule != "auto" and schedule not in legal:
        problem = (
            f"is not legal for a {mask_name(causal)} mask"
            if schedule in SCHEDULES
            else "is not known"
        )
        raise ValueError(f"schedule={schedule!r} {problem}; choose 'auto' or one of {legal}")
    if not deterministic:
        if schedule not in ("auto", "unordered"):
            raise ValueError(
                f"schedule={schedule!r} with deterministic=False: an ordered schedule is "
                "deterministic; leave schedule='auto' for the unordered kernel"
            )
        return "unordered"
    if schedule == "unordered":
        ordered = [name for name in legal if name != "unordered"]
        raise ValueError(
            "schedule='unordered' with deterministic=True: the unordered kernel is not "
            f"deterministic; pass deterministic=False, or 'auto' or one of {ordered}"
        )
    return schedule


def legal_schedules(problem: Problem, num_sms: int | None = None) -> list[str]:
    """Ordered schedules that the problem can have, on `num_sms` SMs (None: as many as it takes)."""
    names = []
    for name in _LEGAL[problem.causal]:
        grid = problem.grid(name)
        fits = num_sms is None or _schedule.gang_size(grid) <= num_sms
        if name != "unordered" and fits and _schedule.is_legal(grid):
            names.append(name)
    return names


def check_legal(problem: Problem) -> None:
    """Refuses a named schedule that the lengths do not allow."""
    if problem.schedule == "auto":
        return
    grid = problem.grid(problem.schedule)
    if not _schedule.is_legal(grid):
        raise ValueError(
            f"schedule={problem.schedule!r} is legal for {_schedule.legal_for(problem.schedule)}; "
            f"here seqlen_q is {grid.seqlen_q}, {grid.num_m_blocks()} Q tiles, and seqlen_k is "
            f"{grid.seqlen_k}, {grid.num_n_blocks()} KV tiles; choose 'auto' or one of "
            f"{legal_schedules(problem)}"
        )


def check_residency(problem: Problem, num_sms: int | None) -> None:
    """Refuses a named schedule that needs more SMs at once than there are (None: no limit)."""
    if problem.schedule == "auto" or num_sms is None:
        return
    gang = _schedule.gang_size(problem.grid(problem.schedule))
    if gang > num_sms:
        raise ValueError(
            f"schedule={problem.schedule!r} needs {gang} SMs at once for this shape, and {num_sms} "
            "are free (those of the GPU minus sm_margin); choose 'auto' or one of "
            f"{legal_schedules(problem, num_sms)}"
        )


def free_sms(device: torch.device, sm_margin: int) -> int | None:
    """SMs that a call on the device may use; None for the CPU, where nothing waits."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count - sm_margin


def check_shapes(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...]
) -> None:
    """Refuses ranks, head counts and head dims that no kernel takes."""
    for name, shape in (("q", q_shape), ("k", k_shape), ("v", v_shape)):
        if len(shape) != 4:
            raise ValueError(
                f"{name} has {len(shape)} dimensions, shape {tuple(shape)}; "
                "expected 4: (batch, seqlen, heads, head_dim)"
            )
    batch, _, num_heads, head_dim = q_shape
    _, seqlen_k, num_heads_k, _ = k_shape
    for name, shape in (("k", k_shape), ("v", v_shape)):
        if shape[0] != batch:
            raise ValueError(f"{name} has batch {shape[0]}, but q has batch {batch}")
    if v_shape[1] != seqlen_k or v_shape[2] != num_heads_k:
        raise ValueError(
            f"v has (seqlen, heads) {(v_shape[1], v_shape[2])}, but k has "
            f"{(seqlen_k, num_heads_k)}; they must be equal"
        )
    if k_shape[3] != head_dim:
        raise ValueError(f"k has head_dim {k_shape[3]}, but q has head_dim {head_dim}")
    if num_heads < 1 or num_heads_k < 1:
        raise ValueError(f"q has {num_heads} heads and k has {num_heads_k}; at least 1 is needed")
    if num_heads % num_heads_k != 0:
        raise ValueError(
            f"k has {num_heads_k} heads, which do not divide the {num_heads} heads of q; "
            "grouped queries need a whole number of query heads per head of k and v"
        )
    if head_dim not in HEAD_DIMS:
        raise ValueError(
            f"q has head_dim {head_dim}, which is not yet supported; {HEAD_DIMS} are "
            f"(maximum {max(HEAD_DIMS)}). Pad q, k, v with zeros and pass softmax_scale explicitly"
        )
    if v_shape[3] != head_dim:
        raise ValueError(
            f"v has head_dim {v_shape[3]}, but q has {head_dim}; different ones are not yet "
            "supported"
        )


def check_dtypes(dtypes: dict[str, torch.dtype]) -> None:
    """Refuses all but bfloat16 and float16, and mixtures."""
    first_name, first = next(iter(dtypes.items()))
    for name, dtype in dtypes.items():
        if dtype not in DTYPE_NAMES:
            raise ValueError(
                f"{name} has dtype {dtype}; torch.bfloat16 and torch.float16 are supported "
                "(float32 is cast under torch.autocast only)"
            )
        if dtype != first:
            raise ValueError(f"{name} has dtype {dtype}, but {first_name} has dtype {first}")


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


def check_problem(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    v_shape: tuple[int, ...],
    dtypes: dict[str, torch.dtype],
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    deterministic: bool,
    schedule: str,
) -> Problem:
    """All checks that need no tensor. Raises ValueError, or returns the checked problem."""
    check_dtypes(dtypes)
    check_shapes(q_shape, k_shape, v_shape)
    if softcap != 0.0:
        raise ValueError(f"softcap={softcap} is not yet supported; softcap=0.0 is")
    is_causal = resolve_mask(causal, window_size, q_shape[1], k_shape[1])
    name = resolve_schedule_name(deterministic, schedule, is_causal)
    sizes = (*q_shape[:2], k_shape[1], q_shape[2], k_shape[2])
    problem = Problem(next(iter(dtypes.values())), q_shape[3], is_causal, sizes, name)
    # Under torch.compile the operator itself checks when it runs: lengths may be symbols here.
    if not torch.compiler.is_compiling():
        check_legal(problem)
    return problem
