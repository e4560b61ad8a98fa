"""The public functions: check the arguments, then call one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import _arguments, _ops, _schedule

Window = tuple[int | None, int | None]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = True,
    schedule: str = "auto",
    sm_margin: int = 0,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    attention_chunk: int = 0,
    num_splits: int = 1,
    pack_gqa: None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention whose gradients are the same bits every time.

    Args:
        q: (batch, seqlen_q, heads, head_dim), bfloat16 or float16. Any strides.
        k: (batch, seqlen_k, heads_k, head_dim), where heads_k divides heads.
        v: like k.
        softmax_scale: factor of the scores; None is 1 / sqrt(head_dim).
        causal: query i sees key j iff j <= i + seqlen_k - seqlen_q (bottom-right aligned).
        window_size: (left, right); -1 or None is no limit. (-1, 0) is causal; other windows are not
            yet supported.
        softcap: 0.0; others are not yet supported.
        deterministic: False allows dQ to be added in any order.
        schedule: the order in which dQ is added: "auto" or one of `dash.schedules()`.
        sm_margin: number of SMs to leave free. Changes no bit.
        return_lse: also return the log-sum-exp of the scores, which is differentiable.
        return_attn_probs: FlashAttention-3's name for return_lse.
        qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, pack_gqa:
            FlashAttention-3's, accepted at their default only.

    Returns:
        out (batch, seqlen_q, heads, head_dim) in q's dtype; with return_lse (out, lse), where lse
        is (batch, heads, seqlen_q) float32, natural log. A row that sees no key has out 0 and
        lse -inf.

    Raises:
        ValueError: an argument is wrong or not supported; the message names it.
        RuntimeError: the tensors are on a device that has no kernel.
    """
    _arguments.check_fa3_only(
        {
            "qv": qv,
            "q_descale": q_descale,
            "k_descale": k_descale,
            "v_descale": v_descale,
            "attention_chunk": attention_chunk,
            "num_splits": num_splits,
            "pack_gqa": pack_gqa,
        }
    )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
    if isinstance(softmax_scale, Tensor):
        raise TypeError(
            "softmax_scale must be a number, not a tensor: no gradient is computed for it; scale q"
        )
    if softmax_scale is not None and not 1e-30 < softmax_scale < 1e30:
        raise ValueError(
            f"softmax_scale={softmax_scale!r} must be positive and finite; None means "
            "1 / sqrt(head_dim)"
        )
    if not isinstance(sm_margin, int) or sm_margin < 0:
        raise ValueError(f"sm_margin={sm_margin!r} must be an int of at least 0")
    q, k, v = (_autocast(tensor) for tensor in (q, k, v))
    problem = _arguments.check_problem(
        q.shape,
        k.shape,
        v.shape,
        {"q": q.dtype, "k": k.dtype, "v": v.dtype},
        causal,
        window_size,
        softcap,
        deterministic,
        schedule,
    )
    _arguments.check_devices(q, k, v)
    if problem.schedule != "auto" and not torch.compiler.is_compiling():
        _arguments.check_residency(problem, _arguments.free_sms(q.device, sm_margin))
    out, lse = torch.ops.dash_attn.fwd(
        q,
        k,
        v,
        1.0 / math.sqrt(problem.head_dim) if softmax_scale is None else float(softmax_scale),
        -1,
        0 if problem.causal else -1,
        0.0,
        problem.schedule,
        sm_margin,
    )
    return (out, lse) if return_lse or return_attn_probs else out


def _autocast(tensor: Tensor) -> Tensor:
    """Under torch.autocast, a float32 tensor in the autocast dtype."""
    device_type = tensor.device.type
    if tensor.dtype == torch.float32 and torch.is_autocast_enabled(device_type):
        return tensor.to(torch.get_autocast_dtype(device_type))
    return tensor


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    num_heads_q: int | None = None,
    **keywords: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`flash_attn_func` on one tensor that holds q, k and v.

    Args:
        qkv: (batch, seqlen, 3, heads, head_dim); or with num_heads_q
            (batch, seqlen, num_heads_q + 2 * heads_k, head_dim): q's heads, then k's, then v's.
        num_heads_q: the number of query heads of a 4-dimensional qkv.
        softmax_scale, causal, keywords: those of `flash_attn_func`.

    Returns:
        What `flash_attn_func` returns.

    Raises:
        ValueError: as `flash_attn_func`, or if qkv does not have one of the two shapes.
    """
    if not isinstance(qkv, Tensor):
        raise TypeError(f"qkv must be a torch.Tensor, not {type(qkv).__name__}")
    if num_heads_q is None:
        if qkv.dim() != 5 or qkv.shape[2] != 3:
            raise ValueError(
                f"qkv has shape {tuple(qkv.shape)}; without num_heads_q it must be "
                "(batch, seqlen, 3, heads, head_dim)"
            )
        q, k, v = qkv.unbind(2)
    else:
        rest = qkv.shape[2] - num_heads_q if qkv.dim() == 4 else -1
        if rest < 2 or rest % 2 != 0 or num_heads_q < 1:
            raise ValueError(
                f"qkv has shape {tuple(qkv.shape)} with num_heads_q={num_heads_q}; it must be "
                "(batch, seqlen, num_heads_q + 2 * heads_k, head_dim)"
            )
        q, k, v = qkv.split([num_heads_q, rest // 2, rest // 2], dim=2)
    return flash_attn_func(q, k, v, softmax_scale, causal, **keywords)


def flash_attn_varlen_func(*_args: Any, **_keywords: Any) -> NoReturn:
    """Sequences of different lengths in one tensor: not yet supported."""
    raise NotImplementedError(
        "flash_attn_varlen_func is not yet supported; flash_attn_func takes sequences of one "
        "length, (batch, seqlen, heads, head_dim)"
    )


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
    return list(_arguments.SCHEDULES)


def supported_head_dims() -> list[int]:
    """Head dims that have kernels."""
    return list(_arguments.HEAD_DIMS)


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
) -> tuple[bool, str]:
    """Whether `flash_attn_func` takes such a call, and the reason if not.

    Args:
        q_shape, k_shape, v_shape: shapes as `flash_attn_func` takes them; v_shape None is k_shape.
        device: where the tensors would be; for a CUDA device the kernel must also be compiled.

    Returns:
        (True, "") or (False, reason). Never raises for an unsupported call.
    """
    device = torch.device(device)
    try:
        problem = _arguments.check_problem(
            tuple(q_shape),
            tuple(k_shape),
            tuple(k_shape if v_shape is None else v_shape),
            {"q": dtype},
            causal,
            window_size,
            softcap,
            deterministic,
            schedule,
        )
    except ValueError as error:
        return False, str(error)
    reason = _arguments.device_problem(device)
    if not reason and device.type == "cuda":
        reason = _missing_kernel(problem) or _too_few_sms(problem, device)
    return not reason, reason


def _too_few_sms(problem: _arguments.Problem, device: torch.device) -> str:
    """Why a named schedule does not fit the whole device, or ""."""
    try:
        _arguments.check_residency(problem, _arguments.free_sms(device, 0))
    except ValueError as error:
        return str(error)
    return ""


def _missing_kernel(problem: _arguments.Problem) -> str:
    """Why the compiled library lacks a kernel for the problem, or ""."""
    kernels = _ops.manifest().get("kernels", [])
    for stage in ("fwd", "bwd"):
        wanted = (stage, *problem.kernel_key)
        if wanted not in {(x["pass"], x["dtype"], x["head_dim"], x["mask"]) for x in kernels}:
            return f"no {stage} kernel for {problem.kernel_key} was built; see compiled_kernels()"
    return ""


def resolve_schedule(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    causal: bool = False,
    *,
    dtype: torch.dtype = torch.bfloat16,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = True,
    schedule: str = "auto",
    device: torch.device | str = "cpu",
    sm_margin: int = 0,
) -> ScheduleInfo:
    """The schedule that `flash_attn_func` would use in the backward, and its guarantees.

    Args:
        q_shape, k_shape: shapes as `flash_attn_func` takes them.
        device: where the tensors would be. Some schedules need many SMs at once; on a CUDA device
            with fewer, less sm_margin, "auto" takes another one. Nothing is limited on the CPU.
        The others are `flash_attn_func`'s.

    Raises:
        ValueError: as `flash_attn_func` would.
        RuntimeError: no kernel runs on the device.
    """
    device = torch.device(device)
    if reason := _arguments.device_problem(device):
        raise RuntimeError(f"device={str(device)!r}: {reason}")
    shapes = (tuple(q_shape), tuple(k_shape), tuple(k_shape))
    problem = _arguments.check_problem(
        *shapes, {"q": dtype}, causal, window_size, softcap, deterministic, schedule
    )
    num_sms = _arguments.free_sms(device, sm_margin)
    _arguments.check_residency(problem, num_sms)
    name = problem.schedule
    if name == "unordered":
        reason = "deterministic=False: contributions to dQ are added as they come"
        return ScheduleInfo(name, *_schedule.claims(name), reason)
    if name == "auto":
        return _resolve_auto(problem, num_sms)
    reason = (
        f"asked for by name; legal for {_schedule.legal_for(name)}. Its order is a function of "
        "lengths, tile sizes, mask and head index alone"
    )
    return ScheduleInfo(name, *_schedule.claims(name), reason)


def _resolve_auto(problem: _arguments.Problem, num_sms: int | None) -> ScheduleInfo:
    wanted, depends_on_batch = _schedule.choose(*problem.shape)
    name, _ = _schedule.choose(*problem.shape, num_ctas=num_sms)
    repeatable, batch_invariant, device_invariant = _schedule.claims(name)
    reason = f"what 'auto' is for this shape and a {_arguments.mask_name(problem.causal)} mask"
    gang = _schedule.gang_size(problem.grid(wanted))
    if name != wanted:
        reason = f"'auto' is {wanted} for this shape, which needs {gang} SMs; {num_sms} are free"
    if gang > 1:
        device_invariant = False
        reason += f"; with fewer than {gang} SMs free it is another one"
    if depends_on_batch:
        batch_invariant = False
        reason += "; with another batch size it may be another one"
    return ScheduleInfo(name, repeatable, batch_invariant, device_invariant, reason)
