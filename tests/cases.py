"""Attention problems with readable names, and the library of inputs that broke others.

cases.json is that library; `CASES` are all of its entries.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .reference import Packing

LIBRARY = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
HEAD_DIMS = (64, 96, 128, 192, 256)


@dataclass(frozen=True)
class AttentionCase:
    """One call. With packing, batch is 1 and the lengths are those of the packed tensors."""

    name: str
    batch: int = 1
    seqlen_q: int = 128
    seqlen_k: int = 128
    heads: int = 1
    heads_k: int = 1
    head_dim: int = 64
    dtype: str = "bf16"
    causal: bool = False
    inputs: str = "randn"
    head_dim_v: int = 0  # 0: head_dim
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    packing: Packing | None = None

    def __str__(self) -> str:
        words = [self.dtype, "causal" if self.causal else "full"]
        words += [f"window {self.window}"] if self.window != (-1, -1) else []
        words += [f"softcap {self.softcap}"] if self.softcap else []
        words += [f"{len(self.packing.spans)} sequences"] if self.packing else []
        return (
            f"{self.name} ({self.batch}, {self.seqlen_q}x{self.seqlen_k}, {self.heads}/"
            f"{self.heads_k}, {self.head_dim}/{self.dim_v}) {' '.join(words)}"
        )

    @property
    def dim_v(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def extras(self) -> dict[str, Any]:
        """The keywords of `run` and of the references that few cases have."""
        return {"window": self.window, "softcap": self.softcap, "packing": self.packing}

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of q, k and v."""
        first = slice(1 if self.packing else 0, None)
        return (
            (self.batch, self.seqlen_q, self.heads, self.head_dim)[first],
            (self.batch, self.seqlen_k, self.heads_k, self.head_dim)[first],
            (self.batch, self.seqlen_k, self.heads_k, self.dim_v)[first],
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def work(self) -> int:
        """Scores to be computed: what a CPU run's time grows with."""
        if self.packing:
            # A sequence costs as much as some scores.
            spans = self.packing.spans
            scores = sum((q.stop - q.start) * (k.stop - k.start) + 2000 for q, k in spans)
            return self.heads * scores
        return self.batch * self.heads * self.seqlen_q * self.seqlen_k

    def with_lengths(self, seqlen_q: int, seqlen_k: int) -> AttentionCase:
        return replace(self, seqlen_q=seqlen_q, seqlen_k=seqlen_k)

    def with_heads(self, heads: int, heads_k: int) -> AttentionCase:
        return replace(self, heads=heads, heads_k=heads_k)

    def make_inputs(self, device: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), dout (b, sq, h, dv); packed ones
        without b."""
        generator = torch.Generator(device=device).manual_seed(seed)

        def randn(seqlen: int, heads: int, dim: int) -> Tensor:
            shape = (self.batch, seqlen, heads, dim)
            return torch.randn(shape, generator=generator, device=device)

        q, k, v, dout = (
            randn(seqlen, heads, dim)
            for seqlen, heads, dim in (
                (self.seqlen_q, self.heads, self.head_dim),
                (self.seqlen_k, self.heads_k, self.head_dim),
                (self.seqlen_k, self.heads_k, self.dim_v),
                (self.seqlen_q, self.heads, self.dim_v),
            )
        )
        shape_inputs(self.inputs, q, k, v)
        tensors = (x.to(self.torch_dtype) for x in (q, k, v, dout))
        return tuple(x[0] if self.packing else x for x in tensors)


def packed_case(
    name: str,
    lengths_q: list[int],
    lengths_k: list[int] | None = None,
    *,
    slack: int = 0,
    **fields: Any,
) -> AttentionCase:
    """Sequences of these lengths behind each other, and rows that none has behind them."""
    bounds_q, bounds_k = (
        tuple(accumulate(lengths, initial=0))
        for lengths in (lengths_q, lengths_q if lengths_k is None else lengths_k)
    )
    return AttentionCase(
        name,
        seqlen_q=bounds_q[-1] + slack,
        seqlen_k=bounds_k[-1] + slack,
        packing=Packing(bounds_q, bounds_k),
        **fields,
    )


def shape_inputs(kind: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Turns standard normal tensors in place into the library's special inputs."""
    if kind == "randn":
        return
    if kind.startswith("randn*"):
        for x in (q, k, v):
            x *= float(kind.removeprefix("randn*"))
    elif kind == "peaked":  # every score about -120, so that lse is below -88.7
        level = (120.0 / q.shape[-1] ** 0.5) ** 0.5
        q.mul_(0.02).add_(level)
        k.mul_(0.02).sub_(level)
    elif kind == "massive":  # |q| up to 448, |k| 1880; one row's logits are near -2e5
        q[..., 3:6] *= 0.01
        q[:, q.shape[1] // 2, :, 3:6] = -448.0
        k[..., 3:6] = 1880.0
    elif kind == "outlier-channels":  # near-identical tokens, four channels 50 times as large
        for x in (q, k, v):
            x.mul_(0.05).add_(x[:1, :1, :1] * 20.0)
            x[..., :4] *= 50.0
    else:
        raise ValueError(f"inputs {kind!r} are not known")


# What the library describes in words, in the terms of `shape_inputs`.
_INPUTS = {
    "all scores about -120 (LSE below -88.7)": "peaked",
    "randn*{3,10,30}": "randn*3",
    "|q| up to 448, |k| up to 1880, one row with logits near -2e5": "massive",
    "shared mean + 4 channels x50, near-identical tokens": "outlier-channels",
    "q fp32, k bf16, v fp32": "randn",
}


# What the library describes in words: lengths of the sequences.
_LENGTHS = {
    "512 sequences of 1..3 tokens": [1 + i % 3 for i in range(512)],
    "70000 sequences of 16 tokens": [16] * 70_000,
}


def random_lengths(seed: int, most_sequences: int, longest: int) -> list[int]:
    """1 .. most_sequences lengths of 0 .. longest, of which some are small, 0 or whole tiles."""
    chance = random.Random(seed)
    kinds = [
        lambda: chance.randint(0, longest),
        lambda: chance.randint(0, min(20, longest)),
        lambda: 64 * chance.randint(0, longest // 64),
    ]
    return [chance.choice(kinds)() for _ in range(chance.randint(1, most_sequences))]


def _number(value: Any, default: int) -> int:
    """A number; the first one of a sweep, which is text; `default` for null."""
    if value is None:
        return default
    return value if isinstance(value, int) else int(value.replace(",", ".").split(".")[0])


def from_entry(entry: dict[str, Any]) -> AttentionCase:
    """The library's entry; keys follow queries where null."""
    fields: dict[str, Any] = {name: entry[name] for name in ("heads", "heads_k", "dtype", "causal")}
    fields["head_dim"] = _number(entry["head_dim"], 0)
    fields["head_dim_v"] = _number(entry["head_dim_v"], 0)
    fields["window"] = tuple(entry["window"])
    fields["softcap"] = entry["softcap"]
    fields["inputs"] = _INPUTS.get(entry["inputs"], entry["inputs"])
    if entry["layout"] == "dense":
        seqlen_q = _number(entry["seqlen_q"], 0)
        seqlen_k = _number(entry["seqlen_k"], seqlen_q)
        return AttentionCase(
            entry["name"], entry["batch"], seqlen_q=seqlen_q, seqlen_k=seqlen_k, **fields
        )
    bounds_q = entry["cu_seqlens_q"]
    if isinstance(bounds_q, str):
        lengths = _LENGTHS.get(bounds_q) or random_lengths(0, 64, 3000)
        return packed_case(entry["name"], lengths, **fields)
    bounds_k = entry["cu_seqlens_k"]
    used = tuple(entry["seqused"]) if "seqused" in entry else None
    return AttentionCase(
        entry["name"],
        seqlen_q=entry.get("total", bounds_q[-1]),
        seqlen_k=entry.get("total", bounds_k[-1]),
        packing=Packing(tuple(bounds_q), tuple(bounds_k), used, used),
        **fields,
    )


CASES = {entry["name"]: from_entry(entry) for entry in LIBRARY}
