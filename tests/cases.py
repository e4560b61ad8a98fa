"""Attention problems with readable names, and the library of inputs that broke others.

cases.json is that library; `CASES` are its dense entries whose features exist here, and
`unsupported` says why an entry is not among them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class AttentionCase:
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

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return (
            f"{self.name} ({self.batch}, {self.seqlen_q}x{self.seqlen_k}, {self.heads}/"
            f"{self.heads_k}, {self.head_dim}) {self.dtype} {mask}"
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
        return self.batch * self.heads * self.seqlen_q * self.seqlen_k

    def with_lengths(self, seqlen_q: int, seqlen_k: int) -> AttentionCase:
        return replace(self, seqlen_q=seqlen_q, seqlen_k=seqlen_k)

    def with_heads(self, heads: int, heads_k: int) -> AttentionCase:
        return replace(self, heads=heads, heads_k=heads_k)

    def make_inputs(self, device: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q (b, sq, h, d), k and v (b, sk, hk, d), dout (b, sq, h, d)."""
        generator = torch.Generator(device=device).manual_seed(seed)

        def randn(seqlen: int, heads: int) -> Tensor:
            shape = (self.batch, seqlen, heads, self.head_dim)
            return torch.randn(shape, generator=generator, device=device)

        q, k, v, dout = (
            randn(seqlen, heads)
            for seqlen, heads in (
                (self.seqlen_q, self.heads),
                (self.seqlen_k, self.heads_k),
                (self.seqlen_k, self.heads_k),
                (self.seqlen_q, self.heads),
            )
        )
        shape_inputs(self.inputs, q, k, v)
        return tuple(x.to(self.torch_dtype) for x in (q, k, v, dout))


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


def unsupported(entry: dict[str, Any]) -> str:
    """Why the library's entry cannot run yet, or ""."""
    if entry["layout"] != "dense":
        return "variable-length sequences are not yet supported"
    if entry["kind"] == "window" or entry["window"] != [-1, -1]:
        return "windows are not yet supported"
    if entry["softcap"] != 0.0:
        return "softcap is not yet supported"
    if entry["kind"] == "head-dim":
        return "head dims other than 64 and 128 are not yet supported"
    if entry["kind"] == "memory":
        return "the benchmark measures memory"
    return ""


def from_entry(entry: dict[str, Any]) -> AttentionCase:
    """The library's entry; a swept length starts at 1, and keys follow queries where null."""
    seqlen_q = entry["seqlen_q"] if isinstance(entry["seqlen_q"], int) else 1
    return AttentionCase(
        name=entry["name"],
        batch=entry["batch"],
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if entry["seqlen_k"] is None else entry["seqlen_k"],
        heads=entry["heads"],
        heads_k=entry["heads_k"],
        head_dim=entry["head_dim"],
        dtype=entry["dtype"],
        causal=entry["causal"],
        inputs=_INPUTS.get(entry["inputs"], entry["inputs"]),
    )


CASES = {entry["name"]: from_entry(entry) for entry in LIBRARY if not unsupported(entry)}
