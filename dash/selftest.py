"""`python -m dash selftest`: repeats every kernel on fixed inputs and compares the bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from . import _arguments, _ops, _schedule, interface
from ._problem import DTYPE_NAMES

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_CUDA_LENGTH, _CPU_LENGTH = 1000, 200


def _cases(device: str) -> Iterator[tuple[str, int, bool]]:
    """(dtype, head_dim, causal) of the backward kernels there are."""
    if device == "cuda":
        for kernel in _ops.manifest()["kernels"]:
            if kernel["pass"] == "bwd":
                yield kernel["dtype"], kernel["head_dim"], kernel["mask"] == "causal"
        return
    for dtype in _DTYPES:
        for head_dim in _arguments.HEAD_DIMS:
            for causal in (False, True):
                yield dtype, head_dim, causal


def _one_pass(inputs: list[Tensor], dout: Tensor, causal: bool, schedule: str) -> list[Tensor]:
    out, lse = interface.flash_attn_func(*inputs, causal=causal, schedule=schedule, return_lse=True)
    return [out.detach(), lse.detach(), *torch.autograd.grad(out, inputs, dout)]


def _differing(
    dtype: str, head_dim: int, causal: bool, schedule: str, device: str, repeats: int
) -> list[str]:
    """Names of the results that were not the same bits in every repeat."""
    length = _CUDA_LENGTH if device == "cuda" else _CPU_LENGTH
    generator = torch.Generator(device=device).manual_seed(0)

    def randn(heads: int) -> Tensor:
        shape = (2, length, heads, head_dim)
        return torch.randn(shape, generator=generator, device=device).to(_DTYPES[dtype])

    inputs = [randn(heads).requires_grad_() for heads in (4, 2, 2)]
    dout = randn(4)
    first = _one_pass(inputs, dout, causal, schedule)
    names = set()
    for _ in range(repeats - 1):
        again = _one_pass(inputs, dout, causal, schedule)
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
    for dtype, head_dim, causal in _cases(device):
        mask = "causal" if causal else "full"
        for schedule in _arguments.SCHEDULES:
            if schedule == "unordered" or not _schedule.supports(schedule, causal):
                continue
            names = _differing(dtype, head_dim, causal, schedule, device, repeats)
            ok = ok and not names
            result = f"NOT EQUAL: {', '.join(names)}" if names else "equal"
            say(
                f"{device} fwd+bwd hdim{head_dim} {dtype} {mask:6} {schedule:14} "
                f"{repeats} repeats: {result}"
            )
    return ok
