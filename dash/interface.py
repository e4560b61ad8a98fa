"""The public functions: check the arguments, then call one operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arguments, _ops, _problem
from ._problem import Options, Packed

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
        q: (batch, seqlen_q, heads, head_dim), bfloat16 or float16. Any strides. head_dim is a
            multiple of 8, at most 256.
        k: (batch, seqlen_k, heads_k, head_dim), where heads_k divides heads.
        v: (batch, seqlen_k, heads_k, head_dim_v); head_dim_v may be another one.
        softmax_scale: factor of the scores; None is 1 / sqrt(head_dim).
        causal: query i sees key j iff j <= i + seqlen_k - seqlen_q (bottom-right aligned).
        window_size: (left, right), both inclusive: query i sees key j iff
            -left <= j - (i + seqlen_k - seqlen_q) <= right. -1 or None is no limit; causal=True is
            right = 0.
        softcap: scores become softcap * tanh(score / softcap); 0.0 is none, else at least 1e-2.
        deterministic: False allows dQ to be added in any order.
        schedule: the order in which dQ is added: "auto" or one of `dash.schedules()`. With grouped
            queries a name may be followed by the number of parts that each group of query heads is
            cut into, "band/2": more parts keep more SMs busy where there are few heads of k and v.
            A bare name is one part; "auto" chooses.
        sm_margin: number of SMs to leave free. Changes no bit.
        return_lse: also return the log-sum-exp of the scores, which is differentiable.
        return_attn_probs: FlashAttention-3's name for return_lse.
        qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, pack_gqa:
            FlashAttention-3's, accepted at their default only.

    Returns:
        out (batch, seqlen_q, heads, head_dim_v) in q's dtype; with return_lse (out, lse), where lse
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
    _arguments.check_numbers(softmax_scale, softcap, sm_margin)
    options = _problem.options(causal, window_size, softcap, deterministic, schedule, softmax_scale)
    results = _attend((q, k, v), None, options, sm_margin)
    return results if return_lse or return_attn_probs else results[0]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
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
    """`flash_attn_func` for sequences of different lengths behind each other in one tensor.

    Sequence i has the queries cu_seqlens_q[i] .. cu_seqlens_q[i + 1] - 1, and the keys that
    cu_seqlens_k says likewise; either may be none. Under a named schedule its gradients are the
    bits that `flash_attn_func` gives it alone; under "auto" grouped queries may be cut into other
    parts than alone.

    Args:
        q: (total_q, heads, head_dim). k: (total_k, heads_k, head_dim).
        v: (total_k, heads_k, head_dim_v).
        cu_seqlens_q, cu_seqlens_k: (sequences + 1), int32, on q's device: where each sequence
            begins, and the end of the last. They may end before the tensors do.
        max_seqlen_q, max_seqlen_k: at least the longest lengths; an int, a NumPy int, or a tensor
            of one element, which a GPU must be waited for if it is there.
        seqused_q, seqused_k: (sequences), int32: how many rows of each sequence count, from its
            first on; None is all.
        The others are `flash_attn_func`'s. A window that is no limit for the longest lengths is
        none.

    Returns:
        out (total_q, heads, head_dim_v); with return_lse (out, lse), where lse is (heads, total_q).
        Rows that no sequence has, past the last one or past its seqused, have out 0, lse -inf and
        gradient 0, whatever they hold.

    Raises:
        As `flash_attn_func`. What cu_seqlens and seqused hold is checked on the CPU only: on a GPU
        reading it would wait for the GPU.
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
    _arguments.check_numbers(softmax_scale, softcap, sm_margin)
    options = _problem.options(causal, window_size, softcap, deterministic, schedule, softmax_scale)
    packing = (
        *(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k),
        _arguments.as_length("max_seqlen_q", max_seqlen_q),
        _arguments.as_length("max_seqlen_k", max_seqlen_k),
    )
    results = _attend((q, k, v), packing, options, sm_margin)
    return results if return_lse or return_attn_probs else results[0]


# cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k.
_NOT_PACKED = (None, None, None, None, 0, 0)


def _attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    packing: tuple[Any, ...] | None,
    options: Options,
    sm_margin: int,
) -> tuple[Tensor, Tensor]:
    """The rest of the checks, and the operator."""
    _arguments.check_tensors(dict(zip(("q", "k", "v"), qkv)))
    q, k, v = (_autocast(tensor) for tensor in qkv)
    packed = None if packing is None else _check_packing(q, packing)
    dtypes = {"q": q.dtype, "k": k.dtype, "v": v.dtype}
    if torch.compiler.is_compiling():
        # Lengths may be symbols: the operator checks the rest, here if they are known and when it
        # runs.
        _problem.check_dtypes(dtypes)
        _problem.check_shapes(q.shape, k.shape, v.shape, is_packed=packed is not None)
        _problem.check_scale(options.softmax_scale, options.softcap)
        _arguments.check_devices(q, k, v)
    else:
        problem = _problem.check_problem((q.shape, k.shape, v.shape), dtypes, packed, options)
        _arguments.check_devices(q, k, v)
        _problem.check_residency(problem, _arguments.free_sms(q.device, sm_margin))
    scale = options.softmax_scale
    return _ops.attention(
        *(q, k, v),
        *(_NOT_PACKED if packing is None else packing),
        _problem.default_scale(q.shape[-1]) if scale is None else float(scale),
        *options.window,
        float(options.softcap),
        options.schedule,
        sm_margin,
    )


def _check_packing(q: Tensor, packing: tuple[Any, ...]) -> Packed:
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, *longest = packing
    _arguments.check_index("cu_seqlens_q", cu_seqlens_q, (), q)
    entries = cu_seqlens_q.shape[0]
    _arguments.check_index("cu_seqlens_k", cu_seqlens_k, (entries,), q)
    for name, tensor in (("seqused_q", seqused_q), ("seqused_k", seqused_k)):
        if tensor is not None:
            _arguments.check_index(name, tensor, (entries - 1,), q)
    return Packed(entries - 1, *longest)


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
