"""What the operators on the CPU and the fake ones check, called directly: as much as the CUDA ones
(csrc/api/problem.cpp), and on the CPU also what cu_seqlens and seqused hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _problem
from ._problem import Options, Packed, Problem


@dataclass(frozen=True)
class Call:
    """The operators' arguments after the tensors, in the schema's order."""

    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_size_left: int
    window_size_right: int
    softcap: float
    schedule: str
    sm_margin: int

    @property
    def is_packed(self) -> bool:
        return self.cu_seqlens_q is not None

    @property
    def options(self) -> Options:
        window = (self.window_size_left, self.window_size_right)
        return Options(window, self.softcap, self.schedule, self.softmax_scale)

    @property
    def packed(self) -> Packed | None:
        if self.cu_seqlens_q is None:
            return None
        return Packed(self.cu_seqlens_q.shape[0] - 1, self.max_seqlen_q, self.max_seqlen_k)


@dataclass(frozen=True)
class Sequence:
    """One sequence of a packed problem: its rows of q, and of k and v."""

    rows: slice
    keys: slice

    @property
    def lengths(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start


def _check_index(name: str, tensor: Tensor, size: int | None) -> None:
    if tensor.dtype != torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} has dtype {tensor.dtype} and shape {tuple(tensor.shape)}; it must be int32, "
            "one-dimensional and contiguous"
        )
    if tensor.shape[0] != size if size is not None else tensor.shape[0] < 1:
        raise ValueError(
            f"{name} has {tensor.shape[0]} elements; "
            + ("at least 1 is" if size is None else f"{size} are")
            + " needed"
        )


def _check_indices(call: Call) -> None:
    given = {
        name: getattr(call, name)
        for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
        if getattr(call, name) is not None
    }
    if given and not {"cu_seqlens_q", "cu_seqlens_k"} <= given.keys():
        raise ValueError(f"{list(given)} are given; a packed call needs both cu_seqlens")
    for name, tensor in given.items():
        entries = None if name == "cu_seqlens_q" else call.cu_seqlens_q.shape[0]
        is_used = name.startswith("seqused")
        _check_index(name, tensor, entries - 1 if is_used else entries)


def _check(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Problem:
    _check_indices(call)
    if call.window_size_left < -1 or call.window_size_right < -1:
        raise ValueError(
            f"window_size={call.options.window}: a bound is at least 0, or -1 for no limit"
        )
    if call.sm_margin < 0:
        raise ValueError(f"sm_margin={call.sm_margin} must be at least 0")
    dtypes = {"q": q.dtype, "k": k.dtype, "v": v.dtype}
    shapes = (tuple(q.shape), tuple(k.shape), tuple(v.shape))
    return _problem.check_problem(shapes, dtypes, call.packed, call.options)


def check_forward(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Problem:
    """The problem that the operands describe.

    Raises:
        ValueError: one of them is wrong; the message begins with "dash: ".
    """
    try:
        return _check(q, k, v, call)
    except ValueError as error:
        raise ValueError(f"dash: {error}") from None


def check_backward(
    results: dict[str, Tensor | None], q: Tensor, k: Tensor, v: Tensor, call: Call
) -> Problem:
    """As check_forward; `results` are dout, out, lse and dlse."""
    problem = check_forward(q, k, v, call)
    like_out = ((*q.shape[:-1], v.shape[-1]), q.dtype)
    statistic = ((*q.shape[:-3], q.shape[-2], q.shape[-3]), torch.float32)
    for name, tensor in results.items():
        if tensor is None:
            continue
        shape, dtype = statistic if name in ("lse", "dlse") else like_out
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(
                f"dash: {name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; expected "
                f"{tuple(shape)} and {dtype}"
            )
    return problem


def check_known(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> None:
    """As check_forward, where no size is a symbol: while torch.compile traces constant lengths."""
    call = Call(*options)
    tensors = [q, k, v, *(x for x in options if isinstance(x, Tensor))]
    numbers = [size for tensor in tensors for size in tensor.shape]
    numbers += [call.max_seqlen_q, call.max_seqlen_k]
    if all(type(number) is int for number in numbers):
        check_forward(q, k, v, call)


def _bounds(name: str, cu_seqlens: Tensor, total: int) -> list[int]:
    bounds = cu_seqlens.tolist()
    ordered = all(a <= b for a, b in itertools.pairwise(bounds))
    if not ordered or bounds[0] < 0 or bounds[-1] > total:
        raise ValueError(
            f"dash: {name} must not decrease and must lie in 0 .. {total}, the rows there are; "
            f"it is {bounds if len(bounds) <= 20 else [*bounds[:10], '...', *bounds[-10:]]}"
        )
    return bounds


def sequences(q: Tensor, k: Tensor, call: Call) -> list[Sequence]:
    """Where the sequences of a packed call lie; reads cu_seqlens and seqused.

    Raises:
        ValueError: they do not describe sequences, or max_seqlen is less than one has.
    """
    sides = []
    for side, tensor in (("q", q), ("k", k)):
        bounds = _bounds(f"cu_seqlens_{side}", getattr(call, f"cu_seqlens_{side}"), tensor.shape[0])
        lengths = [b - a for a, b in itertools.pairwise(bounds)]
        used = getattr(call, f"seqused_{side}")
        if used is not None:
            for index, (count, length) in enumerate(zip(used.tolist(), lengths)):
                if not 0 <= count <= length:
                    raise ValueError(
                        f"dash: seqused_{side}[{index}] is {count}; the sequence has {length} rows"
                    )
            lengths = used.tolist()
        longest, limit = max(lengths, default=0), getattr(call, f"max_seqlen_{side}")
        if longest > limit:
            raise ValueError(
                f"dash: max_seqlen_{side}={limit}, but the longest sequence has {longest} rows"
            )
        sides.append([slice(a, a + n) for a, n in zip(bounds, lengths)])
    return [Sequence(rows, keys) for rows, keys in zip(*sides)]
