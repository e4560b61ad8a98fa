"""Named sets of attention problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.flops import attention_flops

PAPER_TOKENS = 16_384
PAPER_HIDDEN = 2_048
PAPER_SEQLENS = (512, 1_024, 2_048, 4_096, 8_192, 16_384)


@dataclass(frozen=True)
class AttentionShape:
    """One attention problem. Tensors are (batch, seqlen, heads, head_dim)."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_heads_k: int
    head_dim: int
    causal: bool
    name: str = ""

    @property
    def mask(self) -> str:
        return "causal" if self.causal else "full"

    def flops(self, *, backward: bool) -> float:
        """FLOP of one pass."""
        return attention_flops(
            batch=self.batch,
            num_heads=self.num_heads,
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            head_dim=self.head_dim,
            causal=self.causal,
            backward=backward,
        )

    def __str__(self) -> str:
        lengths = f"{self.seqlen_q}"
        if self.seqlen_k != self.seqlen_q:
            lengths += f"x{self.seqlen_k}"
        heads = f"{self.num_heads}"
        if self.num_heads_k != self.num_heads:
            heads += f"/{self.num_heads_k}"
        return f"{self.mask} hd{self.head_dim} b{self.batch} s{lengths} h{heads}"


def paper_shapes(
    *,
    head_dims: Iterable[int] = (64, 128),
    causal: Iterable[bool] = (False, True),
    seqlens: Iterable[int] = PAPER_SEQLENS,
) -> list[AttentionShape]:
    """The grid of the DASH paper: 16,384 tokens by 2,048 hidden, so the work varies only with
    the sequence length."""
    return [
        AttentionShape(
            batch=max(PAPER_TOKENS // seqlen, 1),
            seqlen_q=seqlen,
            seqlen_k=seqlen,
            num_heads=PAPER_HIDDEN // head_dim,
            num_heads_k=PAPER_HIDDEN // head_dim,
            head_dim=head_dim,
            causal=is_causal,
        )
        for head_dim in head_dims
        for is_causal in causal
        for seqlen in seqlens
    ]


def _model(name: str, seqlen: int, num_heads: int, num_heads_k: int) -> AttentionShape:
    return AttentionShape(
        batch=1,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        num_heads=num_heads,
        num_heads_k=num_heads_k,
        head_dim=128,
        causal=True,
        name=name,
    )


MODEL_SHAPES = [
    _model("llama3-8b, 8k", 8_192, 32, 8),
    _model("llama3-8b, 32k", 32_768, 32, 8),
    _model("qwen2.5-7b, 5000", 5_000, 28, 4),
]

PRESETS = {
    "paper": PAPER_SEQLENS,
    "quick": (512, 2_048, 8_192),
}
