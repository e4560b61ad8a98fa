"""`python -m dash selftest`: repeats every kernel on fixed inputs and compares the bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _arguments, _ops, _problem, interface
from ._problem import DTYPE_NAMES

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_CUDA_LENGTH, _CPU_LENGTH = 1000, 40

# What calls each variant of the kernels: its mask, whether sequences are packed, other keywords.
_VARIANTS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "full": ("full", False, {}),
    "causal": ("causal", False, {"causal": True}),
    "packed_full": ("full", True, {}),
    "general": ("window", True, {"window_size": (12, 5), "softcap": 20.0}),
}


@dataclass(frozen=True)
class _Case:
    """One backward kernel, and the forward kernel of the same key."""

    dtype: str
    head_dim: int
    variant: str

    @property
    def schedules(self) -> list[str]:
        """The ordered ones that it can have."""
        mask, is_packed, _ = _VARIANTS[self.variant]
        names = _problem.supporting_schedules(mask, is_packed=is_packed)
        return [name for name in names if name != "unordered"]


def _cases(device: str) -> Iterator[_Case]:
    """The kernels there are; for the CPU path those of one dtype."""
    if device == "cuda":
        for kernel in _ops.manifest()["kernels"]:
            if kernel["pass"] == "bwd":
                yield _Case(kernel["dtype"], kernel["head_dim"], kernel["variant"])
        return
    for head_dim in _problem.HEAD_DIMS:
        for variant, (mask, is_packed, keywords) in _VARIANTS.items():
            window = keywords.get("window_size", _problem.MASKS[mask])
            if _problem.variant_of(head_dim, window, is_packed=is_packed) == variant:
                yield _Case("bf16", head_dim, variant)


def _one_pass(inputs: list[Tensor], dout: Tensor, case: _Case, schedule: str) -> list[Tensor]:
    _, is_packed, keywords = _VARIANTS[case.variant]
    if is_packed:
        length = inputs[0].shape[0]
        bounds = [0, length // 9, length // 9, length // 2, length - 3]
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=dout.device)
        out, lse = interface.flash_attn_varlen_func(
            *(*inputs, cu_seqlens, cu_seqlens, length // 2, length // 2),
            **keywords,
            schedule=schedule,
            return_lse=True,
        )
    else:
        out, lse = interface.flash_attn_func(
            *inputs, **keywords, schedule=schedule, return_lse=True
        )
    return [out.detach(), lse.detach(), *torch.autograd.grad(out, inputs, dout)]


def _differing(case: _Case, schedule: str, device: str, repeats: int) -> list[str]:
    """Names of the results that were not the same bits in every repeat."""
    length = _CUDA_LENGTH if device == "cuda" else _CPU_LENGTH
    layout = (2 * length,) if _VARIANTS[case.variant][1] else (2, length)
    generator = torch.Generator(device=device).manual_seed(0)

    def randn(heads: int) -> Tensor:
        shape = (*layout, heads, case.head_dim)
        return torch.randn(shape, generator=generator, device=device).to(_DTYPES[case.dtype])

    inputs = [randn(heads).requires_grad_() for heads in (4, 2, 2)]
    dout = randn(4)
    first = _one_pass(inputs, dout, case, schedule)
    names = set()
    for _ in range(repeats - 1):
        again = _one_pass(inputs, dout, case, schedule)
        for name, a, b in zip(("out", "lse", "dq", "dk", "dv"), first, again, strict=True):
            if not torch.equal(a, b):
                names.add(name)
    return sorted(names)


def run(repeats: int, say: Callable[[str], None]) -> bool:
    """Runs forward and backward `repeats` times per kernel and ordered schedule.

    Args:
        repeats: at least 2.
        say: called with one line per kernel and schedule, such as print.

    Returns:
        Whether every result was the same bits every time.
    """
    problem = _arguments.device_problem(torch.device("cuda"))
    device = "cpu" if problem else "cuda"
    if problem:
        say(f"The CPU path runs, not the CUDA kernels: {problem}.")
    ok = True
    for case in _cases(device):
        for schedule in case.schedules:
            names = _differing(case, schedule, device, repeats)
            ok = ok and not names
            result = f"NOT EQUAL: {', '.join(names)}" if names else "equal"
            say(
                f"{device} fwd+bwd hdim{case.head_dim} {case.dtype} {case.variant:11} "
                f"{schedule:15} {repeats} repeats: {result}"
            )
    return ok
