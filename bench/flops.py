"""The one FLOP formula of the benchmarks.

The field's convention: a product of two matrices counts 2 FLOP a multiply-add, softmax counts
nothing. Forward are two products (over the head dims of q and of v), backward five (three and two):
2.5 forward passes where the head dims are equal.
"""

from __future__ import annotations


def visible_pairs(seqlen_q: int, seqlen_k: int, causal: bool, window_left: int = -1) -> float:
    """Number of (query, key) pairs of one head that count as work.

    A causal mask is aligned to the bottom right: query i sees keys 0 .. i + seqlen_k - seqlen_q,
    of these the last window_left + 1 where that is not negative. Equal lengths without a window
    follow the field's convention, exactly half of the square; others are counted pair by pair.
    """
    diagonal = seqlen_k - seqlen_q
    if not causal:
        if window_left >= 0:
            return float(
                sum(
                    max(seqlen_k - max(query + diagonal - window_left, 0), 0)
                    for query in range(seqlen_q)
                )
            )
        return float(seqlen_q * seqlen_k)
    if window_left >= 0:
        return float(
            sum(max(min(query + diagonal, window_left) + 1, 0) for query in range(seqlen_q))
        )
    if seqlen_q == seqlen_k:
        return seqlen_q * seqlen_k / 2
    rows = min(seqlen_q, seqlen_k)  # queries that see a key
    keys_of_first_row = max(diagonal, 0)
    return float(rows * keys_of_first_row + rows * (rows + 1) // 2)


def flops_of_pairs(pairs: float, head_dim: int, head_dim_v: int, *, backward: bool) -> float:
    """FLOP of one pass over `pairs` (query, key) pairs, all heads together."""
    products = (3, 2) if backward else (1, 1)
    return 2.0 * pairs * (products[0] * head_dim + products[1] * head_dim_v)


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
    pairs = batch * num_heads * visible_pairs(seqlen_q, seqlen_k, causal)
    return flops_of_pairs(pairs, head_dim, head_dim, backward=backward)


def tflops(flops: float, milliseconds: float) -> float:
    """TFLOP/s of `flops` done in `milliseconds`."""
    return flops / milliseconds * 1e-9
