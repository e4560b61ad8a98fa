"""Named sets of attention problems."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bench.flops import flops_of_pairs, visible_pairs

PAPER_TOKENS = 16_384
PAPER_HIDDEN = 2_048
PAPER_SEQLENS = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
QUICK_SEQLENS = (512, 2_048, 8_192)


@dataclass(frozen=True)
class AttentionShape:
    """One attention problem. Tensors are (batch, seqlen, heads, head_dim); with `sequences` they
    are packed, (tokens, heads, head_dim), and batch and seqlens are their number and the longest.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_heads_k: int
    head_dim: int
    causal: bool
    name: str = ""
    head_dim_v: int = 0  # 0: head_dim
    window_left: int = -1  # -1: no limit
    sequences: tuple[int, ...] = ()  # lengths of packed sequences, of queries and keys alike

    @property
    def dim_v(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def mask(self) -> str:
        return "causal" if self.causal else "full"

    @property
    def window(self) -> tuple[int, int]:
        """(left, right) as the interface takes it."""
        return self.window_left, 0 if self.causal else -1

    @property
    def tokens(self) -> int:
        """Rows of q."""
        return sum(self.sequences) if self.sequences else self.batch * self.seqlen_q

    def tensor_shape(self, seqlen: int, heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of a tensor with these."""
        if self.sequences:
            return (self.tokens, heads, head_dim)
        return (self.batch, seqlen, heads, head_dim)

    @property
    def q_shape(self) -> tuple[int, ...]:
        return self.tensor_shape(self.seqlen_q, self.num_heads, self.head_dim)

    @property
    def k_shape(self) -> tuple[int, ...]:
        return self.tensor_shape(self.seqlen_k, self.num_heads_k, self.head_dim)

    @property
    def v_shape(self) -> tuple[int, ...]:
        return self.tensor_shape(self.seqlen_k, self.num_heads_k, self.dim_v)

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of dash.is_supported and resolve_schedule beside the shapes of q and k."""
        given: dict[str, Any] = {"v_shape": self.v_shape, "window_size": self.window}
        if self.sequences:
            given["num_sequences"] = self.batch
            given["max_seqlen_q"], given["max_seqlen_k"] = self.seqlen_q, self.seqlen_k
        return given

    def flops(self, *, backward: bool) -> float:
        """FLOP of one pass."""
        lengths = [(n, n) for n in self.sequences] or [(self.seqlen_q, self.seqlen_k)]
        pairs = sum(visible_pairs(q, k, self.causal, self.window_left) for q, k in lengths)
        if not self.sequences:
            pairs *= self.batch
        return flops_of_pairs(pairs * self.num_heads, self.head_dim, self.dim_v, backward=backward)

    def __str__(self) -> str:
        heads = f"{self.num_heads}"
        if self.num_heads_k != self.num_heads:
            heads += f"/{self.num_heads_k}"
        dims = f"hd{self.head_dim}"
        if self.dim_v != self.head_dim:
            dims += f",{self.dim_v}"
        lengths = f"b{self.batch} s{self.seqlen_q}"
        if self.sequences:
            lengths = f"{self.batch} sequences, {self.tokens} tokens"
        elif self.seqlen_k != self.seqlen_q:
            lengths += f"x{self.seqlen_k}"
        window = f" window {self.window_left}" if self.window_left >= 0 else ""
        return f"{self.mask}{window} {dims} {lengths} h{heads}"


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


def one_sequence(
    seqlen: int,
    num_heads: int,
    num_heads_k: int,
    head_dim: int = 128,
    causal: bool = True,
    name: str = "",
) -> AttentionShape:
    """Batch 1, as many keys as queries."""
    return AttentionShape(1, seqlen, seqlen, num_heads, num_heads_k, head_dim, causal, name)


def packed(
    lengths: Iterable[int], num_heads: int, num_heads_k: int, head_dim: int, name: str
) -> AttentionShape:
    """Causal packed sequences."""
    sequences = tuple(lengths)
    longest = max(sequences)
    return AttentionShape(
        *(len(sequences), longest, longest, num_heads, num_heads_k, head_dim, True, name),
        sequences=sequences,
    )


def log_uniform_lengths(count: int, shortest: int, longest: int) -> list[int]:
    """The same lengths every time."""
    choice = random.Random(0)
    return [round(shortest * (longest / shortest) ** choice.random()) for _ in range(count)]


GQA_SHAPES = [one_sequence(seqlen, 32, 8) for seqlen in (4_096, 8_192, 32_768)]

FEW_HEADS_SHAPES = [
    one_sequence(seqlen, 8, 8, causal=causal)
    for causal in (False, True)
    for seqlen in (4_096, 8_192)
]

TRAIN_SHAPES = [
    one_sequence(8_192, 32, 8, name="llama3-8b, 8k"),
    one_sequence(32_768, 32, 8, name="llama3-8b, 32k"),
    one_sequence(8_192, 64, 8, name="llama3-70b, 8k"),
    one_sequence(5_000, 28, 4, name="qwen2.5-7b, 5000"),
    replace(one_sequence(4_096, 128, 128, 192, name="deepseek-v3, 4k"), head_dim_v=128),
]

# Outside the paper's grid: 16,384 tokens of about 2,048 hidden.
OTHER_SHAPES = [
    AttentionShape(4, 4_096, 4_096, 20, 20, 96, False),
    AttentionShape(4, 4_096, 4_096, 20, 20, 96, True),
    AttentionShape(4, 4_096, 4_096, 10, 10, 192, False),
    AttentionShape(4, 4_096, 4_096, 10, 10, 192, True),
    AttentionShape(4, 4_096, 4_096, 8, 8, 256, False),
    AttentionShape(4, 4_096, 4_096, 8, 8, 256, True),
    AttentionShape(4, 4_096, 4_096, 16, 16, 192, True, head_dim_v=128),
    packed(log_uniform_lengths(32, 128, 8_192), 16, 16, 128, "32 sequences of 128..8192"),
    packed([16_384, *[256] * 64], 16, 16, 128, "16384 + 64 x 256"),
    AttentionShape(1, 16_384, 16_384, 16, 16, 128, True, window_left=1_024),
    AttentionShape(1, 16_384, 16_384, 16, 16, 128, True, window_left=4_096),
]

# Presets whose shapes are fixed; paper and quick take --head-dim and --seqlens.
SHAPE_LISTS = {
    "gqa": GQA_SHAPES,
    "few-heads": FEW_HEADS_SHAPES,
    "train": TRAIN_SHAPES,
    "models": TRAIN_SHAPES,
    "shapes": OTHER_SHAPES,
}
PRESETS = {"paper": PAPER_SEQLENS, "quick": QUICK_SEQLENS}
