"""What a call gets, asked before it is made: whether it is supported, and which schedule it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import _arguments, _ops, _problem, _schedule
from ._problem import Options, Packed, Problem

Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class ScheduleInfo:
    """The schedule that a call uses and what it guarantees."""

    name: str
    repeatable: bool  # same inputs, build and device model: same bits, whatever else runs
    batch_invariant: bool  # a sequence's gradients depend on no other sequence, slot or batch size
    device_invariant: bool  # the order does not depend on the number of SMs
    reason: str


def schedules() -> list[str]:
    """Names that `schedule` takes besides "auto"; "unordered" needs deterministic=False."""
    return list(_problem.SCHEDULES)


def supported_head_dims() -> list[int]:
    """Head dims that kernels are compiled for. Every multiple of 8 up to the last is supported: it
    runs in the next larger one of these."""
    return list(_problem.HEAD_DIMS)


def _call(
    shapes: Sequence[Sequence[int]],
    dtype: torch.dtype,
    options: Options,
    num_sequences: int | None,
    max_seqlens: tuple[int | None, int | None],
) -> Problem:
    """The problem of a call that is described by its shapes."""
    q_shape, k_shape, v_shape = (tuple(size.__index__() for size in shape) for shape in shapes)
    packed = None
    if num_sequences is not None:
        rows = (shape[0] if shape else 0 for shape in (q_shape, k_shape))
        longest = (n if given is None else given for n, given in zip(rows, max_seqlens))
        packed = Packed(num_sequences, *longest)
    return _problem.check_problem((q_shape, k_shape, v_shape), {"q": dtype}, packed, options)


def is_supported(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    v_shape: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = True,
    schedule: str = "auto",
    num_sequences: int | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[bool, str]:
    """Whether `flash_attn_func` or `flash_attn_varlen_func` takes such a call; the reason if not.

    Args:
        q_shape, k_shape, v_shape: shapes as the function takes them; v_shape None is k_shape.
        device: where the tensors would be; for a CUDA device the kernel must also be compiled.
        num_sequences: given for `flash_attn_varlen_func`; the shapes are then (total, heads, dim).
        max_seqlen_q, max_seqlen_k: of `flash_attn_varlen_func`; None is all rows.
        The others are the functions'.

    Returns:
        (True, "") or (False, reason). Never raises, whatever the arguments are.
    """
    try:
        device = torch.device(device)
        problem = _call(
            (q_shape, k_shape, k_shape if v_shape is None else v_shape),
            dtype,
            _problem.options(causal, window_size, softcap, deterministic, schedule),
            num_sequences,
            (max_seqlen_q, max_seqlen_k),
        )
        reason = _arguments.device_problem(device)
        if not reason and device.type == "cuda":
            _problem.check_residency(problem, _arguments.free_sms(device, 0))
            reason = _missing_kernel(problem)
    except ValueError as error:
        reason = str(error)
    except Exception as error:  # such as a shape of strings
        reason = f"{type(error).__name__}: {error}"
    return not reason, reason


def _missing_kernel(problem: Problem) -> str:
    """Why the compiled library lacks a kernel for the problem, or ""."""
    kernels = _ops.manifest().get("kernels", [])
    dtype, head_dim, variant = problem.kernel_key
    for stage in ("fwd", "bwd"):
        wanted = (stage, dtype, head_dim, variant)
        if wanted not in {(x["pass"], x["dtype"], x["head_dim"], x["variant"]) for x in kernels}:
            return (
                f"no kernel {stage}_hdim{head_dim}_{dtype}_{variant} was built; see "
                "dash.compiled_kernels(), and rebuild with a DASH_KERNELS that has it, or with none"
            )
    return ""


def resolve_schedule(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    causal: bool = False,
    *,
    v_shape: Sequence[int] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = True,
    schedule: str = "auto",
    device: torch.device | str = "cpu",
    sm_margin: int = 0,
    num_sequences: int | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> ScheduleInfo:
    """The schedule that a call would use in the backward, and its guarantees.

    Args:
        device: where the tensors would be. Some schedules need many SMs at once; on a CUDA device
            with fewer, less sm_margin, "auto" takes another one. Nothing is limited on the CPU.
        The others are those of `is_supported` and of `flash_attn_func`.

    Raises:
        ValueError: as `flash_attn_func` would.
        RuntimeError: no kernel runs on the device.
    """
    device = torch.device(device)
    if reason := _arguments.device_problem(device):
        raise RuntimeError(f"device={str(device)!r}: {reason}")
    problem = _call(
        (q_shape, k_shape, k_shape if v_shape is None else v_shape),
        dtype,
        _problem.options(causal, window_size, softcap, deterministic, schedule),
        num_sequences,
        (max_seqlen_q, max_seqlen_k),
    )
    num_sms = _arguments.free_sms(device, sm_margin)
    _problem.check_residency(problem, num_sms)
    name = problem.schedule
    if name.partition("/")[0] == "unordered":
        reason = "deterministic=False: contributions to dQ are added as they come"
        return ScheduleInfo(name, *_schedule.claims(name), reason)
    if name == "auto":
        return _resolve_auto(problem, num_sms)
    reason = (
        f"asked for by name; legal for {_schedule.legal_for(name)}. Its order is a function of "
        "lengths, tile sizes, mask and head index alone"
    )
    return ScheduleInfo(name, *_schedule.claims(name), reason)


def _resolve_auto(problem: Problem, num_sms: int | None) -> ScheduleInfo:
    wanted, depends_on_batch = problem.choose()
    name, _ = problem.choose(num_sms)
    repeatable, batch_invariant, device_invariant = _schedule.claims(name)
    packed = " and packed sequences" if problem.is_packed else ""
    reason = f"what 'auto' is for this shape and a {problem.mask} mask{packed}"
    parts = name.partition("/")[2]
    if parts:
        reason += f"; query groups are cut into {parts} parts, to have enough work for all SMs"
    gang = problem.gang_size(wanted)
    if name != wanted:
        reason = f"'auto' is {wanted} for this shape, which needs {gang} SMs; {num_sms} are free"
    if gang > 1:
        device_invariant = False
        reason += f"; with fewer than {gang} SMs free it is another one"
    if depends_on_batch:
        batch_invariant = False
        others = "among other sequences" if problem.is_packed else "with another batch size"
        reason += f"; {others} it may be another one"
    return ScheduleInfo(name, repeatable, batch_invariant, device_invariant, reason)
