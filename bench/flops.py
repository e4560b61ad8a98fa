"""The one FLOP formula of the benchmarks.

The field's convention: a product of two matrices counts 2 FLOP a multiply-add, softmax counts
nothing, and a backward pass counts 2.5 forward passes (five products against two).
"""

from __future__ import annotations

BACKWARD_OVER_FORWARD = 2.5


def visible_pairs(seqlen_q: int, seqlen_k: int, causal: bool) -> float:
    """Number of (query, key) pairs of one head that count as work.

    A causal mask is aligned to the bottom right: query i sees keys 0 .. i + seqlen_k - seqlen_q.
    Equal lengths follow the field's convention, exactly half of the square; different lengths are
    counted pair by pair.
    """
    if not causal:
        return float(seqlen_q * seqlen_k)
    if seqlen_q == seqlen_k:
        return seqlen_q * seqlen_k / 2
    rows = min(seqlen_q, seqlen_k)  # queries that see a key
    keys_of_first_row = max(seqlen_k - seqlen_q, 0)
    return float(rows * keys_of_first_row + rows * (rows + 1) // 2)


def attention_flops(
    *,
    batch: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int,
    head_dim: int,
    causal: bool,
    backward: bool = False,
) -> float:
    """FLOP of one forward or one backward pass; `num_heads` counts query heads."""
    forward = 4.0 * batch * num_heads * head_dim * visible_pairs(seqlen_q, seqlen_k, causal)
    return BACKWARD_OVER_FORWARD * forward if backward else forward


def tflops(flops: float, milliseconds: float) -> float:
    """TFLOP/s of `flops` done in `milliseconds`."""
    return flops / milliseconds * 1e-9
