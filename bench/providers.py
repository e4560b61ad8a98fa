"""Registry of attention implementations. Only fa3.py, besides, knows about another library.

A provider says whether it can run a shape, and if not, why. Every provider gets the same tensors,
(batch, seqlen, heads, head_dim) or packed, and contiguous; torch's SDPA sees them as transposed
views, so no copy is timed. dash and FlashAttention-3 are called through their operators; SDPA's
backward goes through torch.autograd.grad, whose host time hides behind the GPU's (see timing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import fa3
from bench.shapes import AttentionShape

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """q, dout (batch, seqlen_q, num_heads, head_dim); k, v (batch, seqlen_k, num_heads_k, ...); or
    packed (tokens, heads, head_dim), with the sequences' begins and the end of the last."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    cu_seqlens: torch.Tensor | None = None

    @property
    def softmax_scale(self) -> float:
        return 1.0 / math.sqrt(self.q.shape[-1])


@dataclass(frozen=True)
class Passes:
    """Launches of one provider on one set of inputs; results in the inputs' layout. A launch may
    overwrite the results of the one before."""

    forward: Callable[[], torch.Tensor]
    backward: Callable[[], Gradients]


@dataclass(frozen=True)
class Provider:
    """`deterministic`: promises equal bits. `directions`: the passes in which it is a provider of
    its own. `why_not` returns the reason it cannot run a shape, or None."""

    name: str
    deterministic: bool
    why_not: Callable[[AttentionShape], str | None]
    prepare: Callable[[AttentionShape, Inputs], Passes]
    directions: tuple[str, ...] = ("fwd", "bwd")


def make_inputs(shape: AttentionShape, dtype: torch.dtype, seed: int = 0) -> Inputs:
    """Standard normal tensors on the current GPU: zeros would run at higher clocks."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(size: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(size, generator=generator, device="cuda", dtype=dtype)

    cu_seqlens = None
    if shape.sequences:
        begins = [0, *accumulate(shape.sequences)]
        cu_seqlens = torch.tensor(begins, dtype=torch.int32, device="cuda")
    return Inputs(
        q=normal(shape.q_shape),
        k=normal(shape.k_shape),
        v=normal(shape.v_shape),
        dout=normal(shape.tensor_shape(shape.seqlen_q, shape.num_heads, shape.dim_v)),
        cu_seqlens=cu_seqlens,
    )


def _is_ordered(schedule: str) -> bool:
    """Whether a schedule, as the operators take it, adds dQ in a fixed order."""
    return schedule.split("@")[0].split("/")[0] != "unordered"


def _dash_why_not(schedule: str, shape: AttentionShape) -> str | None:
    import dash

    return (
        dash.is_supported(
            shape.q_shape,
            shape.k_shape,
            device="cuda",
            **shape.options,
            deterministic=_is_ordered(schedule),
            schedule=schedule.split("@")[0],  # the public name: section sizes are the operators'
        )[1]
        or None
    )


def dash_options(schedule: str, shape: AttentionShape, inputs: Inputs) -> tuple[object, ...]:
    """The arguments of dash's operators behind the tensors."""
    cu_seqlens = inputs.cu_seqlens
    longest = (0, 0) if cu_seqlens is None else (shape.seqlen_q, shape.seqlen_k)
    packing = (cu_seqlens, cu_seqlens, None, None, *longest)
    return (*packing, inputs.softmax_scale, *shape.window, 0.0, schedule, 0)


def _dash_prepare(schedule: str, shape: AttentionShape, inputs: Inputs) -> Passes:
    import dash  # noqa: F401  (registers the operators)

    operators = torch.ops.dash_attn
    options = dash_options(schedule, shape, inputs)
    q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
    out, lse = operators.fwd(q, k, v, *options)
    return Passes(
        forward=lambda: operators.fwd(q, k, v, *options)[0],
        backward=lambda: operators.bwd(dout, q, k, v, out, lse, None, *options),
    )


def dash_provider(schedule: str, name: str = "") -> Provider:
    """dash with a named schedule; "auto" is the default order and "unordered" the baseline. The
    operators also take "band/2", query groups in 2 parts, and "band@16": sections of 16 lists."""
    return Provider(
        name=name or f"dash[{schedule}]",
        deterministic=_is_ordered(schedule),
        why_not=partial(_dash_why_not, schedule),
        prepare=partial(_dash_prepare, schedule),
        # The forward pass has no order to choose: one provider times it.
        directions=("fwd", "bwd") if schedule == "auto" else ("bwd",),
    )


def _sdpa_why_not(shape: AttentionShape) -> str | None:
    if shape.sequences:
        return "torch's SDPA takes no packed sequences"
    if shape.window_left >= 0:
        return "torch's SDPA takes no window without a mask tensor"
    if shape.causal and shape.seqlen_q != shape.seqlen_k:
        return "torch aligns a causal mask to the top left, dash to the bottom right"
    return None


def _sdpa_prepare(backend: SDPBackend, shape: AttentionShape, inputs: Inputs) -> Passes:
    q, k, v = (
        tensor.transpose(1, 2).detach().requires_grad_()
        for tensor in (inputs.q, inputs.k, inputs.v)
    )
    dout = inputs.dout.transpose(1, 2)
    is_grouped = shape.num_heads != shape.num_heads_k

    def attention() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=shape.causal, scale=inputs.softmax_scale, enable_gqa=is_grouped
            )

    out = attention()

    def backward() -> Gradients:
        grads = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
        dq, dk, dv = (grad.transpose(1, 2) for grad in grads)
        return dq, dk, dv

    return Passes(forward=lambda: attention().transpose(1, 2), backward=backward)


def _fa3_why_not(shape: AttentionShape) -> str | None:
    return fa3.why_unavailable()


def _fa3_prepare(deterministic: bool, shape: AttentionShape, inputs: Inputs) -> Passes:
    operators = torch.ops.flash_attn_3
    q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
    options: dict[str, object] = {
        "softmax_scale": inputs.softmax_scale,
        "is_causal": shape.causal,
    }
    if shape.window_left >= 0:
        left, right = shape.window
        options |= {"is_causal": False, "window_size_left": left, "window_size_right": right}
    if inputs.cu_seqlens is not None:
        options |= {"cu_seqlens_q": inputs.cu_seqlens, "cu_seqlens_k": inputs.cu_seqlens}
        options |= {"max_seqlen_q": shape.seqlen_q, "max_seqlen_k": shape.seqlen_k}

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        # num_splits as in FA3's own Python interface; the operator's default is a heuristic.
        out, lse, *_ = operators.fwd(q, k, v, **options, num_splits=1)
        return out, lse

    out, lse = forward()
    gradients = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}

    def backward() -> Gradients:
        dq, dk, dv, *_ = operators.bwd(
            dout, q, k, v, out, lse, **gradients, **options, deterministic=deterministic
        )
        return dq, dk, dv

    return Passes(forward=lambda: forward()[0], backward=backward)


PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        dash_provider("auto", "dash"),
        dash_provider("unordered", "dash-unordered"),
        Provider(
            name="cudnn",
            deterministic=False,
            why_not=_sdpa_why_not,
            prepare=partial(_sdpa_prepare, SDPBackend.CUDNN_ATTENTION),
        ),
        Provider(
            name="sdpa-flash",
            deterministic=False,
            why_not=_sdpa_why_not,
            prepare=partial(_sdpa_prepare, SDPBackend.FLASH_ATTENTION),
        ),
        Provider(
            name="fa3",
            deterministic=False,
            why_not=_fa3_why_not,
            prepare=partial(_fa3_prepare, False),
        ),
        Provider(
            name="fa3-det",
            deterministic=True,
            why_not=_fa3_why_not,
            prepare=partial(_fa3_prepare, True),
            directions=("bwd",),
        ),
    )
}


def select_providers(names: list[str], schedules: list[str]) -> list[Provider]:
    """The named providers in order; `schedules` replaces "dash" by one provider per schedule.

    Raises ValueError for an unknown name.
    """
    selected: list[Provider] = []
    for name in names:
        if name not in PROVIDERS:
            raise ValueError(f"unknown provider {name!r}; known are {', '.join(PROVIDERS)}")
        if name == "dash" and schedules != ["auto"]:
            selected += [dash_provider(schedule) for schedule in schedules]
        else:
            selected.append(PROVIDERS[name])
    return selected
